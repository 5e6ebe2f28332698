"""An optimizer's update that made a weight non-finite, in the words of an autopsy."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from lnexp.measure.groups import plain
from lnexp.measure.nonfinite import exact_norm, kind_of, total
from lnexp.measure.optimizer import eps_and_correction, kernel, underflow
from lnexp.measure.probes import Probe
from lnexp.measure.tensors import describe, held, type_name
from lnexp.origin.replay import gradients_kept
from lnexp.records import MATHEMATICAL, NUMERICAL, Autopsy, Birth, Replay, UpdateFigures

KNOWN = (Adam, AdamW, SGD)  # whose moments have names that are known


def of_update(
    optimizer: Optimizer,
    names: Sequence[str],
    weights: Sequence[nn.Parameter],
    before: Sequence[Tensor],
    *,
    step: int,
    loss: float,
    grad_norm: float | None,
) -> Autopsy | None:
    """Of the first weight that an update made non-finite; None: there is none. Gradients and
    moments have to be those of this step still; `before`: the weights until then, or empty."""
    position = _first_nonfinite(weights)
    if position is None:
        return None
    name, weight = names[position], weights[position]
    bad = ~torch.isfinite(weight.detach())
    element = tuple(int(n) for n in bad.nonzero()[0])
    state, grad = optimizer.state.get(weight, {}), weight.grad
    assert grad is not None
    moments = [state[key] for key in ("exp_avg", "exp_avg_sq", "momentum_buffer") if key in state]
    after = float(weight.detach()[element])
    birth = Birth(
        phase="optimizer",
        kind=kind_of(after),  # type: ignore[arg-type]
        module=name,
        module_kind="Parameter",
        op=f"{type(optimizer).__name__} ({kernel(optimizer)})",
        inputs=[describe(t) for t in (grad, *moments)],
        outputs=[describe(weight.detach())],
    )
    figures: dict[str, Any] = {
        "parameter": name,
        "element": list(element),
        "weight_before": float(before[position][element]) if before else None,
        "weight_after": after,
        "gradient": float(grad[element]),
        "kernel": kernel(optimizer),
        "dtype": type_name(weight.dtype),
        "nonfinite": int(bad.sum()),
        "elements": weight.numel(),
    }
    group = next(g for g in optimizer.param_groups if any(p is weight for p in g["params"]))
    update = grad.double() * group["lr"]
    if "exp_avg_sq" in state:
        eps, correction = eps_and_correction(group, state)
        # Fused kernels compute in fp32 whatever the weights' type; the others in that type.
        math_type = torch.float32 if kernel(optimizer) == "fused" else weight.dtype
        (share,) = underflow(optimizer, [weight])
        figures |= {
            "exp_avg": float(state["exp_avg"][element]),
            "exp_avg_sq": float(state["exp_avg_sq"][element]),
            "eps": eps,
            "eps_held": held(eps, math_type),
            "underflowed": share.vanished / share.elements,
            "below_eps": share.below_eps / share.elements,
        }
        # The moment that fp64 would hold is at least this step's own share of it.
        own_share = (1 - group["betas"][1]) * grad.double().square()
        v = torch.maximum(state["exp_avg_sq"].double(), own_share)
        update = group["lr"] * state["exp_avg"].double() / (v.sqrt() / correction + eps)
    finite = bool(torch.isfinite(update).all())
    return Autopsy(
        step=step,
        reproduced=True,
        origin=birth,
        loss=loss,
        grad_norm=grad_norm,
        optimizer=UpdateFigures(**figures),
        shadow={"float64": Replay(finite)},
        nature=NUMERICAL if finite else MATHEMATICAL,
    )


def of_watched_update(
    optimizers: Sequence[Optimizer],
    probe: Probe,
    before: Sequence[Tensor],
    *,
    step: int,
    loss: float,
    grad_norm: float,
) -> Autopsy | None:
    """Of a loop that is not ours; None too where an optimizer's moments are not known."""
    position = _first_nonfinite(probe.weights)
    if position is None:
        return None
    weight = probe.weights[position]
    owner = {id(p): o for o in optimizers for g in o.param_groups for p in g["params"]}
    optimizer = owner.get(id(weight))
    if optimizer is None or type(optimizer) not in KNOWN or weight.grad is None:
        return None
    return of_update(
        optimizer,
        probe.names,
        probe.weights,
        before,
        step=step,
        loss=loss,
        grad_norm=grad_norm,
    )


def _first_nonfinite(weights: Sequence[nn.Parameter]) -> int | None:
    bad = (i for i, w in enumerate(weights) if not bool(torch.isfinite(w.detach()).all()))
    return next(bad, None)


def try_update(model: nn.Module, loss: Tensor, optimizer: Optimizer) -> Autopsy | None:
    """The update that this loss leads to, made on a copy of weights and optimizer."""
    if type(optimizer) not in KNOWN:
        return None
    with gradients_kept(model):
        model.zero_grad(set_to_none=True)
        loss.backward()
        twin = copy.deepcopy(optimizer)
        twin_of: dict[int, nn.Parameter] = {}
        for group, own in zip(twin.param_groups, optimizer.param_groups, strict=True):
            for copied, weight in zip(group["params"], own["params"], strict=True):
                copied.grad = weight.grad
                twin_of[id(weight)] = copied
        twins = {
            plain(name): twin_of[id(p)]
            for name, p in model.named_parameters()
            if id(p) in twin_of and p.grad is not None
        }
        weights = list(twins.values())
        before = [weight.detach().clone() for weight in weights]
        norm = total([exact_norm(weight.grad) for weight in weights if weight.grad is not None])
        twin.step()
        value = float(loss.detach())
        return of_update(twin, list(twins), weights, before, step=0, loss=value, grad_norm=norm)
