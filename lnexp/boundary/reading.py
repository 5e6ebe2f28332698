"""Which runs were unstable, and how far a knob can be turned before most of a cell's runs are.

A knob is a numeric setting, such as train.lr. Each function is over the runs of one cell: they
differ in the knob and the seed alone. Undecided runs (merely slow, too short, not finished) are
counted, and are on neither side.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lnexp.results.statistics import median, running_median, wilson
from lnexp.results.tables import column, numbers
from lnexp.results.verdicts import DECIDED

LR = "train.lr"
# Causes of a run that only needs more steps, or never began to move.
SLOW = {"frozen", "too_slow", "warming_up"}
USEFUL = 0.1  # nat above the cell's best end loss
BROKEN = 0.1  # nat above a ramp's best gap so far


def unstable(runs: pd.DataFrame) -> pd.Series:
    """True: nonfinite, diverged, lost, or stalled with a cause not in SLOW; NA: undecided."""
    states = []
    for verdict, cause in zip(column(runs, "verdict"), column(runs, "cause"), strict=True):
        causes = {name for name in str(cause).split("; ") if name}
        merely_slow = verdict == "stalled" and causes <= SLOW
        decided = verdict in DECIDED and not merely_slow
        states.append(verdict not in ("learned", "spiked") if decided else pd.NA)
    return pd.Series(states, index=runs.index, dtype="boolean")


def by_value(runs: pd.DataFrame, knob: str = LR) -> pd.DataFrame:
    """value, unstable, decided, runs, share, low, high (Wilson, 95 %); in order of the value."""
    values, bad = numbers(column(runs, knob)), unstable(runs)
    rows = []
    for value in np.unique(values[np.isfinite(values)]):
        here = bad.array[values == value]
        n, of = int(here.sum()), int((~here.isna()).sum())
        share = n / of if of else np.nan
        rows.append((float(value), n, of, len(here), share, *wilson(n, of)))
    names = ["value", "unstable", "decided", "runs", "share", "low", "high"]
    return pd.DataFrame(rows, columns=pd.Index(names))


@dataclass(frozen=True)
class Edge:
    """The largest stable value of the grid, and the first that is not. None: not in range."""

    stable: float | None
    unstable: float | None

    def words(self, name: str) -> str:
        """'largest stable lr 0.003 (0.01 is not)', 'no stable lr in range: ...'"""
        match self.stable, self.unstable:
            case None, None:
                return f"no stable {name} in range: no run is decided"
            case None, bad:
                return f"no stable {name} in range: unstable from {bad:g} on"
            case good, None:
                return f"largest stable {name} at least {good:g} (none above is unstable)"
            case good, bad:
                return f"largest stable {name} {good:g} ({bad:g} is not)"


def largest_stable(runs: pd.DataFrame, knob: str = LR) -> Edge:
    """The largest value up to which no value has more than half of its decided runs unstable.

    A value without a decided run is passed over: neither stable nor unstable.
    """
    good, rows = None, by_value(runs, knob)
    for value, share, decided in zip(rows["value"], rows["share"], rows["decided"], strict=True):
        if share > 0.5:  # NaN is not
            return Edge(good, value)
        if decided:
            good = value
    return Edge(good, None)


def _medians(runs: pd.DataFrame, knob: str, losses: np.ndarray) -> dict[float, float]:
    """Median over the seeds by the knob's value; NaN: not measured, left out."""
    values = numbers(column(runs, knob))
    known = np.unique(values[np.isfinite(values)])
    medians = {float(value): median(losses[values == value]) for value in known}
    return {v: loss for v, loss in medians.items() if loss is not None and not np.isnan(loss)}


def _end_losses(runs: pd.DataFrame) -> np.ndarray:
    """inf where a run did not stay finite, NaN where none was measured."""
    losses = column(runs, "end_loss")
    end, measured = numbers(losses), losses.notna().to_numpy()
    bad = (column(runs, "verdict") == "nonfinite").to_numpy() | (measured & ~np.isfinite(end))
    return np.where(bad, np.inf, end)


def sensitivity(runs: pd.DataFrame, knob: str = LR) -> float | None:
    """Mean over the grid of min(loss, first loss) - the best of them (Wortsman et al. 2023).

    Losses are medians over the seeds; a non-finite one counts as the first loss, and a first loss
    that is none as ln V. None: fewer than two values, or no finite end loss.
    """
    first = numbers(column(runs, "first_loss"))
    first = np.where(np.isfinite(first), first, numbers(column(runs, "ln_v")))
    end = _end_losses(runs)
    losses = list(_medians(runs, knob, np.where(end > first, first, end)).values())
    if len(losses) < 2 or not np.isfinite(end).any():
        return None
    return float(np.mean(losses) - min(losses))


def largest_useful(runs: pd.DataFrame, knob: str = LR) -> float | None:
    """The largest value whose median end loss is within USEFUL of the cell's best.

    None: no run learned, so the best is no better than guessing.
    """
    if not column(runs, "verdict").isin(["learned", "spiked"]).any():
        return None
    losses = _medians(runs, knob, _end_losses(runs))
    bar = min(losses.values(), default=np.inf) + USEFUL
    return max((v for v, loss in losses.items() if loss <= bar < np.inf), default=None)


def in_words(runs: pd.DataFrame, knob: str = LR) -> str:
    """'largest stable 0.003 (0.01 is not), largest useful 0.001, sensitivity 0.31 nat'"""
    parts = [largest_stable(runs, knob).words(knob.rsplit(".", 1)[-1])]
    if (useful := largest_useful(runs, knob)) is not None:
        parts.append(f"largest useful {useful:g}")
    if (value := sensitivity(runs, knob)) is not None:
        parts.append(f"sensitivity {value:.2g} nat")
    return "; ".join(parts)


def ramp_edge(lr: np.ndarray, gap: np.ndarray, bad_step: int | None) -> float | None:
    """The largest learning rate before a run broke while it grew; None: it did not break.

    Broken: a value is not finite, or from there to the end the median gap of ten steps stays more
    than BROKEN above the lowest one before.
    """
    until = len(gap) if bad_step is None else min(bad_step, len(gap))
    level = running_median(gap[:until], 10)
    good = np.flatnonzero(level <= np.minimum.accumulate(level) + BROKEN)
    last = int(good[-1]) + 9 if len(good) else until - 1  # the last step of that window
    if last + 1 >= len(gap) and bad_step is None:
        return None
    return float(lr[last]) if last >= 0 else 0.0
