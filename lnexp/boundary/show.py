"""The edges of stability as tables: of a search, and of a ramp."""

from collections.abc import Iterator, Sequence
from typing import Any

from lnexp.config.sweep import Sweep
from lnexp.lab.schemas import BoundaryRow, RampRow
from lnexp.messages import amount
from lnexp.results.axes import short_key, value_text
from lnexp.terminal.sheet import Column, Sheet, significant

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
