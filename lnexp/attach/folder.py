"""config.yaml and env.json of a training loop that is not ours: what is known of it, no more."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from lnexp.config.document import dump
from lnexp.config.schema import Measure
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


def config_yaml(
    model: nn.Module,
    depth: int,
    optimizers: Sequence[Optimizer],
    measure: Measure,
    scaled: bool,
    blocks: Sequence[str],
) -> str:
    """Only settings that can be read off the objects; a setting that is left out is not known."""
    weights = [p for p in model.parameters() if p.requires_grad] or list(model.parameters())
    first = optimizers[0]
    group = first.param_groups[0]
    train: dict[str, Any] = {}
    if type(first) in OPTIMIZERS:
        train["optimizer"] = OPTIMIZERS[type(first)]
    train |= {ours: float(group[theirs]) for theirs, ours in SETTINGS.items() if theirs in group}
    if "betas" in group:
        train["betas"] = [float(beta) for beta in group["betas"]]
    dtype = str(weights[0].dtype).removeprefix("torch.")
    if not scaled and dtype in PRECISIONS:
        train["precision"] = PRECISIONS[dtype]
    train |= {"loss_scale": "dynamic" if scaled else "none", "device": weights[0].device.type}
    document = {
        "watched": {
            "model": type(model).__name__,
            "optimizers": [type(optimizer).__name__ for optimizer in optimizers],
            "parameters": sum(p.numel() for p in model.parameters()),
            "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "blocks": list(blocks),
        },
        "model": {"depth": depth},
        "train": train,
        "measure": {
            "level": measure.level,
            "every": measure.every,
            "sample": measure.sample,
        },
    }
    return dump(document)


def environment(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    trainable: Sequence[str],
    baseline: float | str | None,
    processes: int,
) -> dict[str, Any]:
    weights = list(model.parameters())
    norms = [m for m in model.modules() if "norm" in type(m).__name__.lower()]
    return {
        **machine(weights[0].device.type),
        "watched": True,
        "devices": sorted({str(p.device) for p in weights}),
        "processes": processes,
        "optimizer": type(optimizers[0]).__name__,
        "optimizer_kernel": "fused" if optimizers[0].defaults.get("fused") else "per tensor",
        "weights_dtype": str(weights[0].dtype).removeprefix("torch."),
        "parameters": sum(p.numel() for p in weights),
        "norm_parameters": sum(p.numel() for m in norms for p in m.parameters(recurse=False)),
        "tensors": len(trainable),
        "norms": len(norms),
        "baseline": baseline,  # nats; "each batch": given step by step; None: there is none
    }
