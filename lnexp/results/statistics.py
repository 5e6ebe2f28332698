"""Statistics, each in one place and each tested against a naive computation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, nan, sqrt
from statistics import NormalDist

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view

from lnexp.rows import end_window

# 1.4826 x MAD estimates the standard deviation of a normal variable.
MAD_TO_SIGMA = 1.4826

# Losses near the largest float: what overflows is inf, which no rule calls a spike or a slope.
LARGE = np.errstate(over="ignore", invalid="ignore")


def wilson(successes: float, total: float, confidence: float = 0.95) -> tuple[float, float]:
    """The p with |successes/total - p| = z sqrt(p (1 - p) / total) (Wilson 1927); (0, 1) if none.

    Its limits never leave 0 .. 1, and 0 of n still has an upper limit above 0.
    """
    if total == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / total
    center = share + z * z / (2 * total)
    half = z * sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    low = 0.0 if successes == 0 else (center - half) / scale
    high = 1.0 if successes == total else (center + half) / scale
    return low, high


@dataclass(frozen=True)
class SurvivalPoint:
    """After `step` steps (0: before the first)."""

    step: int
    share: float
    low: float
    high: float
    at_risk: int  # runs that got so far


def survival(done: Sequence[int], bad: Sequence[int | None]) -> list[SurvivalPoint]:
    """Kaplan and Meier's estimate: the product over steps of 1 - failures / runs at risk.

    `done`: steps of each run; `bad`: the step whose values were the first that were not finite.
    A run that ended without one counts as long as it was there. Interval: Wilson's, for
    at_risk / share runs (Dorey and Korn 1987); without early ends that is all of them. The points
    are where the estimate falls, the first and the last step.
    """
    failures = [None if born is None else born + 1 for born in bad]
    ends = [end or steps for steps, end in zip(done, failures, strict=True)]
    if not ends:
        return []
    share, points = 1.0, [SurvivalPoint(0, 1.0, *wilson(len(ends), len(ends)), len(ends))]
    for step in sorted({end for end in failures if end is not None}):
        at_risk, failed = sum(end >= step for end in ends), failures.count(step)
        total = at_risk / share
        share *= 1 - failed / at_risk
        interval = wilson(share * total, total)
        points.append(SurvivalPoint(step, share, *interval, at_risk - failed))
    last = max(ends)
    if points[-1].step < last:  # nothing fell since: nothing more is known
        points.append(replace(points[-1], step=last, at_risk=sum(end >= last for end in ends)))
    return points


def mad(values: np.ndarray) -> float:
    """median |x - median x|; NaN of nothing."""
    middle = median(values)
    if middle is None:
        return nan
    with np.errstate(over="ignore"):
        far = median(np.abs(values - middle))
    return nan if far is None else far


def median(values: np.ndarray) -> float | None:
    """The median of what is not NaN. None: nothing there; NaN: nothing but NaN."""
    if not len(values):
        return None
    rest = values[~np.isnan(values)]
    if not len(rest):
        return nan
    low, high = np.sort(rest)[[(len(rest) - 1) // 2, len(rest) // 2]]
    if low == high:
        return float(low)
    with np.errstate(invalid="ignore"):  # the mean of -inf and inf is NaN, and may be
        return float(low / 2 + high / 2)  # their sum may be beyond the largest float


def end_value(values: np.ndarray) -> float | None:
    """Median of the End window; a median must not hide a NaN or Inf, so that comes out instead."""
    window = values[len(values) - end_window(len(values)) :]
    broken = window[~np.isfinite(window)]
    return float(broken[-1]) if len(broken) else median(window)


def running_median(values: np.ndarray, window: int) -> np.ndarray:
    """Medians of all `window` values in a row; empty where there are fewer."""
    if len(values) < window:
        return np.empty(0)
    halves = pd.Series(values / 2)  # the sum of two may be beyond the largest float
    return 2 * halves.rolling(window).median().to_numpy()[window - 1 :]


@dataclass(frozen=True)
class Slope:
    value: float = nan  # per step
    error: float = inf  # standard error


@LARGE
def slope(steps: np.ndarray, gap: np.ndarray, level: np.ndarray) -> Slope:
    """Least squares of gap = a + value * step + c * level, and the standard error of `value`.

    `level` (the unigram loss) carries what a batch adds to or takes from every model's loss.
    """
    if len(gap) < 4:
        return Slope()
    x = steps - steps.mean()
    other = level - level.mean()
    y = gap - gap.mean()
    if other @ other > 0:  # take out of x and gap what `level` explains (Frisch-Waugh)
        x = x - other * (other @ x) / (other @ other)
        y = y - other * (other @ y) / (other @ other)
    if x @ x == 0:
        return Slope()
    value = (x @ y) / (x @ x)
    rest = y - value * x
    return Slope(float(value), float(np.sqrt((rest @ rest) / (len(gap) - 3) / (x @ x))))


@LARGE
def spike_score(loss: np.ndarray) -> float | None:
    """Share of finite points above mean + 7 sigma of the last W = max(20, min(1000, n/5)) values.

    The current point is left out of its window (OLMo 2). None: no point has a full window.
    """
    values = loss[np.isfinite(loss)]
    window = max(20, min(1000, len(values) // 5))
    if len(values) <= window:
        return None
    centered = values - np.median(values)
    sums = np.concatenate([[0.0], np.cumsum(centered)])
    squares = np.concatenate([[0.0], np.cumsum(centered**2)])
    mean = (sums[window:-1] - sums[: -window - 1]) / window
    spread = (squares[window:-1] - squares[: -window - 1]) - window * mean**2
    sigma = np.sqrt(np.maximum(spread, 0) / (window - 1))
    # Below this a difference is rounding: a flat curve has no spikes.
    floor = 1e-12 * np.abs(values).max()
    return float(np.mean(centered[window:] > mean + 7 * np.maximum(sigma, floor)))


@LARGE
def spikes(gap: np.ndarray) -> list[tuple[int, float]]:
    """Indices where the gap jumps, with how far: above the median of the 10 values before by > 6 s.

    s = 1.4826 MAD(step differences) / sqrt 2, the largest of that over the 20 steps before, the 60
    before and all: the first follows a noise that grows while the model learns, the others cover
    20 steps that came out quiet by chance. Judged from 20 steps on.
    """
    if len(gap) <= 20 or not np.isfinite(gap).all():
        return []
    steps = np.diff(gap)
    rise = gap[20:] - running_median(gap, 10)[10:-1]
    spread = np.full(len(rise), mad(steps))
    far = np.flatnonzero(rise > _limit(spread)) + 20  # elsewhere a larger spread changes nothing
    for window in (20, 60):
        if len(far := far[far >= window]):
            # The step to judge is not in it.
            before = sliding_window_view(steps[:-1], window - 1)[far - window]
            center = np.median(before, axis=1, keepdims=True)
            local = np.median(np.abs(before - center), axis=1)
            spread[far - 20] = np.maximum(spread[far - 20], local)
    return [(int(i) + 20, float(rise[i])) for i in np.flatnonzero(rise > _limit(spread))]


def _limit(spread: np.ndarray) -> np.ndarray:
    return 6 * MAD_TO_SIGMA * spread / sqrt(2)
