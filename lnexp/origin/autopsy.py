"""A failing step, run again under a magnifying glass: where was the first bad value born? And the
answer in a few lines.

Works on any torch model: `run(model)` computes the step's objective from the model's own state.
"""

import copy
from collections.abc import Callable
from math import isfinite, prod
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lnexp.measure.nonfinite import HALF, exact_norm, total
from lnexp.measure.tensors import full, type_name
from lnexp.origin.operations import OperationMode
from lnexp.origin.tags import ModuleTags
from lnexp.records import (
    KINDS,
    MATHEMATICAL,
    NOT_KNOWN,
    NOT_REPRODUCED,
    NUMERICAL,
    OVERFLOW,
    PHASES,
    Autopsy,
    Birth,
    Replay,
    TensorFigures,
)

Run = Callable[[nn.Module], Tensor]

HUGE = 1e150  # products of such numbers leave fp64; 0/0 and a root of a negative need none
NATURES = {
    NUMERICAL: "The same step is finite in fp64: the number format failed.",
    OVERFLOW: "The same step leaves fp64, too: no format holds such numbers.",
    MATHEMATICAL: "The same step is not finite in fp64 either: a wider format will not mend it.",
    NOT_KNOWN: "The step could not be computed in fp64, so the format's part is not known.",
}


def examine(
    model: nn.Module, run: Run, *, step: int, shadow: Callable[[nn.Module, torch.dtype], Tensor]
) -> Autopsy:
    """Replay forward and backward of a step whose loss or gradient was not finite.

    `run` is the step as it was (autocast, loss scale, random state), `shadow` the same in a wider
    type and without scale. The model's gradients are overwritten.
    """
    began = perf_counter()
    replay, propagated = replayed(model, run)
    return autopsy_of(step, replay, propagated, shadows(model, shadow), began)


def autopsy_of(
    step: int,
    replay: Replay,
    propagated: Birth | None,
    shadows: dict[str, Replay],
    began: float,
) -> Autopsy:
    """Of a step as it was, and in wider types (empty: it cannot be computed there)."""
    of_fp64 = nature(shadows["float64"]) if "float64" in shadows else NOT_KNOWN
    return Autopsy(
        step=step,
        reproduced=replay.origin is not None,
        origin=replay.origin,
        propagated=propagated,
        loss=replay.loss,
        grad_norm=replay.grad_norm,
        shadow=shadows,
        nature=of_fp64 if replay.origin else NOT_REPRODUCED,
        seconds=perf_counter() - began,
    )


def replayed(model: nn.Module, run: Run) -> tuple[Replay, Birth | None]:
    """Forward and backward with every operation looked at, and the first bad gradient."""
    model.zero_grad(set_to_none=True)
    tags = ModuleTags(model)
    operations = OperationMode(tags, dict(model.named_parameters()))
    with tags.open(), operations:
        objective = run(model)
        operations.backward = True
        objective.backward()
    loss = float(objective.detach())
    grad_norm = total([exact_norm(full(p.grad)) for p in model.parameters() if p.grad is not None])
    finite = isfinite(loss) and isfinite(grad_norm)
    return Replay(finite, loss, grad_norm, operations.origin), operations.propagated


def shadows(
    model: nn.Module, shadow: Callable[[nn.Module, torch.dtype], Tensor]
) -> dict[str, Replay]:
    """The same step in fp64, and in fp32 where the run was narrower."""
    types = [torch.float64]
    if any(p.dtype in HALF for p in model.parameters()):
        types.append(torch.float32)
    replays = {}
    for dtype in types:
        wide = copy.deepcopy(model).to(dtype)
        # Fused attention recomputes exp(score - log-sum) in backward: at scores of 1e20 rounding
        # alone makes that infinite, in fp64 too. Written out, softmax has no such fault.
        with sdpa_kernel(SDPBackend.MATH):
            replay, _ = replayed(wide, lambda m, dtype=dtype: shadow(m, dtype))
        replays[type_name(dtype)] = replay
    return replays


def nature(fp64: Replay) -> str:
    if fp64.finite:
        return NUMERICAL
    birth = fp64.origin
    if birth is None:
        return MATHEMATICAL
    # Fused kernels hide the Inf inside and show its NaN, so the kind does not decide.
    largest = max((figures.absmax or 0.0 for figures in birth.inputs), default=0.0)
    exponential = birth.kind == "inf" and "exp" in birth.op
    return OVERFLOW if largest > HUGE or exponential else MATHEMATICAL


def summary(autopsy: Autopsy) -> str:
    """In a few lines, for whoever has no run folder."""
    origin, bad = autopsy.origin, autopsy.propagated
    if origin is None:
        loss, grad_norm = autopsy.loss or 0.0, autopsy.grad_norm or 0.0
        finite = isfinite(loss) and isfinite(grad_norm)
        words = "Every value is finite" if finite else "Born where nobody looked"
        return f"{words}: loss {loss:.4g}, gradient norm {grad_norm:.4g}."
    kind = f" ({origin.module_kind})" if origin.module_kind else ""
    lines = [
        f"{KINDS[origin.kind]} was born {PHASES[origin.phase]}, "
        f"in {origin.module}{kind}, by {origin.op}.",
        *(f"  in:  {_tensor(figures)}" for figures in origin.inputs),
        *(f"  out: {_tensor(figures)}" for figures in origin.outputs),
    ]
    if origin.note:
        lines.append(f"  {origin.note}")
    if bad is not None and bad != origin:
        lines.append(f"The first bad gradient was in {bad.module}.")
    return "\n".join([*lines, NATURES[autopsy.nature]])


def _tensor(figures: TensorFigures) -> str:
    shape = "x".join(map(str, figures.shape)) or "scalar"
    none = figures.absmax is None
    words = "no finite element" if none else f"{figures.min:.4g} to {figures.max:.4g}"
    counts = {"NaN": figures.nan, "Inf": figures.inf}
    bad = [f"{n} of {prod(figures.shape)} {kind}" for kind, n in counts.items() if n]
    return ", ".join([f"{figures.dtype} {shape}", words, *bad])
