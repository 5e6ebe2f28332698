"""config.yaml and env.json of a training loop that is not ours: what is known of it, no more."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.optim import SGD, Adam, AdamW, Optimizer

from lnexp.attach.live_probe import LiveProbe
from lnexp.config.document import dump
from lnexp.measure.optimizer import kernel
from lnexp.measure.tensors import type_name
from lnexp.runs.environment import machine

OPTIMIZERS = {AdamW: "adamw", Adam: "adam", SGD: "sgd"}
PRECISIONS = {"float32": "fp32", "float64": "fp64", "bfloat16": "bf16", "float16": "fp16"}
# A group's setting -> ours.
SETTINGS = {"lr": "lr", "eps": "adam_eps", "weight_decay": "weight_decay", "momentum": "momentum"}


def free_folder(out: str | Path) -> Path:
    """`out`, or where a run lies there already `out`-2, `out`-3, ...: nothing is overwritten."""
    path, number = Path(out), 2
    while (path / "config.yaml").exists():
        path, number = Path(f"{out}-{number}"), number + 1
    return path


def config_yaml(live: LiveProbe, optimizers: Sequence[Optimizer], scaled: bool) -> str:
    """Only settings that can be read off the objects; a setting that is left out is not known."""
    first = optimizers[0]
    group = first.param_groups[0]
    train: dict[str, Any] = {}
    if type(first) in OPTIMIZERS:
        train["optimizer"] = OPTIMIZERS[type(first)]
    train |= {ours: float(group[theirs]) for theirs, ours in SETTINGS.items() if theirs in group}
    if "betas" in group:
        train["betas"] = [float(beta) for beta in group["betas"]]
    weights = list(live.model.parameters())
    trainable = [p for p in weights if p.requires_grad]
    weight = (trainable or weights)[0]
    dtype = type_name(weight.dtype)
    if not scaled and dtype in PRECISIONS:
        train["precision"] = PRECISIONS[dtype]
    train |= {"loss_scale": "dynamic" if scaled else "none", "device": weight.device.type}
    measure = live.measure
    document = {
        "watched": {
            "model": type(live.model).__name__,
            "optimizers": [type(optimizer).__name__ for optimizer in optimizers],
            "parameters": sum(p.numel() for p in weights),
            "trainable": sum(p.numel() for p in trainable),
            "blocks": live.places.blocks,
        },
        "model": {"depth": max(1, live.places.depth)},
        "train": train,
        "measure": {"level": measure.level, "every": measure.every, "sample": measure.sample},
    }
    return dump(document)


def environment(
    live: LiveProbe, optimizers: Sequence[Optimizer], baseline: float | str | None
) -> dict[str, Any]:
    weights = list(live.model.parameters())
    norms = [m for m in live.model.modules() if "norm" in type(m).__name__.lower()]
    return {
        **machine(weights[0].device.type),
        "watched": True,
        "devices": sorted({str(p.device) for p in weights}),
        "processes": live.ranks.size,
        "optimizer": type(optimizers[0]).__name__,
        "optimizer_kernel": kernel(optimizers[0]),
        "weights_dtype": type_name(weights[0].dtype),
        "parameters": sum(p.numel() for p in weights),
        "norm_parameters": sum(p.numel() for m in norms for p in m.parameters(recurse=False)),
        "tensors": len(live.trainable),
        "norms": len(norms),
        "baseline": baseline,  # nats; "each batch": given step by step; None: there is none
    }
