"""An optimizer's update that made a weight non-finite, in the words of an autopsy."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from lnexp.attach.places import plain
from lnexp.measure.nonfinite import exact_norm, total
from lnexp.measure.optimizer import failed_update
from lnexp.measure.probes import Probe
from lnexp.origin.autopsy import Autopsy

KNOWN = (Adam, AdamW, SGD)  # whose moments have names that are known


def of_update(
    optimizer: Optimizer,
    names: Sequence[str],
    weights: Sequence[nn.Parameter],
    kept: Sequence[Tensor],
    *,
    step: int,
    loss: float,
    grad_norm: float | None,
) -> Autopsy | None:
    """While gradients and moments are there; `kept`: the weights before, or empty. None: every
    weight is finite."""
    found = failed_update(optimizer, names, weights, kept)
    if found is None:
        return None
    birth, figures, finite = found
    return Autopsy(
        step=step,
        reproduced=True,
        origin=birth,
        propagated=None,
        loss=loss,
        grad_norm=grad_norm,
        optimizer=figures,
        shadow={"float64": {"loss": None, "grad_norm": None, "finite": finite, "origin": None}},
        nature="numerical" if finite else "mathematical",
        seconds=0.0,
    )


def of_somebodys_update(
    optimizers: Sequence[Optimizer], probe: Probe, *, step: int, loss: float, grad_norm: float
) -> Autopsy | None:
    """None too where the optimizer is of a kind whose moments are not known."""
    owner = {id(p): o for o in optimizers for g in o.param_groups for p in g["params"]}
    for at, weight in enumerate(probe.weights):
        if not bool(torch.isfinite(weight.detach()).all()):
            optimizer = owner.get(id(weight))
            if type(optimizer) not in KNOWN or weight.grad is None:
                return None
            assert optimizer is not None
            names, kept = probe.names[at : at + 1], probe.kept[at : at + 1]
            return of_update(
                optimizer, names, [weight], kept, step=step, loss=loss, grad_norm=grad_norm
            )
    return None


def try_update(model: nn.Module, loss: Tensor, optimizer: Optimizer) -> Autopsy | None:
    """The update that this loss leads to, made on a copy of weights and optimizer."""
    if type(optimizer) not in KNOWN:
        return None
    kept = [(p, p.grad) for p in model.parameters()]
    try:
        model.zero_grad(set_to_none=True)
        loss.backward()
        twin_of: dict[int, nn.Parameter] = {}
        twin = copy.deepcopy(optimizer)
        for group, own in zip(twin.param_groups, optimizer.param_groups, strict=True):
            for copied, weight in zip(group["params"], own["params"], strict=True):
                copied.grad = weight.grad
                twin_of[id(weight)] = copied
        named = [
            (plain(n), twin_of[id(p)])
            for n, p in model.named_parameters()
            if id(p) in twin_of and p.grad is not None
        ]
        names, weights = [n for n, _ in named], [w for _, w in named]
        before = [w.detach().clone() for w in weights]
        norm = total([exact_norm(w.grad) for w in weights if w.grad is not None])
        twin.step()
        value = float(loss.detach())
        return of_update(twin, names, weights, before, step=0, loss=value, grad_norm=norm)
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient
