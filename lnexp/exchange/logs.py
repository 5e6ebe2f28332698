"""Training logs of other tools: read as they are, a dict a row, in the file's order; then as rows
of steps.csv, by which name is which column, one row a step.

Free of torch and pandas.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any

from lnexp.exchange.vocabulary import ALIASES
from lnexp.files import Unreadable, read_bytes
from lnexp.messages import UserError, amount, short
from lnexp.rows import StepRow, header


@dataclass(frozen=True)
class LogEntry:
    line: int  # of the file; of a JSON document, the entry's number
    values: dict[str, Any]


@dataclass(frozen=True)
class Log:
    format: str
    entries: list[LogEntry]
    notes: list[str]

    @property
    def names(self) -> list[str]:
        """Every name once, in the order of their first use."""
        return list(dict.fromkeys(name for entry in self.entries for name in entry.values))


def read_log(path: Path) -> Log:
    """The first format that the text is in. UserError where it is none."""
    try:
        text = read_bytes(path).decode("utf-8-sig", "replace")
    except Unreadable as why:
        raise UserError(f"{path}: {why}") from None
    for read in FORMATS:
        log = read(path, text)
        if log is not None and log.entries:
            return log
    raise UserError(
        f"{path}: no training log that can be read: expected lines like 'iter 100: loss 2.3', "
        "trainer_state.json, CSV with a header, or JSON lines"
    )


def _json(path: Path, text: str) -> Log | None:
    """trainer_state.json of Hugging Face's Trainer, or the list of its entries."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    history = document.get("log_history") if isinstance(document, dict) else document
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        return None
    # The row that closes a training holds averages over all of it.
    entries = [LogEntry(i, row) for i, row in enumerate(history, 1) if "train_runtime" not in row]
    left_out = len(history) - len(entries)
    notes = [f"{left_out} closing row (train_runtime, ...) left out"] if left_out else []
    return Log("trainer_state.json", entries, notes)


def _json_lines(path: Path, text: str) -> Log | None:
    if text.lstrip()[:1] != "{":
        return None
    entries, others = [], 0
    *lines, last = text.split("\n")
    for number, line in enumerate([*lines, last], 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines) + 1:  # no newline at its end: half-written
                return Log("JSON lines", entries, ["the last line is half-written and left out"])
            raise UserError(f"{path}:{number}: not JSON: {short(line)}") from None
        if isinstance(row, dict):
            entries.append(LogEntry(number, _flat(row)))
        else:
            others += 1
    return Log("JSON lines", entries, [f"{others} lines are no objects"] * bool(others))


def _flat(row: dict[str, Any], above: str = "") -> dict[str, Any]:
    """{'train': {'loss': 2}} -> {'train/loss': 2}"""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        flat |= _flat(value, f"{above}{key}/") if isinstance(value, dict) else {above + key: value}
    return flat


NUMBER = r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan|inf(?:inity)?)"
LINE = re.compile(r"\b(?:iter|step)[\s:]+(\d+)(?:/\d+)?\b(.*loss.*)$", re.IGNORECASE)
PAIR = re.compile(
    rf"([a-z][a-z_/ ]*?)(?:\s*[:=]\s*|\s+)({NUMBER})(?![\w.])\s*(?:ms|s|%|)", re.IGNORECASE
)
LOSS = re.compile(r"([a-z]+[ _/])?loss")
UNIT = re.compile(rf"({NUMBER})(ms|s|%)", re.IGNORECASE)


def _lines(path: Path, text: str) -> Log | None:
    """nanoGPT's 'iter 100: loss 2.3456, time 12.3ms', 'step 250: train loss 2.1, val loss 2.2'."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        match = LINE.search(line)
        if not match:
            continue
        rest = UNIT.sub(r"\1 \2", match[2])
        values = {name.strip().lower(): value for name, value in PAIR.findall(rest)}
        if any(map(LOSS.fullmatch, values)):  # a sentence about a loss is none
            entries.append(LogEntry(number, {"step": match[1], **values}))
    single = any("loss" in entry.values for entry in entries)
    estimates = any("train loss" in entry.values for entry in entries)
    notes = []
    if single and estimates:
        notes = ["train loss of the evaluations left out: the iterations' own loss is there"]
        for entry in entries:
            entry.values.pop("train loss", None)
    return Log("lines of text", entries, notes)


def _csv(path: Path, text: str) -> Log | None:
    first, _, _ = text.partition("\n")
    delimiter = max(",\t;", key=first.count)
    if delimiter not in first:
        return None
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    entries, notes = [], []
    try:
        names = [name.strip() for name in next(rows)]
        if len(set(names)) < len(names):
            raise UserError(f"{path}:1: a column name stands twice: {short(first)}")
        for row in rows:
            if not row:
                continue
            if len(row) != len(names):
                if rows.line_num > text.count("\n"):
                    notes.append("the last line is half-written and left out")
                    break
                have = f"{len(row)} cells under {len(names)} names"
                raise UserError(f"{path}:{rows.line_num}: {have}")
            entries.append(LogEntry(rows.line_num, dict(zip(names, row, strict=True))))
    except csv.Error as problem:
        raise UserError(f"{path}:{rows.line_num}: not CSV: {problem}") from None
    return Log("CSV", entries, notes)


FORMATS: tuple[Callable[[Path, str], Log | None], ...] = (_json, _json_lines, _lines, _csv)


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
    steps: dict[int, dict[str, float]] = {}
    notes = list(log.notes)
    without, replaced, newest = 0, 0, -1
    for entry in log.entries:
        step = _step(path, entry, columns["step"])
        if step is None:
            without += 1
            continue
        values = {
            ours: value
            for ours, theirs in columns.items()
            if ours != "step" and (value := _number(path, entry, theirs)) is not None
        }
        # A loss at or before a step that has one: training went back, and went on from there.
        if "loss" in values:
            if step <= newest:
                later = [s for s in steps if s >= step]
                replaced += len(later)
                for s in later:
                    del steps[s]
            newest = step
        steps.setdefault(step, {}).update(values)
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
    chosen = dict(wishes)
    for ours, aliases in ALIASES.items():
        known = [folded[alias] for alias in aliases if alias in folded]
        if ours not in chosen and known:
            chosen[ours] = known[0]
    for ours in ("step", "loss"):
        if ours not in chosen:
            raise UserError(f"{path}: which is the {ours}? {have}; write --map {ours}=NAME")
    return {ours: chosen[ours] for ours in COLUMNS if ours in chosen}


def _number(path: Path, entry: LogEntry, name: str) -> float | None:
    """None: not measured."""
    value: Any = entry.values.get(name)
    if value is None or (isinstance(value, str) and value.strip().casefold() in EMPTY):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        text = short(str(value))
        raise UserError(f"{path}:{entry.line}: {name} is {text}, not a number") from None


def _step(path: Path, entry: LogEntry, name: str) -> int | None:
    value = _number(path, entry, name)
    if value is None:
        return None
    if not (isfinite(value) and value == int(value) and 0 <= value <= MOST):
        raise UserError(f"{path}:{entry.line}: {name} is {value:g}, not a step (0, 1, 2, ...)")
    return int(value)


def _row(step: int, values: Mapping[str, float]) -> StepRow:
    cells: dict[str, Any] = {name: values.get(name) for name in COLUMNS if name != "step"}
    for name in WHOLE:
        cells[name] = int(values[name]) if isfinite(values.get(name, nan)) else None
    return StepRow(step=step, **cells)
