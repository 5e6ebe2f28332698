"""A log's entries as rows of steps.csv: which name is which column, and one row a step.

Free of torch and pandas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from lnexp.errors import UserError
from lnexp.exchange.logs import Entry, Log
from lnexp.exchange.names import ALIASES
from lnexp.lines import amount, short
from lnexp.rows import StepRow, header

COLUMNS = header(StepRow)
WHOLE = ("skipped", "nonfinite_grads")
MOST = 2**53  # above it a float is no exact step number
NAMED = 12  # names of a file that a complaint lists
EMPTY = ("", "null", "none")  # texts that say: not measured


@dataclass(frozen=True)
class Imported:
    rows: list[StepRow]
    columns: dict[str, str]  # ours -> the log's
    unused: list[str]  # names of the log that are no column of ours
    notes: list[str]


def as_rows(path: Path, log: Log, wishes: Mapping[str, str]) -> Imported:
    """One row a step, in order. UserError where step or loss cannot be found."""
    names = log.names
    columns = choose(path, names, wishes)
    steps: dict[int, dict[str, float | None]] = {}
    notes = list(log.notes)
    without, replaced, newest = 0, 0, -1
    for entry in log.entries:
        step = _step(path, entry, columns["step"])
        if step is None:
            without += 1
            continue
        found = {
            ours: value
            for ours, theirs in columns.items()
            if ours != "step" and (value := _number(path, entry, theirs)) is not None
        }
        # A loss at or before a step that has one: training went back, and went on from there.
        if "loss" in found:
            if step <= newest:
                later = [s for s in steps if s >= step]
                replaced += len(later)
                for s in later:
                    del steps[s]
            newest = step
        steps.setdefault(step, {}).update(found)
    if without:
        notes.append(f"{amount(without, 'row')} without a {columns['step']} left out")
    if replaced:
        notes.append(
            f"steps go back, as after a resume: {amount(replaced, 'earlier row')} left out, "
            "the later ones kept"
        )
    if not any("loss" in row for row in steps.values()):
        raise UserError(f"{path}: {columns['loss']} is empty in every row")
    if empty := sum("loss" not in row for row in steps.values()):
        notes.append(f"{amount(empty, 'step')} without a loss kept as not measured")
    unused = [name for name in names if name not in columns.values()]
    rows = [_row(step, steps[step]) for step in sorted(steps)]
    return Imported(rows, columns, unused, notes)


def choose(path: Path, names: Sequence[str], wishes: Mapping[str, str]) -> dict[str, str]:
    """Our column -> the log's name: what was wished, else the first alias that is there."""
    have = f"it has {', '.join(names[:NAMED])}{', ...' if len(names) > NAMED else ''}"
    for ours, theirs in wishes.items():
        if ours not in COLUMNS:
            known = ", ".join(COLUMNS)
            raise UserError(f"--map {ours}={theirs}: no column {ours}; write one of {known}")
        if theirs not in names:
            raise UserError(f"--map {ours}={theirs}: {path} has no {theirs}; {have}")
    taken = set(wishes.values())
    folded = {name.casefold(): name for name in reversed(names) if name not in taken}
    found = dict(wishes)
    for ours, aliases in ALIASES.items():
        known = [folded[alias] for alias in aliases if alias in folded]
        if ours not in found and known:
            found[ours] = known[0]
    for ours in ("step", "loss"):
        if ours not in found:
            raise UserError(f"{path}: which is the {ours}? {have}; write --map {ours}=NAME")
    return {ours: found[ours] for ours in COLUMNS if ours in found}


def _number(path: Path, entry: Entry, name: str) -> float | None:
    """None: not measured."""
    value: Any = entry.values.get(name)
    if value is None or (isinstance(value, str) and value.strip().casefold() in EMPTY):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        said = short(str(value))
        raise UserError(f"{path}:{entry.line}: {name} is {said}, not a number") from None


def _step(path: Path, entry: Entry, name: str) -> int | None:
    value = _number(path, entry, name)
    if value is None:
        return None
    if not (isfinite(value) and value == int(value) and 0 <= value <= MOST):
        raise UserError(f"{path}:{entry.line}: {name} is {value:g}, not a step (0, 1, 2, ...)")
    return int(value)


def _row(step: int, found: Mapping[str, float | None]) -> StepRow:
    values: dict[str, Any] = {name: found.get(name) for name in COLUMNS if name != "step"}
    for name in WHOLE:
        value = values[name]
        values[name] = int(value) if value is not None and isfinite(value) else None
    return StepRow(step=step, **values)
