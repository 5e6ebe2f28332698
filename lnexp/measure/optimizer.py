"""Adam's second moments where they fail: they underflow, or lie below eps."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lnexp.measure.tensors import local


@dataclass(frozen=True)
class SmallMoments:
    """Of one tensor: elements whose second moment is 0 though the first is not, so that the update
    is m / eps; and those whose second moment is so small that eps decides the update."""

    elements: int
    vanished: int  # v = 0 and m != 0
    below_eps: int  # sqrt(v_hat) < eps


def underflow(optimizer: Optimizer, weights: Sequence[nn.Parameter]) -> list[SmallMoments]:
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
        eps, correction = eps_and_correction(groups[id(weight)], state)
        elements.append(v.numel())
        counts.append(((v == 0) & (m != 0)).sum())
        counts.append((v.float() < (eps * correction) ** 2).sum())
    numbers = torch.stack(counts).tolist()
    return [
        SmallMoments(size, vanished, below)
        for size, vanished, below in zip(elements, numbers[::2], numbers[1::2], strict=True)
    ]


def eps_and_correction(group: dict[str, Any], state: dict[str, Any]) -> tuple[float, float]:
    """eps, and sqrt(1 - beta2^t): v_hat = v / its square."""
    return group["eps"], sqrt(1 - group["betas"][1] ** float(state["step"]))


def kernel(optimizer: Optimizer) -> str:
    return "fused" if optimizer.defaults.get("fused") else "per tensor"
