"""Where the first non-finite value was born, as the tables and events tell it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, isinf, isnan, nan

import numpy as np
import pandas as pd

from lnexp.records import Autopsy
from lnexp.results.readings import Gradients, Movement, Underflow
from lnexp.results.statistics import Slope
from lnexp.results.tables import column, numbers

ROLES = ("origin", "", "propagated")  # whom to believe first; empty: not examined


@dataclass(frozen=True)
class Origin:
    """The first non-finite value."""

    step: int
    place: str = ""  # "inf in backward, blocks.3.mlp (aten.mul)"; empty: no event tells


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
    for name in ("grad_norm", "weight_norm", "update_norm"):
        values = numbers(column(steps, name))
        wrong = np.isnan(values) if overflow else ~np.isfinite(values)
        wrong &= column(steps, name).notna().to_numpy()
        if name == "grad_norm":
            wrong = np.where(elements.notna().to_numpy(), numbers(elements) > 0, wrong)
        bad |= wrong & ~skipped
    told = events.to_dict("records")
    # Skips in a row that ended the run were no search: then what they hid counts.
    ended = [event["step"] for event in told if event["kind"] == "skips_in_a_row"]
    unskipped = [
        event
        for event in told
        if event["kind"] in ("nan", "inf")
        and (
            ended
            or event["step"] == recorded
            or not (event["phase"] == "backward" and event["step"] in step[skipped])
        )
    ]
    known = [*step[bad][:1], *ended, *(event["step"] for event in unskipped)]
    if recorded is None and not known:
        return None
    at = int(min(known) if recorded is None else recorded)
    if not unskipped:
        return Origin(at)
    first = min(unskipped, key=lambda e: (e["step"] != at, ROLES.index(e["role"]), e["step"]))
    where = f", {first['module']}" if first["module"] else ""
    op = f" ({first['op']})" if first["op"] else ""
    return Origin(at, f"{first['kind']} in {first['phase']}{where}{op}")


# Why a run did what it did: each cause is read off recorded numbers and shows them.


# First/last block gradient ratio. Runs that learn sit between 0.5 and 10; a 24-block Post-LN that
# stalls passes 1e-2 within 20 steps and goes on to 1e-4 .. 1e-7.
VANISHING = 1e-2
# The same ratio, or the growth of the total gradient norm, that no run that learns comes near.
EXPLODING = 1e2
# Mean cosine between positions above which every token says the same.
RANK_COLLAPSE = 0.99
# A slope below 0 must be so many standard errors away from it.
SLOPE_ERRORS = 2.0
# All updates together, over the norm of the weights: what is below moved nothing that matters. At
# lr 1e-3 a hundred updates come to 7 % and more, at 1e-7 to a hundredth of a percent.
MOVED = 0.01
FEWEST_UPDATES = 20
# Share of elements whose second moment is 0 under a gradient that is not.
UNDERFLOW = 0.1
# Weights of norms by their names in our GPT.
NORM_GAIN = re.compile(r"(norm|before|after|inside)\.weight$")


@dataclass(frozen=True)
class Cause:
    name: str
    evidence: str  # the figures, in a few words


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
    gains_unmoved: bool = False  # none of the norms' gains moved
    movement: Movement | None = None
    underflow: Underflow = Underflow()
    autopsy: Autopsy | None = None


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
    """Whether no weight ever moved."""
    return bool(seen.tensors) and seen.unmoved == seen.tensors


def all_gains(unmoved: Sequence[str], gains: int | None) -> bool:
    """Whether the gains of all norms are among the tensors that never moved."""
    return bool(gains) and sum(bool(NORM_GAIN.search(name)) for name in unmoved) == gains


def frozen(seen: Seen) -> Cause | None:
    if not seen.unmoved:
        return None
    of = "" if seen.tensors is None else f" of {seen.tensors}"
    gains = ", among them all norm gains" if seen.gains_unmoved and not all_frozen(seen) else ""
    return Cause("frozen", f"{seen.unmoved}{of} weight tensors bit-identical to their start{gains}")


def warming_up(seen: Seen) -> Cause | None:
    if seen.warmup <= seen.steps:
        return None
    reached = "" if isnan(seen.highest_lr) else f"lr reached {seen.highest_lr:.2g}, "
    return Cause(
        "warming_up",
        f"{reached}peak {seen.peak_lr:.2g}; warm-up is {seen.warmup} steps, {seen.steps} were done",
    )


def too_slow(seen: Seen) -> Cause | None:
    """Updates that are too small to matter, or a gap that falls below Falling's bar."""
    if all_frozen(seen):
        return None
    found, moved, fit = [], seen.movement, seen.fit
    if moved is not None and moved.updates >= FEWEST_UPDATES and 0 < moved.share < MOVED:
        most = "at most" if moved.every else "about"
        found.append(
            f"{moved.updates} updates moved the weights by {most} {100 * moved.share:.2g} % "
            "of their norm"
        )
    if not seen.falling and fit.value < -SLOPE_ERRORS * fit.error:
        found.append(f"gap falls by {-fit.value:.2g} +- {fit.error:.1g} a step")
    return Cause("too_slow", ", ".join(found)) if found else None


def adam_underflow(seen: Seen) -> Cause | None:
    of = seen.underflow
    found = [of.first] if of.first else []
    if of.share is not None and of.share > UNDERFLOW:
        found.append(f"v = 0 and m != 0 in {of.share:.0%} of all elements at the end")
    if found and of.below_eps is not None:
        found.append(f"sqrt(v) below eps in {of.below_eps:.0%}")
    return Cause("adam_underflow", ", ".join(found)) if found else None


def precision(seen: Seen) -> Cause | None:
    found = "" if seen.autopsy is None else seen.autopsy.in_fp64
    return Cause("precision", found) if found else None


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


ALIVE = (
    vanishing, zero_gradient, rank_collapse, frozen, warming_up, too_slow, exploding,
    adam_underflow,
)  # fmt: skip
UNSTABLE = (exploding, vanishing, zero_gradient, rank_collapse, frozen, adam_underflow)
# Which causes can explain which verdict. A run that learned carries warnings only.
EXPLAIN = {
    "nonfinite": (
        nonfinite_origin, precision, exploding, vanishing, zero_gradient, adam_underflow,
    ),
    "diverged": UNSTABLE,
    "lost": UNSTABLE,
    "spiked": (frozen, adam_underflow),
    "learned": (frozen, adam_underflow),
    "too_short": ALIVE,
    "stalled": ALIVE,
    "plateau": ALIVE,
}  # fmt: skip


def causes(verdict: str, seen: Seen) -> list[Cause]:
    found = [cause(seen) for cause in EXPLAIN.get(verdict, ())]
    return [cause for cause in found if cause is not None]


def has_reason_to_stall(seen: Seen) -> bool:
    return all_frozen(seen) or any(f(seen) for f in (vanishing, zero_gradient, rank_collapse))


def text(value: float) -> str:
    """A figure for a sentence: three digits, non-finite in words of the CSV."""
    if isnan(value) or isinf(value):
        return str(value)
    return f"{value:.3g}"
