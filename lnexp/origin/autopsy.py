"""A failing step, run again under a magnifying glass: where was the first bad value born?

Works on any torch model: `run(model)` computes the step's objective from the model's own state.
"""

import copy
from collections.abc import Callable
from math import isfinite, prod
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lnexp.measure.nonfinite import exact_norm, total
from lnexp.measure.tensors import full
from lnexp.origin.operations import Watch
from lnexp.origin.tags import ModuleTags
from lnexp.records import (
    MATHEMATICAL,
    NOT_KNOWN,
    NOT_REPRODUCED,
    NUMERICAL,
    OVERFLOW,
    Autopsy,
    Replay,
    TensorFigures,
)

Run = Callable[[nn.Module], Tensor]

HUGE = 1e150  # products of such numbers leave fp64; 0/0 and a root of a negative need none


def examine(
    model: nn.Module, run: Run, *, step: int, shadow: Callable[[nn.Module, torch.dtype], Tensor]
) -> Autopsy:
    """Replay forward and backward of a step whose loss or gradient was not finite.

    `run` is the step as it was (autocast, loss scale, random state), `shadow` the same in a wider
    type and without scale. The model's gradients are overwritten.
    """
    began = perf_counter()
    seen = watched(model, run)
    return report(step, seen, shadow_replay(model, shadow), began)


def report(
    step: int,
    seen: "tuple[Watch, float, float]",
    shadows: dict[str, Replay],
    began: float,
) -> Autopsy:
    """What `watched` saw, and the same step in wider types (empty: it cannot be computed there)."""
    watch, loss, grad_norm = seen
    of_fp64 = nature(shadows["float64"]) if "float64" in shadows else NOT_KNOWN
    return Autopsy(
        step=step,
        reproduced=watch.origin is not None,
        origin=watch.origin,
        propagated=watch.propagated,
        loss=loss,
        grad_norm=grad_norm,
        shadow=shadows,
        nature=of_fp64 if watch.origin else NOT_REPRODUCED,
        seconds=perf_counter() - began,
    )


def watched(model: nn.Module, run: Run) -> tuple[Watch, float, float]:
    """Forward and backward with every operation watched; loss and gradient norm."""
    model.zero_grad(set_to_none=True)
    tags = ModuleTags(model)
    watch = Watch(tags, dict(model.named_parameters()))
    with tags.open(), watch:
        objective = run(model)
        watch.backward = True
        objective.backward()
    norms = [exact_norm(full(p.grad)) for p in model.parameters() if p.grad is not None]
    return watch, float(objective.detach()), total(norms)


def shadow_replay(
    model: nn.Module, shadow: Callable[[nn.Module, torch.dtype], Tensor]
) -> dict[str, Replay]:
    """The same step in fp64, and in fp32 where the run was narrower."""
    types = [torch.float64]
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters()):
        types.append(torch.float32)
    found = {}
    for dtype in types:
        wide = copy.deepcopy(model).to(dtype)
        # Fused attention recomputes exp(score - log-sum) in backward: at scores of 1e20 rounding
        # alone makes that infinite, in fp64 too. Written out, softmax has no such fault.
        with sdpa_kernel(SDPBackend.MATH):
            seen = watched(wide, lambda m, dtype=dtype: shadow(m, dtype))
        found[str(dtype).removeprefix("torch.")] = as_shadow(*seen)
    return found


def as_shadow(watch: Watch, loss: float, grad_norm: float) -> Replay:
    return Replay(isfinite(loss) and isfinite(grad_norm), loss, grad_norm, watch.origin)


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


# An autopsy in a few lines, for whoever has no run folder.


PHASES = {
    "forward": "in the forward pass",
    "loss": "in the loss",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer's update",
}
NATURES = {
    NUMERICAL: "The same step is finite in fp64: the number format failed.",
    OVERFLOW: "The same step leaves fp64, too: no format holds such numbers.",
    MATHEMATICAL: "The same step is not finite in fp64 either: a wider format will not mend it.",
    NOT_KNOWN: "The step could not be computed in fp64, so the format's part is not known.",
}


def told(found: Autopsy) -> str:
    origin = found.origin
    if origin is None:
        seen = f"loss {found.loss or 0.0:.4g}, gradient norm {found.grad_norm or 0.0:.4g}"
        finite = isfinite(found.loss or 0.0) and isfinite(found.grad_norm or 0.0)
        return f"Every value is finite: {seen}." if finite else f"Born where nobody looked: {seen}."
    kind = f" ({origin.module_kind})" if origin.module_kind else ""
    born = "NaN" if origin.kind == "nan" else "Inf"
    lines = [f"{born} was born {PHASES[origin.phase]}, in {origin.module}{kind}, by {origin.op}."]
    lines += [f"  in:  {_tensor(tensor)}" for tensor in origin.inputs]
    lines += [f"  out: {_tensor(tensor)}" for tensor in origin.outputs]
    if origin.note:
        lines.append(f"  {origin.note}")
    bad = found.propagated
    if bad is not None and bad != origin:
        lines.append(f"The first bad gradient was in {bad.module}.")
    return "\n".join([*lines, NATURES[found.nature]])


def _tensor(figures: TensorFigures) -> str:
    shape = "x".join(map(str, figures.shape)) or "scalar"
    none = figures.absmax is None
    words = "no finite element" if none else f"{figures.min:.4g} to {figures.max:.4g}"
    counts = {"NaN": figures.nan, "Inf": figures.inf}
    bad = [f"{n} of {prod(figures.shape)} {kind}" for kind, n in counts.items() if n]
    return ", ".join([f"{figures.dtype} {shape}", words, *bad])
