"""Why a run did what it did: each cause is read off recorded numbers and shows them.

The thresholds stand at the top; the first non-finite value is found before the causes are.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan

import numpy as np
import pandas as pd

from lnexp.records import Autopsy
from lnexp.results.readings import Gradients, Movement, Underflow
from lnexp.results.statistics import Slope
from lnexp.results.tables import column, numbers

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
    rows = events.to_dict("records")
    # Skips in a row that ended the run were no search: then what they hid counts.
    ended = [event["step"] for event in rows if event["kind"] == "skips_in_a_row"]
    unskipped = [
        event
        for event in rows
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
    module = f", {first['module']}" if first["module"] else ""
    op = f" ({first['op']})" if first["op"] else ""
    return Origin(at, f"{first['kind']} in {first['phase']}{module}{op}")


@dataclass(frozen=True)
class Cause:
    name: str
    evidence: str  # the figures, in a few words


@dataclass(frozen=True)
class Symptoms:
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
    fit: Slope = Slope()
    falling: bool = False
    origin: Origin | None = None
    gains_unmoved: bool = False  # none of the norms' gains moved
    movement: Movement | None = None
    underflow: Underflow = Underflow()
    autopsy: Autopsy | None = None


def vanishing(run: Symptoms) -> Cause | None:
    ratio, update = run.gradients.ratio_end, run.gradients.update_ratio_end
    if ratio is None or isnan(ratio) or ratio >= VANISHING:
        return None
    beside = "" if update is None else f", update {update:.2g}"
    return Cause("vanishing", f"first/last block gradient {ratio:.2g}{beside}")


def zero_gradient(run: Symptoms) -> Cause | None:
    blocks = run.gradients.zero_blocks
    if not blocks:
        return None
    return Cause("zero_gradient", f"gradient exactly 0 in {blocks} of {run.depth} blocks")


def rank_collapse(run: Symptoms) -> Cause | None:
    cosine = run.gradients.token_cosine
    if cosine is None or not cosine > RANK_COLLAPSE:
        return None
    return Cause("rank_collapse", f"cosine between tokens {cosine:.4f} in the last block")


def all_frozen(run: Symptoms) -> bool:
    """Whether no weight ever moved."""
    return bool(run.tensors) and run.unmoved == run.tensors


def all_gains(unmoved: Sequence[str], gains: int | None) -> bool:
    """Whether the gains of all norms are among the tensors that never moved."""
    return bool(gains) and sum(bool(NORM_GAIN.search(name)) for name in unmoved) == gains


def frozen(run: Symptoms) -> Cause | None:
    if not run.unmoved:
        return None
    whole = "" if run.tensors is None else f" of {run.tensors}"
    gains = ", among them all norm gains" if run.gains_unmoved and not all_frozen(run) else ""
    return Cause(
        "frozen", f"{run.unmoved}{whole} weight tensors bit-identical to their start{gains}"
    )


def warming_up(run: Symptoms) -> Cause | None:
    if run.warmup <= run.steps:
        return None
    reached = "" if isnan(run.highest_lr) else f"lr reached {run.highest_lr:.2g}, "
    return Cause(
        "warming_up",
        f"{reached}peak {run.peak_lr:.2g}; warm-up is {run.warmup} steps, {run.steps} were done",
    )


def too_slow(run: Symptoms) -> Cause | None:
    """Updates that are too small to matter, or a gap that falls below Falling's bar."""
    if all_frozen(run):
        return None
    signs, moved, fit = [], run.movement, run.fit
    if moved is not None and moved.updates >= FEWEST_UPDATES and 0 < moved.share < MOVED:
        most = "at most" if moved.every else "about"
        signs.append(
            f"{moved.updates} updates moved the weights by {most} {100 * moved.share:.2g} % "
            "of their norm"
        )
    if not run.falling and fit.value < -SLOPE_ERRORS * fit.error:
        signs.append(f"gap falls by {-fit.value:.2g} +- {fit.error:.1g} a step")
    return Cause("too_slow", ", ".join(signs)) if signs else None


def adam_underflow(run: Symptoms) -> Cause | None:
    vanished = run.underflow
    signs = [vanished.first] if vanished.first else []
    if vanished.share is not None and vanished.share > UNDERFLOW:
        signs.append(f"v = 0 and m != 0 in {vanished.share:.0%} of all elements at the end")
    if signs and vanished.below_eps is not None:
        signs.append(f"sqrt(v) below eps in {vanished.below_eps:.0%}")
    return Cause("adam_underflow", ", ".join(signs)) if signs else None


def precision(run: Symptoms) -> Cause | None:
    finite = "" if run.autopsy is None else run.autopsy.in_fp64
    return Cause("precision", finite) if finite else None


def exploding(run: Symptoms) -> Cause | None:
    ratio, signs = run.gradients.ratio_end, []
    if ratio is not None and isfinite(ratio) and ratio > EXPLODING:  # inf: the last one is 0
        signs.append(f"first/last block gradient {ratio:.2g}")
    if run.growth is not None and run.growth > EXPLODING:
        signs.append(f"gradient norm grew {run.growth:.2g} times")
    return Cause("exploding", ", ".join(signs)) if signs else None


def nonfinite_origin(run: Symptoms) -> Cause | None:
    if run.origin is None:
        return None
    place = run.origin.place or "non-finite value"
    return Cause("nonfinite_origin", f"{place} at step {run.origin.step}")


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


def causes(verdict: str, run: Symptoms) -> list[Cause]:
    return [cause for judge in EXPLAIN.get(verdict, ()) if (cause := judge(run)) is not None]


def has_reason_to_stall(run: Symptoms) -> bool:
    return all_frozen(run) or any(judge(run) for judge in (vanishing, zero_gradient, rank_collapse))


def text(value: float) -> str:
    """A figure for a sentence: three digits, non-finite in words of the CSV."""
    return f"{value:.3g}"
