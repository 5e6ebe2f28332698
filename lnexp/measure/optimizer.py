"""Adam's second moments where they fail: underflow, and an update that is not finite."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lnexp.measure.nonfinite import kind_of
from lnexp.measure.tensors import describe, held, local
from lnexp.origin.operations import Birth


@dataclass(frozen=True)
class Underflow:
    """Of one tensor: elements whose second moment is 0 though the first is not, so that the update
    is m / eps; and those whose second moment is so small that eps decides the update."""

    elements: int
    vanished: int  # v = 0 and m != 0
    below_eps: int  # sqrt(v_hat) < eps


def underflow(optimizer: Optimizer, weights: Sequence[nn.Parameter]) -> list[Underflow]:
    """One entry a tensor, of the part that lies here; empty where the optimizer keeps no second
    moment, or has not acted."""
    counts: list[Tensor] = []
    elements: list[int] = []
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for weight in weights:
        state = optimizer.state.get(weight, {})
        if "exp_avg_sq" not in state:
            return []
        v, m = local(state["exp_avg_sq"]), local(state["exp_avg"])
        eps, correction = _eps_and_correction(groups[id(weight)], state)
        elements.append(v.numel())
        counts.append(((v == 0) & (m != 0)).sum())
        counts.append((v.float() < (eps * correction) ** 2).sum())
    numbers = torch.stack(counts).tolist()
    return [
        Underflow(size, vanished, below)
        for size, vanished, below in zip(elements, numbers[::2], numbers[1::2], strict=True)
    ]


def _eps_and_correction(group: dict[str, Any], state: dict[str, Any]) -> tuple[float, float]:
    """eps, and sqrt(1 - beta2^t): v_hat = v / its square."""
    return group["eps"], sqrt(1 - group["betas"][1] ** float(state["step"]))


def kernel(optimizer: Optimizer) -> str:
    return "fused" if optimizer.defaults.get("fused") else "per tensor"


def failed_update(
    optimizer: Optimizer,
    names: Sequence[str],
    weights: Sequence[nn.Parameter],
    before: Sequence[Tensor],
) -> tuple[Birth, dict[str, Any], bool] | None:
    """The first weight that an update made non-finite: its birth, its figures, and whether the
    same update is finite in fp64. Gradients and moments are those of this step."""
    finite = [bool(torch.isfinite(weight.detach()).all()) for weight in weights]
    if all(finite):
        return None
    i = finite.index(False)
    name, weight = names[i], weights[i]
    bad = ~torch.isfinite(weight.detach())
    index = tuple(int(n) for n in bad.nonzero()[0])
    state, grad = optimizer.state.get(weight, {}), weight.grad
    assert grad is not None
    moments = [state[key] for key in ("exp_avg", "exp_avg_sq", "momentum_buffer") if key in state]
    after = float(weight.detach()[index])
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
        "element": list(index),
        "weight_before": float(before[i][index]) if before else None,
        "weight_after": after,
        "gradient": float(grad[index]),
        "kernel": kernel(optimizer),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "nonfinite": int(bad.sum()),
        "elements": weight.numel(),
    }
    if "exp_avg_sq" not in state:
        return birth, figures, bool(torch.isfinite(grad.double() * _lr(optimizer)).all())
    group = next(g for g in optimizer.param_groups if any(p is weight for p in g["params"]))
    eps, correction = _eps_and_correction(group, state)
    # Fused kernels compute in fp32 whatever the weights' type; the others in that type.
    math_type = torch.float32 if kernel(optimizer) == "fused" else weight.dtype
    (share,) = underflow(optimizer, [weight])
    figures |= {
        "exp_avg": float(state["exp_avg"][index]),
        "exp_avg_sq": float(state["exp_avg_sq"][index]),
        "eps": eps,
        "eps_held": held(eps, math_type),
        "underflowed": share.vanished / share.elements,
        "below_eps": share.below_eps / share.elements,
    }
    beta2 = _beta2(optimizer)
    # The moment that fp64 would hold is at least this step's own share of it.
    v = torch.maximum(state["exp_avg_sq"].double(), (1 - beta2) * grad.double().square())
    update = _lr(optimizer) * state["exp_avg"].double() / (v.sqrt() / correction + eps)
    return birth, figures, bool(torch.isfinite(update).all())


def _lr(optimizer: Optimizer) -> float:
    return optimizer.param_groups[0]["lr"]


def _beta2(optimizer: Optimizer) -> float:
    return optimizer.param_groups[0]["betas"][1]
