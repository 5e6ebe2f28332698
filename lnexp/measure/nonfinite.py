"""Norms that can be trusted, and what is said when a value is not finite."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import hypot, inf, isfinite, isnan, nan

import torch
from torch import Tensor

from lnexp.rows import Column, EventRow, Phase

# One call for a list of tensors; a private name of torch, looked up here alone.
_foreach_norm: Callable[..., tuple[Tensor, ...]] = getattr(torch, "_foreach_norm")  # noqa: B009

HALF = (torch.float16, torch.bfloat16)
TINY = 1e-15  # squares of smaller elements may have underflowed in fp32
# Dynamic scaling halves from 65536: after 25 skips in a row the scale is 0.002 and no smaller
# scale will help, because a scale below 1 has not.
MOST_SKIPS = 25


@dataclass(frozen=True, slots=True)
class StepReading:
    """What a probe reads of a step before its update."""

    loss: float
    unigram_loss: float
    norms: list[float]  # of each tensor's gradient; empty where the total alone was read
    grad_norm: float
    overflowed: list[int]  # tensors of finite elements whose norm left their type
    nonfinite: int  # elements
    columns: list[Column] = field(default_factory=list)  # of layers.csv
    # Of norms, tokens whose output is 0 where their input is not (level full).
    silenced: dict[str, int] = field(default_factory=dict)


def mended(norms: Sequence[float], tensors: Sequence[Tensor]) -> tuple[list[float], list[int]]:
    """Norms taken in the tensors' own type, with those that came out 0, tiny or not finite taken
    again in fp64; and the positions of those that were too large for their type alone.

    A 0 then means that every element is 0, and inf or nan that an element is.
    """
    result, overflowed = list(norms), []
    # Of thousands none, as a rule; a nan among them makes the sum nan.
    if not result or (trusted(min(result)) and sum(result) < inf):
        return result, overflowed
    for i, value in enumerate(norms):
        if not trusted(value):
            result[i] = exact_norm(tensors[i])
            if isfinite(result[i]) and not isfinite(value):
                overflowed.append(i)
    return result, overflowed


def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """L2 norms; of half-precision tensors taken and returned in fp32."""
    if not tensors:
        return []
    wide = torch.float32 if any(t.dtype in HALF for t in tensors) else None
    if wide and any(t.dtype == torch.float64 for t in tensors):
        wide = torch.float64
    return list(_foreach_norm(list(tensors), 2, dtype=wide))


def total_norm(vectors: Sequence[Tensor]) -> Tensor:
    """L2 norm over all flattened tensors, 0-d, in fp32 or wider: one copy and one reduction,
    whatever their number."""
    devices = {vector.device for vector in vectors}
    if len(devices) > 1:
        each = [total_norm([v for v in vectors if v.device == device]) for device in devices]
        return torch.linalg.vector_norm(stacked(each))
    flat = torch.cat(list(vectors))
    wide = torch.float32 if flat.dtype in HALF else flat.dtype
    return torch.linalg.vector_norm(flat, dtype=wide)


def stacked(
    tensors: Sequence[Tensor], how: Callable[[list[Tensor]], Tensor] = torch.stack
) -> Tensor:
    """On one device, whichever theirs are."""
    first = tensors[0].device
    return how([t if t.device == first else t.to(first) for t in tensors])


def flat_view(tensor: Tensor) -> Tensor:
    """Its elements as a vector over the same memory, in the order they lie there."""
    tensor = tensor.detach()
    if tensor.is_contiguous():
        return tensor.view(-1)
    order = sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))
    return tensor.permute(order).view(-1)


def trusted(norm: float) -> bool:
    """Neither 0, tiny nor non-finite: such a norm is taken again, tensor by tensor, in fp64."""
    return TINY <= norm < inf


def exact_norm(tensor: Tensor) -> float:
    """L2 norm in fp64, scaled by the largest element so that no square leaves the format."""
    wide = tensor.detach().double()
    largest = float(wide.abs().max()) if wide.numel() else 0.0
    if largest == 0 or not isfinite(largest):
        return largest
    return largest * float((wide / largest).norm())


def total(norms: Sequence[float]) -> float:
    """Root of the summed squares; nan wins over inf."""
    value = hypot(*norms)
    return value if isfinite(value) or not any(isnan(norm) for norm in norms) else nan


def kind_of(value: float) -> str:
    return "nan" if isnan(value) else "inf"


def nonfinite_elements(tensors: Sequence[Tensor]) -> int:
    return sum(int((~torch.isfinite(tensor)).sum()) for tensor in tensors)


def reading_events(step: int, names: Sequence[str], reading: StepReading) -> list[EventRow]:
    """Overflowed norms, gradients that are 0, NaN and Inf; norms that turned tokens into 0, because
    the squares overflowed."""
    events = [
        EventRow(step, "backward", "norm_overflow", module=names[i], detail="finite elements")
        for i in reading.overflowed
    ]
    events += [
        EventRow(step, "backward", "zero_gradient", module=name, detail="every element is 0")
        for name, norm in zip(names, reading.norms, strict=bool(reading.norms))
        if norm == 0
    ]
    if not isfinite(reading.loss):
        events.append(EventRow(step, "loss", kind_of(reading.loss), module="loss"))
    if not isfinite(reading.grad_norm):
        events += nonfinite_events(step, "backward", names, reading.norms)
    events += [
        EventRow(step, "forward", "zero_norm_output", module=module, detail=f"{count} tokens")
        for module, count in reading.silenced.items()
        if count
    ]
    return events


def scaler_events(
    step: int, events: Sequence[EventRow], skipped: bool, skips_in_a_row: int
) -> list[EventRow]:
    """`events` under a dynamic loss scale: a step that it skips is no failure, until no scale
    helps."""
    if skipped:
        detail = "step skipped: gradients overflowed"
        skip = EventRow(step, "optimizer", "scaler_skip", detail=detail)
        events = [*without_values(events), skip]
    if skips_in_a_row >= MOST_SKIPS:
        detail = f"{skips_in_a_row} skips in a row: no loss scale helps"
        events = [*events, EventRow(step, "optimizer", "skips_in_a_row", detail=detail)]
    return list(events)


def without_values(events: Sequence[EventRow]) -> list[EventRow]:
    return [event for event in events if event.kind not in ("nan", "inf")]


def unseen(events: Sequence[EventRow], seen: set[tuple[str, str]]) -> list[EventRow]:
    """The first of each kind and module; they are `seen` from now on."""
    first = [event for event in events if (event.kind, event.module) not in seen]
    seen.update((event.kind, event.module) for event in first)
    return first


def nonfinite_events(
    step: int, phase: Phase, names: Sequence[str], norms: Sequence[float]
) -> list[EventRow]:
    """One row a kind. Backward runs from the head to the embedding: the tensor named is the last
    in forward order, where the value arrived first."""
    rows = []
    for kind in ("nan", "inf"):
        hit = [
            name
            for name, norm in zip(names, norms, strict=True)
            if not isfinite(norm) and kind_of(norm) == kind
        ]
        if hit:
            rows.append(
                EventRow(
                    step=step,
                    phase=phase,
                    kind=kind,
                    module=hit[-1] if phase == "backward" else hit[0],
                    detail=f"in {len(hit)} of {len(names)} tensors",
                )
            )
    return rows
