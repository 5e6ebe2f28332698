"""A failing step, run again under a magnifying glass: where was the first bad value born?

Works on any torch model: `run(model)` computes the step's objective from the model's own state.
"""

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import isfinite, prod
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lnexp.measure.nonfinite import exact_norm, kind_of, total
from lnexp.measure.tensors import full
from lnexp.origin.operations import Birth, Watch
from lnexp.origin.tags import ModuleTags
from lnexp.rows import EventRow

Run = Callable[[nn.Module], Tensor]

NOT_REPRODUCED = "not reproduced"
NOT_KNOWN = "not known"  # the step cannot be computed in a wider type
HUGE = 1e150  # products of such numbers leave fp64; 0/0 and a root of a negative need none


@dataclass(frozen=True)
class Autopsy:
    """What autopsy.json holds."""

    step: int
    reproduced: bool
    origin: Birth | None
    propagated: Birth | None  # the first bad gradient
    loss: float
    grad_norm: float | None
    optimizer: dict[str, Any] | None
    shadow: dict[str, dict[str, Any]]  # the same step in wider types
    nature: str  # numerical, overflow, mathematical, not reproduced or not known
    seconds: float
    schema: int = field(default=1)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def events(self) -> list[EventRow]:
        """The origin's row, then one each for a bad loss and the first bad gradient it led to."""
        if self.origin is None:
            detail = f"not reproduced: loss {self.loss}, gradient norm {self.grad_norm}"
            return [EventRow(self.step, "backward", "not_reproduced", detail=detail)]
        rows = [self._row(self.origin, "origin", _detail(self.origin))]
        if self.origin.phase == "forward" and not isfinite(self.loss):
            kind = kind_of(self.loss)
            rows.append(EventRow(self.step, "loss", kind, role="propagated", module="loss"))
        if self.propagated is not None and self.propagated != self.origin:
            rows.append(self._row(self.propagated, "propagated"))
        return rows

    def _row(self, birth: Birth, role: str, detail: str = "") -> EventRow:
        return EventRow(
            step=self.step,
            phase=birth.phase,
            kind=birth.kind,
            role=role,
            module=birth.module,
            op=birth.op,
            detail=detail,
        )


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
    shadows: dict[str, dict[str, Any]],
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
        optimizer=None,
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
) -> dict[str, dict[str, Any]]:
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


def as_shadow(watch: Watch, loss: float, grad_norm: float) -> dict[str, Any]:
    return {
        "loss": loss,
        "grad_norm": grad_norm,
        "finite": isfinite(loss) and isfinite(grad_norm),
        "origin": watch.origin,
    }


def nature(fp64: dict[str, Any]) -> str:
    """numerical: finite in fp64. overflow: beyond fp64's 1.8e308, too. mathematical: undefined."""
    if fp64["finite"]:
        return "numerical"
    birth: Birth | None = fp64["origin"]
    if birth is None:
        return "mathematical"
    # Fused kernels hide the Inf inside and show its NaN, so the kind does not decide.
    largest = max((t["absmax"] or 0.0 for t in birth.inputs), default=0.0)
    exponential = birth.kind == "inf" and "exp" in birth.op
    return "overflow" if largest > HUGE or exponential else "mathematical"


def _detail(birth: Birth) -> str:
    """What went in and what came out, in a few words."""

    def words(facts: dict[str, Any]) -> str:
        largest = (
            "no finite element" if facts["absmax"] is None else f"absmax {facts['absmax']:.4g}"
        )
        return f"{facts['dtype']} {'x'.join(map(str, facts['shape'])) or 'scalar'} {largest}"

    out = birth.outputs[0]
    came = f"{out['nan']} NaN and {out['inf']} Inf of {prod(out['shape'])} elements"
    if birth.note:
        return f"{came}, {birth.note}"
    return f"{came} out of {'; '.join(map(words, birth.inputs)) or 'no tensor'}"


# An autopsy in a few lines, for whoever has no run folder.


PHASES = {
    "forward": "in the forward pass",
    "loss": "in the loss",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer's update",
}
NATURES = {
    "numerical": "The same step is finite in fp64: the number format failed.",
    "overflow": "The same step leaves fp64, too: no format holds such numbers.",
    "mathematical": "The same step is not finite in fp64 either: a wider format will not mend it.",
    NOT_KNOWN: "The step could not be computed in fp64, so the format's part is not known.",
}


def told(found: Autopsy) -> str:
    origin = found.origin
    if origin is None:
        seen = f"loss {found.loss:.4g}, gradient norm {found.grad_norm or 0.0:.4g}"
        finite = isfinite(found.loss) and isfinite(found.grad_norm or 0.0)
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


def _tensor(facts: dict[str, Any]) -> str:
    shape = "x".join(map(str, facts["shape"])) or "scalar"
    finite = facts["absmax"]
    words = "no finite element" if finite is None else f"{facts['min']:.4g} to {facts['max']:.4g}"
    counts = {"NaN": facts["nan"], "Inf": facts["inf"]}
    bad = [f"{n} of {prod(facts['shape'])} {kind}" for kind, n in counts.items() if n]
    return ", ".join([f"{facts['dtype']} {shape}", words, *bad])
