"""What happened to a training, from recorded numbers alone (docs/metrics.md has each formula).

A loss is compared with a baseline: letter frequencies on the same letters where they are known,
else one level that the user gives, else the run's own first loss.
"""

from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import pandas as pd

from lnexp.messages import amount
from lnexp.records import Autopsy, Status
from lnexp.results.causes import (
    Cause,
    Symptoms,
    all_frozen,
    all_gains,
    causes,
    find_origin,
    has_reason_to_stall,
    text,
)
from lnexp.results.readings import Gradients, Movement, Underflow, growth
from lnexp.results.statistics import (
    Slope,
    end_value,
    median,
    running_median,
    slope,
    spike_score,
    spikes,
)
from lnexp.results.tables import column, numbers
from lnexp.rows import end_window

# The thresholds of verdicts; those of causes are at the top of causes.py, the spike rule's in
# statistics.spikes.
LEARNED = 0.2  # of H1 - floor: a fifth of what there is to learn beyond letter frequencies
NOTHING_TO_LEARN = 0.05  # nat between H1 and the floor: below it noise decides
BELOW = 0.95  # of the level: where one level is all there is, an end loss below this is learning
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
class Baseline:
    """loss - level is the gap that verdicts are made on."""

    level: np.ndarray  # one a loss
    scale: float  # H1, or the level in its place
    bar: float  # the end gap below which a run has learned
    given: bool = True  # False: the first loss stands in

    @property
    def mark(self) -> str:
        return "" if self.given else " (no baseline)"

    def words(self, gap: float) -> tuple[str, float]:
        """A gap's name and figure; without a baseline the loss itself."""
        return ("gap", gap) if self.given else ("loss", gap + self.scale)


def constant_baseline(loss: np.ndarray, nats: float | None) -> Baseline:
    """One level for all steps: `nats`, or the first finite loss; learned below 0.95 of it."""
    finite = loss[np.isfinite(loss)]
    level = nats if nats is not None else float(finite[0]) if len(finite) else np.nan
    return Baseline(np.full(len(loss), level), level, (BELOW - 1) * level, nats is not None)


def baseline_by_step(level: np.ndarray) -> Baseline:
    """One level a step, as its user gave it; learned below 0.95 of their mean."""
    mean = float(level.mean()) if len(level) else np.nan
    return Baseline(level, mean, (BELOW - 1) * mean)


def no_baseline(loss: np.ndarray, end: float | None) -> str:
    """What a run is judged on where there is none."""
    if end is None or not np.isfinite(end) or not np.isfinite(loss[0]) or loss[0] == 0:
        return "no baseline"
    return f"no baseline: end loss {end / loss[0]:.3g} of the first, learned below {BELOW:g}"


@dataclass(frozen=True)
class Facts:
    """What config.yaml and env.json say that a verdict depends on."""

    ln_v: float | None  # None, as h1 and floor: not known of an imported run
    h1: float | None
    floor: float | None  # H2, or the exact entropy rate
    depth: int
    lr: float
    warmup: int = 0
    dynamic_scaling: bool = False
    tensors: int | None = None
    gains: int | None = None  # learned norm gains
    given_by_step: bool = False  # a watched run's baseline stands where unigram_loss does

    def baseline(self, loss: np.ndarray, unigram_loss: np.ndarray) -> Baseline:
        """Of the steps that have both; without levels by step, of all that have a loss."""
        if self.given_by_step:
            return baseline_by_step(unigram_loss)
        if self.h1 is None or self.floor is None:
            return constant_baseline(loss, self.h1)
        return Baseline(unigram_loss, self.h1, -LEARNED * (self.h1 - self.floor))

    @classmethod
    def of(cls, settings: dict[str, Any], env: dict[str, Any]) -> "Facts":
        """From dotted settings and env.json; KeyError or ValueError where one is missing."""
        if "imported" in env:
            lr, h1 = settings.get("train.lr"), env.get("h1")
            return cls(None, None if h1 is None else float(h1), None, depth=0, lr=float(lr or 0))
        if env.get("watched"):
            return cls(
                ln_v=None,
                h1=None,
                floor=None,
                depth=int(settings["model.depth"]),
                lr=float(settings["train.lr"]),
                dynamic_scaling=settings["train.loss_scale"] == "dynamic",
                tensors=int(env["tensors"]),
                given_by_step=env["baseline"] is not None,
            )
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
class Judgement:
    verdict: str  # empty: the process did not finish, so nothing can be said
    reason: str  # the figures of the rule that fitted, where no cause carries them
    causes: list[Cause]
    numbers: dict[str, float | int | None]  # columns of runs.csv; None: not measured
    horizon: str  # "within 420 steps"
    bar: float = nan  # the end gap below which the run has learned

    @property
    def evidence(self) -> str:
        figures = [f"{cause.name}: {cause.evidence}" for cause in self.causes]
        return "; ".join([self.reason, *figures] if self.reason else figures)


def judge(
    steps: pd.DataFrame,
    layers: pd.DataFrame,
    events: pd.DataFrame,
    facts: Facts,
    process: Status,
    autopsy: Autopsy | None = None,
) -> Judgement:
    """Verdict, causes and key numbers of one run. A verdict needs a finished process."""
    losses, levels = column(steps, "loss"), column(steps, "unigram_loss")
    loss = numbers(losses)[losses.notna()]
    by_step = facts.floor is not None or facts.given_by_step
    both = (losses.notna() & (levels.notna() | (not by_step))).to_numpy(dtype=bool)
    at = column(steps, "step").to_numpy()[both]
    baseline = facts.baseline(numbers(losses)[both], numbers(levels)[both])
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, and may be
        gap = numbers(losses)[both] - baseline.level
    gradients = Gradients.of(layers, facts.depth)
    origin = find_origin(steps, events, process.first_bad_step, facts.dynamic_scaling)
    done = process.steps_done or len(steps)
    figures: dict[str, float | int | None] = {
        "first_bad_step": None if origin is None else origin.step,
        "first_loss": float(loss[0]) if len(loss) else None,
        "end_loss": end_value(loss),
        "end_gap": end_value(gap) if baseline.given else None,
        "grad_ratio_step0": gradients.ratio_step0,
        "grad_ratio_end": gradients.ratio_end,
        "update_ratio_end": gradients.update_ratio_end,
        "spike_score": spike_score(loss),
        "steps_done": done,
        "seconds": process.seconds or None,
    }
    horizon = f"within {done} steps"
    if process.status != "finished":
        return Judgement("", process.error or "", [], figures, horizon, baseline.bar)
    lr = numbers(column(steps, "lr"))
    half = -(len(gap) // 2)
    finite = bool(np.isfinite(gap).all())
    symptoms = Symptoms(
        gradients=gradients,
        depth=facts.depth,
        growth=growth(numbers(column(steps, "grad_norm"))),
        unmoved=len(process.unmoved),
        tensors=facts.tensors,
        steps=len(steps),
        warmup=facts.warmup,
        peak_lr=facts.lr,
        highest_lr=nan if np.isnan(lr).all() else float(np.nanmax(lr)),
        fit=slope(at[half:], gap[half:], baseline.level[half:]) if finite else Slope(),
        falling=fall(gap) > FALLING * baseline.scale,
        origin=origin,
        gains_unmoved=all_gains(process.unmoved, facts.gains),
        movement=Movement.of(steps),
        underflow=Underflow.of(events, process.adam_underflowed, process.adam_below_eps),
        autopsy=autopsy,
    )
    verdict, reason = _first_rule_that_fits(loss, gap, at, facts, baseline, symptoms)
    if not baseline.given:
        reason = "; ".join([reason] * bool(reason) + [no_baseline(loss, end_value(loss))])
    return Judgement(verdict, reason, causes(verdict, symptoms), figures, horizon, baseline.bar)


def fall(gap: np.ndarray) -> float:
    """How far the median gap of the last quarter lies below that of the quarter before."""
    quarter = len(gap) // 4
    before, last = median(gap[-2 * quarter : -quarter]), median(gap[-quarter:])
    return 0.0 if not quarter or before is None or last is None else before - last


def _first_rule_that_fits(
    loss: np.ndarray,
    gap: np.ndarray,
    at: np.ndarray,
    facts: Facts,
    baseline: Baseline,
    symptoms: Symptoms,
) -> tuple[str, str]:
    """`at`: the step of each gap."""
    if symptoms.origin is not None:
        return "nonfinite", ""
    if facts.h1 is not None and facts.floor is not None:
        room = facts.h1 - facts.floor
        if room < NOTHING_TO_LEARN:
            return "nothing_to_learn", f"letter frequencies leave {text(room)} nat to learn"
    end_loss, end_gap = end_value(loss), end_value(gap)
    if end_loss is None or end_gap is None:
        return "too_short", "no step was recorded"
    limit = DIVERGED * max(float(loss[0]), facts.ln_v or 0.0)
    if end_loss > limit:
        return "diverged", f"end loss {text(end_loss)} above {text(limit)}"
    bar = baseline.bar
    if end_gap >= bar:
        best = running_median(gap, end_window(len(gap)))
        if len(best) and best.min() < bar:
            by = int(at[int(best.argmin()) + end_window(len(gap)) - 1])
            name, low = baseline.words(best.min())
            end = text(baseline.words(end_gap)[1])
            return "lost", f"{name} {text(low)} by step {by}, {end} at the end{baseline.mark}"
        return _not_learned(gap, end_gap, baseline, symptoms)
    jumps = spikes(gap)
    if jumps:
        index, rise = max(jumps, key=lambda jump: jump[1])
        name, _ = baseline.words(0.0)
        return "spiked", f"{name} jumped by {text(rise)} at step {at[index]}{baseline.mark}"
    if not baseline.given:
        return "learned", f"end loss {text(end_loss)}, first {text(loss[0])}{baseline.mark}"
    return "learned", ""


def _not_learned(
    gap: np.ndarray, end_gap: float, baseline: Baseline, symptoms: Symptoms
) -> tuple[str, str]:
    name, end = baseline.words(end_gap)
    if len(gap) < FEWEST_STEPS:
        return "too_short", f"{amount(len(gap), 'step')} only"
    if symptoms.falling and not all_frozen(symptoms):  # frozen: luck of the batches
        still = f"{name} still fell by {text(fall(gap))} in the last quarter"
        return "too_short", still + baseline.mark
    if has_reason_to_stall(symptoms):
        return "stalled", ""
    bar = text(baseline.words(baseline.bar)[1])
    return "plateau", f"{name} {text(end)}, bar {bar}{baseline.mark}"
