"""Optimizers and the learning rate of a step."""

from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from lnexp.config.schema import Train
from lnexp.model.catalog import OPTIMIZERS, SCHEDULES

# Of each of catalog.OPTIMIZERS.
OPTIMIZER_CLASSES: dict[str, Any] = {"adamw": AdamW, "adam": Adam, "sgd": SGD}


def lr_at(step: int, train: Train) -> float:
    """Linear warm-up (step + 1) / warmup, then the schedule over the steps that are left."""
    if step < train.warmup:
        return train.lr * (step + 1) / train.warmup
    share = (step - train.warmup) / max(train.steps - train.warmup, 1)
    return train.lr * SCHEDULES[train.schedule].factor(share)


def new_optimizer(model: nn.Module, train: Train) -> Optimizer:
    """The configured optimizer, weight decay on matrices only, torch's fused kernel."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": train.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    reads, options = OPTIMIZERS[train.optimizer], dict[str, Any]()
    if reads.reads_betas:
        options |= {"betas": tuple(train.betas), "eps": train.adam_eps}
    if reads.reads_momentum:
        options |= {"momentum": train.momentum}
    groups = [group for group in groups if group["params"]]
    return OPTIMIZER_CLASSES[train.optimizer](groups, lr=train.lr, fused=True, **options)


def names_in_order(model: nn.Module) -> list[str]:
    """Of the parameters, as `new_optimizer` numbers them."""
    named = list(model.named_parameters())
    return [name for name, p in named if p.ndim >= 2] + [name for name, p in named if p.ndim < 2]
