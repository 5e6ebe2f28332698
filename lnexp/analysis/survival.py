"""How long runs stay finite: the share still finite after each step, with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lnexp.analysis.statistics import wilson


@dataclass(frozen=True)
class Point:
    """After `step` steps (0: before the first)."""

    step: int
    share: float
    low: float
    high: float
    at_risk: int  # runs that got so far


def survival(done: Sequence[int], bad: Sequence[int | None]) -> list[Point]:
    """Kaplan and Meier's estimate: the product over steps of 1 - failures / runs that were there.

    `done`: steps of each run; `bad`: the step whose values were the first that were not finite.
    A run that ended without one counts as long as it was there. Interval: Wilson's, for
    at_risk / share runs (Dorey and Korn 1987); without early ends that is all of them. The points
    are where the estimate falls, the first and the last step.
    """
    ends = [steps if born is None else born + 1 for steps, born in zip(done, bad, strict=True)]
    if not ends:
        return []
    share, points = 1.0, [_point(0, 1.0, len(ends), len(ends))]
    for step in sorted({born + 1 for born in bad if born is not None}):
        there = sum(end >= step for end in ends)
        fell = sum(born is not None and born + 1 == step for born in bad)
        total = there / share
        share *= 1 - fell / there
        points.append(_point(step, share, total, there - fell))
    last = max(ends)
    if points[-1].step < last:  # nothing fell since: nothing more is known
        points.append(replace(points[-1], step=last, at_risk=sum(end >= last for end in ends)))
    return points


def _point(step: int, share: float, total: float, left: int) -> Point:
    return Point(step, share, *wilson(share * total, total), left)
