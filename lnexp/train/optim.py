"""Optimizers and the learning rate of a step."""

from collections.abc import Callable
from math import cos, pi

import torch
from torch import nn
from torch.optim import Optimizer

from lnexp.config.schema import Train

SCHEDULES: dict[str, Callable[[float], float]] = {  # share of the run after warm-up -> factor
    "constant": lambda p: 1.0,
    "cosine": lambda p: 0.5 * (1 + cos(pi * p)),
    "linear": lambda p: 1 - p,
}


def lr_at(step: int, train: Train) -> float:
    """Linear warm-up (step + 1) / warmup, then the schedule over the steps that are left."""
    if step < train.warmup:
        return train.lr * (step + 1) / train.warmup
    return train.lr * SCHEDULES[train.schedule](
        (step - train.warmup) / max(train.steps - train.warmup, 1)
    )


def new_optimizer(model: nn.Module, train: Train) -> Optimizer:
    """The configured optimizer, weight decay on matrices only, torch's fused kernel."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": train.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return OPTIMIZERS[train.optimizer]([g for g in groups if g["params"]], train)


def names_in_order(model: nn.Module) -> list[str]:
    """Of the parameters, as `new_optimizer` numbers them."""
    named = list(model.named_parameters())
    return [name for name, p in named if p.ndim >= 2] + [name for name, p in named if p.ndim < 2]


def _adamw(groups: list[dict], train: Train) -> Optimizer:
    first, second = train.betas
    return torch.optim.AdamW(
        groups, lr=train.lr, betas=(first, second), eps=train.adam_eps, fused=True
    )


def _adam(groups: list[dict], train: Train) -> Optimizer:
    first, second = train.betas
    return torch.optim.Adam(
        groups, lr=train.lr, betas=(first, second), eps=train.adam_eps, fused=True
    )


def _sgd(groups: list[dict], train: Train) -> Optimizer:
    return torch.optim.SGD(groups, lr=train.lr, momentum=train.momentum, fused=True)


OPTIMIZERS: dict[str, Callable[[list[dict], Train], Optimizer]] = {
    "adamw": _adamw,
    "adam": _adam,
    "sgd": _sgd,
}
