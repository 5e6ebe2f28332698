"""A figure of several seeds: how many there are, where they lie, and how sure their mean is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log

import numpy as np

from lnexp.analysis.claimtests import between
from lnexp.analysis.statistics import median


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
    every = list(values)
    known = [value for value in every if value is not None]
    finite = [float(value) for value in known if isfinite(value)]
    if not finite:
        return Spread(0, len(every), nonfinite=len(known))
    logs = ratios and all(value > 0 for value in finite)
    mean, low, high = mean_interval([log(v) for v in finite] if logs else finite)
    ends = [None if end is None else exp(end) if logs else end for end in (mean, low, high)]
    return Spread(
        len(finite),
        len(every),
        *ends,
        median=median(np.array(finite)),
        smallest=min(finite),
        largest=max(finite),
        nonfinite=len(known) - len(finite),
    )


def mean_interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Mean and 95 % t interval, as claims have them; of one value no interval."""
    found = between(values, -inf, inf)
    if len(values) < 2:
        return found.estimate, None, None
    return found.estimate, found.low, found.high
