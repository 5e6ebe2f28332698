"""autopsy.json of made-up failures, as the writing half would write it."""

import json
from pathlib import Path


def tensor(dtype="float32", shape=(8, 4), low=-1.0, high=2.0, nan=0, inf=0):
    largest = None if low is None else max(abs(low), abs(high))
    return {
        "shape": list(shape), "dtype": dtype, "min": low, "max": high, "absmax": largest,
        "nan": nan, "inf": inf,
    }  # fmt: skip


def birth(phase="forward", kind="inf", module="blocks.2.mlp.body.w2", op="aten.addmm.default", **m):
    return {
        "phase": phase, "kind": kind, "module": module, "module_kind": "Linear", "op": op,
        "inputs": [tensor()], "outputs": [tensor(**{kind: 3})], "norm": None, "attention": None,
        "note": "", **m,
    }  # fmt: skip


def update(**more):
    return {
        "parameter": "blocks.0.attn.body.wqkv.weight", "element": [3, 5], "weight_before": 0.1,
        "weight_after": "-inf", "gradient": 1e-4, "exp_avg": 1e-5, "exp_avg_sq": 0.0, "eps": 1e-8,
        "eps_held": 0.0, "kernel": "per tensor", "dtype": "float16", "underflowed": 0.41,
        "below_eps": 0.6, "nonfinite": 12, "elements": 4096, **more,
    }  # fmt: skip


def autopsy(origin=None, nature="numerical", step=7, **more):
    finite = nature == "numerical"
    wide = {"loss": 3.2 if finite else "nan", "grad_norm": 1.0 if finite else "nan"}
    return {
        "schema": 1, "step": step, "reproduced": origin is not None, "origin": origin,
        "propagated": None, "loss": 3.2, "grad_norm": "nan", "optimizer": None,
        "shadow": {"float64": wide | {"finite": finite}}, "nature": nature, "seconds": 0.4, **more,
    }  # fmt: skip


def write_autopsy(folder: Path, said: dict) -> None:
    (folder / "autopsy.json").write_text(json.dumps(said, allow_nan=False))
