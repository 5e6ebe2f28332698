"""What happened to a training, from recorded numbers alone (docs/metrics.md has each formula)."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from lnexp.analysis.autopsy import Autopsy
from lnexp.analysis.causes import (
    Cause,
    Seen,
    all_frozen,
    all_gains,
    causes,
    has_reason_to_stall,
    text,
)
from lnexp.analysis.origin import find_origin
from lnexp.analysis.readings import Gradients, Movement, Underflow, growth
from lnexp.analysis.statistics import (
    end_value,
    median,
    running_median,
    slope,
    spike_score,
    spikes,
)
from lnexp.analysis.table import column, numbers
from lnexp.ends import end_window

# The thresholds of verdicts; those of causes are at the top of causes.py, the spike rule's in
# statistics.spikes.
LEARNED = 0.2  # of H1 - floor: a fifth of what there is to learn beyond letter frequencies
NOTHING_TO_LEARN = 0.05  # nat between H1 and the floor: below it noise decides
DIVERGED = 1.1  # times max(first loss, ln V)
FALLING = 0.005  # of H1, from quarter to quarter: five times the noise of a median of 50 gaps
FEWEST_STEPS = 20  # below this quarters and medians mean nothing

VERDICTS = (
    "nonfinite", "nothing_to_learn", "diverged", "lost", "spiked", "learned", "too_short",
    "stalled", "plateau",
)  # fmt: skip
FAILURES = ("nonfinite", "diverged", "lost", "stalled")
DECIDED = (*FAILURES, "spiked", "learned")


@dataclass(frozen=True)
class Facts:
    """What config.yaml and env.json say that a verdict depends on."""

    ln_v: float
    h1: float
    floor: float  # H2, or the exact entropy rate
    depth: int
    lr: float
    warmup: int = 0
    dynamic_scaling: bool = False
    tensors: int | None = None
    gains: int | None = None  # learned norm gains

    @property
    def bar(self) -> float:
        """The end gap below which a run has learned."""
        return -LEARNED * (self.h1 - self.floor)

    @classmethod
    def of(cls, settings: dict[str, Any], env: dict[str, Any]) -> "Facts":
        """From dotted settings and env.json; KeyError or ValueError where one is missing."""
        scale, precision = settings["train.loss_scale"], settings["train.precision"]
        tensors, norms = env.get("tensors"), env.get("norms")
        return cls(
            ln_v=float(env["ln_v"]),
            h1=float(env["h1"]),
            floor=float(env["floor"]),
            depth=int(settings["model.depth"]),
            lr=float(settings["train.lr"]),
            warmup=int(settings["train.warmup"]),
            dynamic_scaling=scale == "dynamic" or (scale == "auto" and precision == "fp16-mixed"),
            tensors=None if tensors is None else int(tensors),
            gains=None if norms is None else int(norms) * bool(settings["model.affine"]),
        )


@dataclass(frozen=True)
class Outcome:
    """status.json."""

    status: str
    first_bad_step: int | None = None
    steps_done: int | None = None
    seconds: float | None = None
    unmoved: list[str] = field(default_factory=list)
    error: str | None = None
    skipped: int | None = None  # steps without an update
    adam_below_eps: float | None = None  # shares of elements at the end; None: not measured
    adam_underflowed: float | None = None


@dataclass(frozen=True)
class Judgement:
    verdict: str  # empty: the process did not finish, so nothing can be said
    reason: str  # the figures of the rule that fitted, where no cause carries them
    causes: list[Cause]
    numbers: dict[str, float | int | None]  # columns of runs.csv; None: not measured
    horizon: str  # "within 420 steps"

    @property
    def evidence(self) -> str:
        found = [f"{cause.name}: {cause.evidence}" for cause in self.causes]
        return "; ".join([self.reason, *found] if self.reason else found)


def judge(
    steps: pd.DataFrame,
    layers: pd.DataFrame,
    events: pd.DataFrame,
    facts: Facts,
    outcome: Outcome,
    autopsy: Autopsy | None = None,
) -> Judgement:
    """Verdict, causes and key numbers of one run. A verdict needs a finished process."""
    losses, levels = column(steps, "loss"), column(steps, "unigram_loss")
    loss = numbers(losses)[losses.notna()]
    both = (losses.notna() & levels.notna()).to_numpy()
    level = numbers(levels)[both]
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, and may be
        gap = numbers(losses)[both] - level
    gradients = Gradients.of(layers, facts.depth)
    origin = find_origin(steps, events, outcome.first_bad_step, facts.dynamic_scaling)
    done = len(steps) if outcome.steps_done is None else outcome.steps_done
    figures: dict[str, float | int | None] = {
        "first_bad_step": None if origin is None else origin.step,
        "first_loss": float(loss[0]) if len(loss) else None,
        "end_loss": end_value(loss),
        "end_gap": end_value(gap),
        "grad_ratio_step0": gradients.ratio_step0,
        "grad_ratio_end": gradients.ratio_end,
        "update_ratio_end": gradients.update_ratio_end,
        "spike_score": spike_score(loss),
        "steps_done": done,
        "seconds": outcome.seconds,
    }
    horizon = f"within {len(steps)} steps"
    if outcome.status != "finished":
        return Judgement("", outcome.error or "", [], figures, horizon)
    lr = numbers(column(steps, "lr"))
    half = len(gap) // 2
    finite = bool(np.isfinite(gap).all())
    seen = Seen(
        gradients=gradients,
        depth=facts.depth,
        growth=growth(numbers(column(steps, "grad_norm"))),
        unmoved=len(outcome.unmoved),
        tensors=facts.tensors,
        steps=len(steps),
        warmup=facts.warmup,
        peak_lr=facts.lr,
        highest_lr=float(np.nanmax(lr)) if (~np.isnan(lr)).any() else float("nan"),
        falling=fall(gap) > FALLING * facts.h1,
        origin=origin,
        gains_unmoved=all_gains(outcome.unmoved, facts.gains),
        movement=Movement.of(steps),
        underflow=Underflow.of(events, outcome.adam_underflowed, outcome.adam_below_eps),
        autopsy=autopsy,
        **({"fit": slope(np.arange(half), gap[-half:], level[-half:])} if half and finite else {}),
    )
    verdict, reason = _first_rule_that_fits(loss, gap, facts, seen)
    return Judgement(verdict, reason, causes(verdict, seen), figures, horizon)


def fall(gap: np.ndarray) -> float:
    """How far the median gap of the last quarter lies below that of the quarter before."""
    quarter = len(gap) // 4
    before, last = median(gap[-2 * quarter : -quarter]), median(gap[-quarter:])
    return 0.0 if not quarter or before is None or last is None else before - last


def _first_rule_that_fits(
    loss: np.ndarray, gap: np.ndarray, facts: Facts, seen: Seen
) -> tuple[str, str]:
    if seen.origin is not None:
        return "nonfinite", ""
    if facts.h1 - facts.floor < NOTHING_TO_LEARN:
        room = facts.h1 - facts.floor
        return "nothing_to_learn", f"letter frequencies leave {text(room)} nat to learn"
    end_loss, end_gap = end_value(loss), end_value(gap)
    if end_loss is None or end_gap is None:
        return "too_short", "no step was recorded"
    limit = DIVERGED * max(float(loss[0]), facts.ln_v)
    if end_loss > limit:
        return "diverged", f"end loss {text(end_loss)} above {text(limit)}"
    bar = facts.bar
    if end_gap >= bar:
        best = running_median(gap, end_window(len(gap)))
        if len(best) and best.min() < bar:
            at = int(best.argmin()) + end_window(len(gap)) - 1
            return "lost", f"gap {text(best.min())} by step {at}, {text(end_gap)} at the end"
        return _not_learned(gap, end_gap, bar, seen)
    jumps = spikes(gap)
    if jumps:
        at, rise = max(jumps, key=lambda jump: jump[1])
        return "spiked", f"gap jumped by {text(rise)} at step {at}"
    return "learned", ""


def _not_learned(gap: np.ndarray, end_gap: float, bar: float, seen: Seen) -> tuple[str, str]:
    if len(gap) < FEWEST_STEPS:
        return "too_short", f"{len(gap)} steps only"
    if seen.falling and not all_frozen(seen):  # weights that never moved: luck of the batches
        return "too_short", f"gap still fell by {text(fall(gap))} in the last quarter"
    if has_reason_to_stall(seen):
        return "stalled", ""
    return "plateau", f"gap {text(end_gap)}, bar {text(bar)}"
