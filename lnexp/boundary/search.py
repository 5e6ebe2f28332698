"""Where along one knob runs turn unstable: a coarse scan, then bisection in logarithms.

Pure: what is known so far -> what to train next. So a search goes on where it was, whatever
interrupted it. Free of torch and pandas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, log, log10, sqrt


@dataclass(frozen=True)
class Tally:
    """The runs of one value of the knob, a seed each."""

    unstable: int = 0
    stable: int = 0
    undecided: int = 0  # merely slow, even where it was extended; or it failed to execute

    @property
    def decided(self) -> int:
        return self.unstable + self.stable

    @property
    def ran(self) -> int:
        return self.decided + self.undecided

    @property
    def is_unstable(self) -> bool:
        """More than half of the decided runs. A value whose runs are all slow is not."""
        return self.unstable > self.stable


def seeds_wanted(tally: Tally, seeds: int) -> int:
    """How many more seeds could settle a value; 0 once no further one can change it."""
    left = seeds - tally.ran
    lead = tally.unstable - tally.stable
    if left <= 0 or lead > left or -lead >= left:
        return 0
    for_unstable = (left - lead) // 2 + 1  # then lead + these > what is left
    for_stable = ceil((left + lead) / 2)
    return max(1, min(left, for_unstable, for_stable))


@dataclass(frozen=True)
class Knob:
    """A range, and how fine it is looked at."""

    low: float
    high: float
    points: int = 6  # of the scan, both ends included
    resolution: float = 1.25  # the bracket's ends are at most this factor apart
    whole: bool = False  # depth, warm-up
    seeds: int = 3

    def scan(self) -> list[float]:
        """Values in equal steps of the logarithm."""
        steps = max(self.points - 1, 1)
        ratio = log(self.high / self.low) / steps
        inner = [self.rounded(self.low * exp(ratio * i)) for i in range(1, steps)]
        return sorted({self.low, *inner, self.high})

    def between(self, low: float, high: float) -> float | None:
        """The value in the middle; None: they are close enough."""
        if high / low <= self.resolution * (1 + 1e-9):
            return None
        middle = self.rounded(sqrt(low * high))
        return middle if low < middle < high else None

    def rounded(self, value: float) -> float:
        """Three digits, or a whole number: a value that reads well and gives one run id."""
        return float(round(value)) if self.whole else round(value, 2 - _power(value))

    @property
    def full_grid(self) -> int:
        """Values of a grid of this resolution over the whole range."""
        if self.whole:
            return len({round(self.low * self.resolution**i) for i in range(self._steps + 1)})
        return self._steps + 1

    @property
    def _steps(self) -> int:
        return ceil(log(self.high / self.low) / log(self.resolution) - 1e-9)


def _power(value: float) -> int:
    return int(log10(value) // 1)


Tallies = Mapping[float, Tally]
Crossing = tuple[float, float]  # neighbours of which exactly one is unstable


def crossings(tallies: Tallies) -> list[Crossing]:
    """Every place where P(unstable) passes one half, in order of the knob."""
    values = [value for value in sorted(tallies) if tallies[value].ran]
    return [
        (a, b)
        for a, b in zip(values, values[1:], strict=False)
        if tallies[a].is_unstable != tallies[b].is_unstable
    ]


def bracket(knob: Knob, tallies: Tallies) -> Crossing | None:
    """The crossing that is narrowed: of those the scan found, the lowest; now as narrow as it got.

    None: all values of the scan are alike.
    """
    scan = {value: tallies[value] for value in knob.scan() if value in tallies}
    if not (coarse := crossings(scan)):
        return None
    low, high = coarse[0]
    inside = {value: tally for value, tally in tallies.items() if low <= value <= high}
    return crossings(inside)[0]


def wanted(knob: Knob, tallies: Tallies) -> dict[float, int]:
    """Values to train next, and how many more seeds of each; {} when the search is over."""
    begun = {value: tally for value, tally in tallies.items() if knob.low <= value <= knob.high}
    todo = dict.fromkeys(knob.scan(), Tally()) | begun
    more = {value: seeds_wanted(tally, knob.seeds) for value, tally in todo.items()}
    if any(more.values()):
        return {value: count for value, count in more.items() if count}
    ends = bracket(knob, begun)
    middle = knob.between(*ends) if ends else None
    return {} if middle is None else {middle: seeds_wanted(Tally(), knob.seeds)}


def slow_values(knob: Knob, tallies: Tallies) -> list[float]:
    """Once the search is over: values that decide where the edge is, but none of whose runs is
    decided. They may only be slow, or fail later: their runs are to be extended.

    The bracket's better end; without a bracket all above the largest stable value.
    """

    def undecided(value: float) -> bool:
        return tallies[value].undecided > 0 and not tallies[value].decided

    if ends := bracket(knob, tallies):
        return [value for value in ends if undecided(value)]
    top = max((value for value, tally in tallies.items() if tally.stable), default=0.0)
    return [value for value in sorted(tallies) if value > top and undecided(value)]


def edge(knob: Knob, tallies: Tallies) -> tuple[float | None, float | None]:
    """The bracket as (stable, unstable): its better end is one with a run that is decided, so it
    may be wider than the resolution where the runs in between are all slow. Without a bracket the
    largest stable value, if there is one, and None."""
    ends = bracket(knob, tallies)
    if ends is None:
        return max((v for v, tally in tallies.items() if tally.stable), default=None), None
    low, high = ends
    bad, sign = (low, 1) if tallies[low].is_unstable else (high, -1)
    good = [
        v for v, t in tallies.items() if t.stable and not t.is_unstable and sign * (v - bad) > 0
    ]
    return min(good, key=lambda v: abs(v - bad), default=None), bad


def other_crossings(knob: Knob, tallies: Tallies) -> Sequence[Crossing]:
    """Crossings beside the one that was narrowed: the knob's effect is not monotone. Values
    without a decided run say nothing of it."""
    decided = {value: tally for value, tally in tallies.items() if tally.decided}
    narrowed = edge(knob, tallies)
    return [pair for pair in crossings(decided) if narrowed not in (pair, pair[::-1])]
