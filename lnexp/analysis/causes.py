"""Why a run did what it did: each cause is read off recorded numbers and shows them."""

from dataclasses import dataclass, field
from math import ceil, inf, isfinite, isinf, isnan, nan

import numpy as np
import pandas as pd

from lnexp.analysis.statistics import Slope, median
from lnexp.analysis.table import column, numbers

# Readings that End speaks of for gradients and updates.
LAST_READINGS = 0.2
# First/last block gradient ratio. Runs that learn sit between 0.5 and 10; a 24-block Post-LN that
# stalls passes 1e-2 within 20 steps and goes on to 1e-4 .. 1e-7.
VANISHING = 1e-2
# The same ratio, or the growth of the total gradient norm, that no run that learns comes near.
EXPLODING = 1e2
# Mean cosine between positions above which every token says the same.
RANK_COLLAPSE = 0.99
# A slope below 0 must be so many standard errors away from it.
SLOPE_ERRORS = 2.0

BLOCK_PARTS = ("attn", "mlp", "norm")


@dataclass(frozen=True)
class Cause:
    name: str
    evidence: str  # the figures, in a few words


@dataclass(frozen=True)
class Origin:
    """The first non-finite value."""

    step: int
    place: str = ""  # "inf in backward, blocks.3.mlp (aten.mul)"; empty: no event tells


def last_readings(values: np.ndarray) -> np.ndarray:
    """The last 20 % along the first axis, at least one."""
    return values[len(values) - ceil(LAST_READINGS * len(values)) :]


def block_norms(layers: pd.DataFrame, name: str, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and norms[reading, block] = root of the sum of the squares over the block's parts.

    A block without a reading in a step is NaN there; steps without any are left out.
    """
    values = column(layers, name)
    part, layer = column(layers, "part"), column(layers, "layer").to_numpy()
    use = part.isin(BLOCK_PARTS).to_numpy() & values.notna().to_numpy()
    use &= (layer >= 0) & (layer < depth)
    steps, reading = np.unique(column(layers, "step").to_numpy()[use], return_inverse=True)
    norms = np.full((len(steps), depth), nan)
    at = (reading, layer[use])
    norms[at] = 0.0
    np.hypot.at(norms, at, numbers(values)[use])  # hypot: squares of 1e-200 must not become 0
    return steps, norms


def ratios(norms: np.ndarray) -> np.ndarray:
    """First over last block; NaN where one is non-finite, 0/0 left out, x/0 is inf."""
    if norms.shape[1] < 2 or not len(norms):
        return np.empty(0)
    first, last = norms[:, 0], norms[:, -1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(np.isfinite(first) & np.isfinite(last), first / last, nan)
    return ratio[~((first == 0) & (last == 0))]


@dataclass(frozen=True)
class Gradients:
    """What layers.csv says about the blocks of one run. None: not measured."""

    ratio_step0: float | None = None
    ratio_end: float | None = None
    update_ratio_end: float | None = None
    zero_blocks: int = 0  # blocks whose last gradients are exactly 0
    token_cosine: float | None = None  # of the last block

    @classmethod
    def of(cls, layers: pd.DataFrame, depth: int) -> "Gradients":
        steps, grads = block_norms(layers, "grad_norm", depth)
        _, updates = block_norms(layers, "update_norm", depth)
        zero = np.median(last_readings(grads), axis=0) == 0 if len(grads) else np.zeros(0)
        cosine = numbers(column(layers, "token_cosine"))
        mine = (column(layers, "part") == "mlp") & (column(layers, "layer") == depth - 1)
        cosine = cosine[mine.to_numpy() & column(layers, "token_cosine").notna().to_numpy()]
        return cls(
            ratio_step0=median(ratios(grads[steps == 0])),
            ratio_end=median(ratios(last_readings(grads))),
            update_ratio_end=median(ratios(last_readings(updates))),
            zero_blocks=int(zero.sum()),
            token_cosine=median(last_readings(cosine)),
        )


def growth(grad_norm: np.ndarray) -> float | None:
    """Largest finite gradient norm among the last 20 % of readings over the first reading."""
    finite = grad_norm[np.isfinite(grad_norm)]
    if len(finite) < 2 or finite[0] == 0:
        return None
    return float(last_readings(finite).max() / finite[0])


@dataclass(frozen=True)
class Seen:
    """All that causes are judged on."""

    gradients: Gradients
    depth: int
    growth: float | None = None
    unmoved: int = 0
    tensors: int | None = None
    steps: int = 0
    warmup: int = 0
    peak_lr: float = 0.0
    highest_lr: float = nan
    fit: Slope = field(default_factory=lambda: Slope(nan, inf))
    falling: bool = False
    origin: Origin | None = None


def vanishing(seen: Seen) -> Cause | None:
    ratio, update = seen.gradients.ratio_end, seen.gradients.update_ratio_end
    if ratio is None or isnan(ratio) or ratio >= VANISHING:
        return None
    beside = "" if update is None else f", update {update:.2g}"
    return Cause("vanishing", f"first/last block gradient {ratio:.2g}{beside}")


def zero_gradient(seen: Seen) -> Cause | None:
    blocks = seen.gradients.zero_blocks
    if not blocks:
        return None
    return Cause("zero_gradient", f"gradient exactly 0 in {blocks} of {seen.depth} blocks")


def rank_collapse(seen: Seen) -> Cause | None:
    cosine = seen.gradients.token_cosine
    if cosine is None or not cosine > RANK_COLLAPSE:
        return None
    return Cause("rank_collapse", f"cosine between tokens {cosine:.4f} in the last block")


def all_frozen(seen: Seen) -> bool:
    return bool(seen.tensors) and seen.unmoved == seen.tensors


def frozen(seen: Seen) -> Cause | None:
    if not seen.unmoved:
        return None
    of = "" if seen.tensors is None else f" of {seen.tensors}"
    return Cause("frozen", f"{seen.unmoved}{of} weight tensors bit-identical to their start")


def warming_up(seen: Seen) -> Cause | None:
    if seen.warmup <= seen.steps:
        return None
    reached = "" if isnan(seen.highest_lr) else f"lr reached {seen.highest_lr:.2g}, "
    return Cause(
        "warming_up",
        f"{reached}peak {seen.peak_lr:.2g}; warm-up is {seen.warmup} steps, {seen.steps} were done",
    )


def too_slow(seen: Seen) -> Cause | None:
    fit = seen.fit
    if seen.falling or not fit.value < -SLOPE_ERRORS * fit.error:
        return None
    return Cause("too_slow", f"gap falls by {-fit.value:.2g} +- {fit.error:.1g} a step")


def exploding(seen: Seen) -> Cause | None:
    ratio = seen.gradients.ratio_end
    found = []
    if ratio is not None and isfinite(ratio) and ratio > EXPLODING:  # inf: the last one is 0
        found.append(f"first/last block gradient {ratio:.2g}")
    if seen.growth is not None and seen.growth > EXPLODING:
        found.append(f"gradient norm grew {seen.growth:.2g} times")
    return Cause("exploding", ", ".join(found)) if found else None


def nonfinite_origin(seen: Seen) -> Cause | None:
    if seen.origin is None:
        return None
    place = seen.origin.place or "non-finite value"
    return Cause("nonfinite_origin", f"{place} at step {seen.origin.step}")


ALIVE = (vanishing, zero_gradient, rank_collapse, frozen, warming_up, too_slow, exploding)
# Which causes can explain which verdict. A run that learned carries warnings only.
EXPLAIN = {
    "nonfinite": (nonfinite_origin, exploding, vanishing, zero_gradient),
    "diverged": (exploding, vanishing, zero_gradient, rank_collapse, frozen),
    "lost": (exploding, vanishing, zero_gradient, rank_collapse, frozen),
    "spiked": (frozen,),
    "learned": (frozen,),
    "too_short": ALIVE,
    "stalled": ALIVE,
    "plateau": ALIVE,
}


def causes(verdict: str, seen: Seen) -> list[Cause]:
    found = [cause(seen) for cause in EXPLAIN.get(verdict, ())]
    return [cause for cause in found if cause is not None]


def has_reason_to_stall(seen: Seen) -> bool:
    return all_frozen(seen) or any(f(seen) for f in (vanishing, zero_gradient, rank_collapse))


def find_origin(
    steps: pd.DataFrame, events: pd.DataFrame, recorded: int | None, dynamic_scaling: bool
) -> Origin | None:
    """The first NaN or Inf in a loss, gradient or parameter; `recorded`: what status.json says."""
    step = column(steps, "step").to_numpy()
    loss = numbers(column(steps, "loss"))
    bad = ~np.isfinite(loss) & column(steps, "loss").notna().to_numpy()
    # What dynamic loss scaling skips is its search for a scale, as long as the loss is a number.
    skipped = dynamic_scaling & (numbers(column(steps, "skipped")) == 1) & ~bad
    # A norm can overflow over finite elements: then only NaN counts.
    kinds = column(events, "kind")
    overflow = bool((kinds == "norm_overflow").any())
    elements = column(steps, "nonfinite_grads")
    for name in ("val_loss", "grad_norm", "weight_norm", "update_norm"):
        values = numbers(column(steps, name))
        wrong = np.isnan(values) if overflow else ~np.isfinite(values)
        wrong &= column(steps, name).notna().to_numpy()
        if name == "grad_norm":
            wrong = np.where(elements.notna().to_numpy(), numbers(elements) > 0, wrong)
        bad |= wrong & ~skipped
    unskipped = [
        event
        for event in events.to_dict("records")
        if event["kind"] in ("nan", "inf")
        and not (event["phase"] == "backward" and event["step"] in step[skipped])
    ]
    known = [*step[bad][:1], *(event["step"] for event in unskipped)]
    if recorded is None and not known:
        return None
    at = int(min(known) if recorded is None else recorded)
    if not unskipped:
        return Origin(at)
    first = min(unskipped, key=lambda event: (event["role"] == "propagated", event["step"]))
    where = f", {first['module']}" if first["module"] else ""
    op = f" ({first['op']})" if first["op"] else ""
    return Origin(at, f"{first['kind']} in {first['phase']}{where}{op}")


def text(value: float) -> str:
    """A figure for a sentence: three digits, non-finite in words of the CSV."""
    if isnan(value) or isinf(value):
        return str(value)
    return f"{value:.3g}"
