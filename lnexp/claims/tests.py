"""The statistics under claims, each tested against a naive computation (docs/metrics.md).

Every interval is at 95 %; a test on one side of it is at 2.5 %.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, isnan, log, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Literal

import numpy as np

from lnexp.claims.claims import Bound
from lnexp.results.statistics import median, wilson

Outcome = Literal["holds", "refuted", "undecided"]
ALPHA = 0.05
SIDE = ALPHA / 2


@dataclass(frozen=True)
class Finding:
    """What one cell's numbers say, with one-sided p-values for and against."""

    outcome: Outcome
    hits: int | None = None  # of `of` runs or pairs
    of: int = 0
    estimate: float | None = None
    low: float = -inf
    high: float = inf
    p_holds: float | None = None  # None: decided by a rule, not by a test
    p_refuted: float | None = None


def _decided(holds: bool, refuted: bool) -> Outcome:
    return "holds" if holds else "refuted" if refuted else "undecided"


def share(hits: int, unclear: int, total: int, bound: Bound) -> Finding:
    """hits / total against a bound, by the Wilson interval.

    An `unclear` run counts against the claim when it is to hold, and for it when it is to be
    refuted: nothing hangs on how it would have ended.
    """
    low, high = wilson(hits, total)[0], wilson(hits + unclear, total)[1]
    above = (total > 0) and (low > bound.value or (bound.op == ">=" and low == bound.value))
    below = (total > 0) and (high < bound.value or (bound.op == "<=" and high == bound.value))
    p_above = score_tail(hits, total, bound.value)
    p_below = score_tail(total - hits - unclear, total, 1 - bound.value)
    if bound.op in (">", ">="):
        outcome, p_holds, p_refuted = _decided(above, high < bound.value), p_above, p_below
    else:
        outcome, p_holds, p_refuted = _decided(below, low > bound.value), p_below, p_above
    estimate = hits / total if total else None
    return Finding(outcome, hits, total, estimate, low, high, p_holds, p_refuted)


def score_tail(hits: int, total: int, value: float) -> float:
    """P(Z >= z) of z = (hits/n - v) / sqrt(v (1 - v) / n), the test that Wilson's limit inverts."""
    if total == 0:
        return 1.0
    spread = sqrt(value * (1 - value) / total)
    distance = hits / total - value
    if spread == 0:
        return 0.0 if distance > 0 else 1.0
    return NormalDist().cdf(-distance / spread)


def every(hits: int, unclear: int, total: int, missing: int) -> Finding:
    """Refuted by one counterexample; holds when all runs of the cell are in and none is one."""
    low, high = wilson(hits, total)[0], wilson(hits + unclear, total)[1]
    against = total - hits - unclear
    holds = total > 0 and hits == total and missing == 0
    outcome = _decided(holds, against > 0)
    return Finding(outcome, hits, total, hits / total if total else None, low, high)


def sign_tail(hits: int, total: int) -> float:
    """P(X >= hits) of X ~ Binomial(total, 1/2)."""
    from scipy.special import bdtrc  # brought along by what judges a claim alone

    return float(bdtrc(hits - 1, total, 0.5)) if hits > 0 else 1.0


def sign_test(differences: Sequence[float], value: float) -> Finding:
    """Whether the median of paired differences is below a value; pairs that tie say nothing."""
    hits = sum(d < value for d in differences)
    against = sum(d > value for d in differences)
    p_holds, p_refuted = sign_tail(hits, hits + against), sign_tail(against, hits + against)
    low, high = median_interval(differences)
    outcome = _decided(p_holds <= SIDE, p_refuted <= SIDE)
    middle = _median(differences)
    return Finding(outcome, hits, len(differences), middle, low, high, p_holds, p_refuted)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """(x_(k), x_(n+1-k)) with the largest k for which P(X <= k - 1) <= 0.025, X ~ Bin(n, 1/2).

    Exact for the median of any continuous distribution; infinite values have their rank. Below 6
    values it is everything.
    """
    ranked, n = sorted(values), len(values)
    k = 0
    while k < n and sign_tail(n - k, n) <= SIDE:  # P(X <= k) = P(X >= n - k)
        k += 1
    return (ranked[k - 1], ranked[n - k]) if k else (-inf, inf)


def within(differences: Sequence[float], margin: float) -> Finding:
    """Whether the median paired difference lies inside +-margin: its interval does."""
    low, high = median_interval(differences)
    n = len(differences)
    above = sign_tail(sum(d > -margin for d in differences), n)
    below = sign_tail(sum(d < margin for d in differences), n)
    beyond = max(sum(d > margin for d in differences), sum(d < -margin for d in differences))
    outcome = _decided(-margin < low and high < margin, low > margin or high < -margin)
    hits = sum(abs(d) < margin for d in differences)
    p_refuted = sign_tail(beyond, n)
    middle = _median(differences)
    return Finding(outcome, hits, n, middle, low, high, max(above, below), p_refuted)


def _median(values: Sequence[float]) -> float | None:
    """The middle value; between -inf and inf there is none."""
    middle = median(np.array(values))
    return None if middle is None or isnan(middle) else middle


def between(slopes: Sequence[float], low_end: float, high_end: float) -> Finding:
    """Whether the mean over seeds lies in [a, b]: its t interval does."""
    n = len(slopes)
    if n < 2:
        return Finding("undecided", None, n, slopes[0] if n else None, p_holds=1.0, p_refuted=1.0)
    mean, error = fmean(slopes), stdev(slopes) / sqrt(n)
    half = t_quantile(n - 1) * error
    low, high = mean - half, mean + half

    def p(distance: float) -> float:
        """Of a mean so far on the right side of a limit."""
        if error == 0:
            return 0.0 if distance > 0 else 1.0
        return t_tail(distance / error, n - 1)

    outcome = _decided(low_end <= low and high <= high_end, high < low_end or low > high_end)
    p_holds = max(p(mean - low_end), p(high_end - mean))
    p_refuted = min(p(low_end - mean), p(mean - high_end))
    return Finding(outcome, None, n, mean, low, high, p_holds, p_refuted)


def t_tail(t: float, dof: int) -> float:
    """P(T >= t) of Student's t."""
    from scipy.special import stdtr

    return float(stdtr(dof, -t))


def t_quantile(dof: int, tail: float = SIDE) -> float:
    """The t above which lies `tail`."""
    from scipy.special import stdtrit

    return float(stdtrit(dof, 1 - tail))


def log_slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Least squares slope of log y over log x; None where a log or a slope does not exist."""
    if not all(isfinite(v) and v > 0 for v in (*x, *y)) or len(set(x)) < 2:
        return None
    u, v = [log(value) for value in x], [log(value) for value in y]
    mean_u, mean_v = fmean(u), fmean(v)
    over = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True))
    return over / sum((a - mean_u) ** 2 for a in u)


def holm(ps: Sequence[float]) -> list[float]:
    """p-values adjusted for their number (Holm 1979): max over j <= i of (m - j + 1) p_(j)."""
    adjusted, worst = [0.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        worst = max(worst, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = worst
    return adjusted


# A figure of several seeds: how many there are, where they lie, and how sure their mean is.


@dataclass(frozen=True)
class Spread:
    """Of n finite values of `of` runs. Mean and its 95 % t interval; of ratios in logarithms
    (the geometric mean). None: nothing finite, or of one value no interval."""

    n: int
    of: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    median: float | None = None
    smallest: float | None = None
    largest: float | None = None
    nonfinite: int = 0  # measured, and NaN or Inf


def spread(values: Iterable[float | None], ratios: bool = False) -> Spread:
    """None: not measured. Ratios of which one is 0 have no logarithm: their mean is plain."""
    runs = list(values)
    known = [value for value in runs if value is not None]
    finite = [float(value) for value in known if isfinite(value)]
    if not finite:
        return Spread(0, len(runs), nonfinite=len(known))
    logs = ratios and all(value > 0 for value in finite)
    mean, low, high = mean_interval([log(v) for v in finite] if logs else finite)
    ends = [None if end is None else exp(end) if logs else end for end in (mean, low, high)]
    return Spread(
        len(finite),
        len(runs),
        *ends,
        median=median(np.array(finite)),
        smallest=min(finite),
        largest=max(finite),
        nonfinite=len(known) - len(finite),
    )


def mean_interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Mean and 95 % t interval, as claims have them; of one value no interval."""
    finding = between(values, -inf, inf)
    several = len(values) > 1
    return finding.estimate, finding.low if several else None, finding.high if several else None
