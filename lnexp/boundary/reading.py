"""Which runs were unstable, how far a knob can be turned before most of a cell's runs are, and the
tables of that.

A knob is a numeric setting, such as train.lr. Each function is over the runs of one cell: they
differ in the knob and the seed alone. Undecided runs (merely slow, too short, not finished) are
counted, and are on neither side.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lnexp.config.sweep import Sweep
from lnexp.lab.schemas import BoundaryRow, RampRow
from lnexp.messages import amount
from lnexp.results.axes import short_key, value_text
from lnexp.results.statistics import median, running_median, wilson
from lnexp.results.tables import column, numbers
from lnexp.results.verdicts import DECIDED
from lnexp.terminal.sheet import Column, Sheet, significant

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


LEGEND = (
    "stable value: the last one of which at most half of the decided runs are unstable; bracket: "
    "from it to the first of which more are; unstable: nonfinite, diverged, lost, or stalled with "
    "a cause other than frozen, too_slow, warming_up; useful: median end loss within 0.1 nat of "
    "the cell's best."
)


def boundary_sheet(
    sweep: Sweep,
    cells: Sequence[dict[str, Any]],
    rows: Sequence[BoundaryRow],
    full_grid: int,
    seconds: float,
) -> Sheet:
    knob = short_key(rows[0].knob)
    columns = [
        *(
            Column(short_key(axis), [value_text(cell[axis]) for cell in cells])
            for axis in sweep.axes
        ),
        Column(f"stable {knob}", [_stable(row) for row in rows]),
        Column("unstable at", [_figure(row.beyond) for row in rows], number=True),
        Column("unstable runs", [_counts(row) for row in rows], rank=3),
        Column("useful", [_figure(row.useful) for row in rows], number=True, rank=2),
        *_sensitivity(rows),
        Column("runs", [str(row.runs) for row in rows], number=True, rank=4),
        Column("minutes", [f"{row.seconds / 60:.1f}" for row in rows], number=True, rank=5),
    ]
    below = list(_below(rows, knob, full_grid, seconds))
    return Sheet(f"{sweep.name}: where {knob} turns unstable", columns, below, whole="--json")


def _stable(row: BoundaryRow) -> str:
    match row.stable:
        case "everywhere" if row.edge is not None and row.edge < row.high:
            return f"up to {_figure(row.edge)} at least; undecided above"
        case "everywhere":
            return f"none in range is unstable ({row.low:g} to {row.high:g})"
        case "nowhere":
            return f"none in range is stable ({row.low:g} to {row.high:g})"
        case "undecided" if row.beyond is not None:
            return f"undecided below {_figure(row.beyond)}"
        case "undecided":
            return "undecided everywhere"
        case "below":
            return f"up to {_figure(row.edge)}"
        case "above":
            return f"from {_figure(row.edge)} on"


def _figure(value: float | None) -> str:
    return significant(value, empty="")


def _counts(row: BoundaryRow) -> str:
    """Of the bracket's ends, in order of the table: stable end, then the other."""
    return f"{row.edge_unstable}, {row.beyond_unstable}" if row.edge_unstable else ""


def _sensitivity(rows: Sequence[BoundaryRow]) -> list[Column]:
    values = [row.sensitivity for row in rows]
    if all(value is None for value in values):
        return []
    texts = ["" if value is None else f"{value:.3f}" for value in values]
    return [Column("LR sensitivity", texts, number=True, rank=1)]


def _below(rows: Sequence[BoundaryRow], knob: str, full_grid: int, seconds: float) -> Iterator[str]:
    first = rows[0]
    yield (
        f"Brackets at most a factor of {first.resolution:g} wide; at most "
        f"{amount(first.seeds, 'seed')} a value."
    )
    for row in rows:
        if row.other_crossings:
            yield f"{row.cell}: not monotone: it turns once more at {knob} {row.other_crossings}."
        if row.undecided:
            yield f"{row.cell}: {amount(row.undecided, 'run')} undecided (slow, or failed)."
    runs = sum(row.runs for row in rows)
    grid = full_grid * first.seeds * len(rows)
    yield (
        f"{amount(runs, 'run')}, {sum(row.seconds for row in rows) / 60:.1f} minutes of training, "
        f"{seconds / 60:.1f} of this call; a full grid of this resolution has {grid} runs, "
        f"{grid / runs:.1f} times as many."
    )
    yield LEGEND


def ramp_sheet(name: str, rows: Sequence[RampRow]) -> Sheet:
    spans = [
        f"{_figure(row.lowest)}..{_figure(row.highest)}" if row.broke > 1 else "" for row in rows
    ]
    columns = [
        Column("cell", [row.cell for row in rows], wraps=True, readable=16),
        Column("lr before it breaks", [_figure(row.edge) for row in rows], number=True),
        Column("range", spans),
        Column("broke", [f"{row.broke} of {row.runs}" for row in rows]),
    ]
    below = (
        f"train.lr grows linearly to {rows[0].high:g} in {rows[0].steps} steps: a run sees each "
        "value for one step, so this is above what it would bear for long. Broken: not finite, or "
        "the median gap of ten steps more than 0.1 nat above its lowest, to the end."
    )
    title = f"{name}: where a growing learning rate breaks training"
    return Sheet(title, columns, [below], whole="--json")
