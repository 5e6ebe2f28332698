"""runs.csv: one row a run. A cache that can always be rebuilt, and a table for other programs."""

import ast
import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout

from lnexp.config.schema import KEYS
from lnexp.files import draft_of
from lnexp.results.run_folder import COLUMNS, DEFAULTS, FIGURES, Config, read_run
from lnexp.results.tables import floats
from lnexp.rows import cell, line

Row = list[str]  # the texts of COLUMNS, unquoted
SEEDS = ("seed_init", "seed_data")
WHOLE = (*SEEDS, "first_bad_step", "parameters", "steps_done")


def sweep_rows(sweep: Path, points: dict[str, Any]) -> tuple[list[Row], list[str], bool]:
    """The rows of a sweep in grid order, notes, and whether runs.csv was out of date.

    A row is read again when its status.json is newer than runs.csv, when it is not over, or when
    the rules of verdicts are newer.
    """
    path = sweep / "runs.csv"
    earlier = _earlier_rows(path)
    written = _mtime(path) if _mtime(path) >= _rules_mtime() else -1
    locked = is_locked(sweep)
    rows, notes = [], []
    for point in points["runs"]:
        folder = sweep / "runs" / point["run"]
        row = earlier.get(point["run"])
        status = _mtime(folder / "status.json")
        over = row is not None and _is_over(row)
        if row is None or not over or status < 0 or status > written:
            row, more = row_of(folder, point, locked)
            notes += more
        rows.append(row)
    return rows, notes, rows != list(earlier.values())


def row_of(
    folder: Path, point: dict[str, Any], locked: bool, config: Config | None = None
) -> tuple[Row, list[str]]:
    values, notes = read_run(folder, point, locked, config)
    return [_text(values.get(name)) for name in COLUMNS], notes


def _is_over(row: Row) -> bool:
    """Nothing new can come, and nothing was wrong that should be said each time."""
    status, verdict = row[COLUMNS.index("status")], row[COLUMNS.index("verdict")]
    return status == "failed" or (status == "finished" and verdict != "")


def save(sweep: Path, rows: list[Row], points: dict[str, Any]) -> None:
    """By rename. Its time is that of the newest file it was made from, so no clock is compared."""
    inputs = [sweep / "runs" / point["run"] / "status.json" for point in points["runs"]]
    newest = max(map(_mtime, [sweep / "points.json", *inputs]))
    with draft_of(sweep / "runs.csv", one_writer=False) as draft:
        draft.write_text(line(COLUMNS) + "".join(map(line, rows)), encoding="utf-8")
        os.utime(draft, ns=(newest, max(newest, _rules_mtime())))


def is_locked(sweep: Path) -> bool:
    """Whether `lnexp run` works on the sweep. Looks without creating the lock or keeping it."""
    path = sweep / ".lock"
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a folder that may not be written is not being written
        return False


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Typed columns from texts: Int64, Float64 with NaN apart from <NA>, settings as configured."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    return pd.DataFrame(
        {name: _typed(name, texts) for name, texts in zip(COLUMNS, columns, strict=True)}
    )


def _typed(name: str, texts: Iterable[str]) -> pd.Series:
    texts = list(texts)
    if name in DEFAULTS:
        meaning = {text: _setting(name, text) for text in set(texts)}
        return _settings([meaning[text] for text in texts])
    if name in WHOLE:
        return pd.Series([int(text) if text else None for text in texts], dtype="Int64")
    if name in FIGURES:
        return floats([float(text) if text else None for text in texts])
    return pd.Series(texts, dtype=str)


def _settings(values: list[Any]) -> pd.Series:
    """One type where all agree; a pending run leaves <NA>."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pd.Series(values, dtype="boolean")
    if kinds == {int}:
        return pd.Series(values, dtype="Int64")
    if kinds <= {int, float} and kinds:
        return floats(values)
    if kinds == {str} and None not in values:
        return pd.Series(values, dtype=str)
    return pd.Series(values, dtype=object)


def _setting(key: str, text: str) -> Any:
    """The value whose text this is, by the type that the config gives the key."""
    if KEYS[key].annotation is str:
        return text
    if text in ("", "inf", "-inf", "nan"):
        return float(text) if text else None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def _text(value: Any) -> str:
    """As in rows.cell, before quoting."""
    if value is None or isinstance(value, float):
        return cell(value)
    return str(value).replace("\r", " ").replace("\n", " ")


def _earlier_rows(path: Path) -> dict[str, Row]:
    """The rows there are, by run; none where the file is missing, broken or of another version."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file, strict=True))
    except (OSError, ValueError, csv.Error):
        return {}
    if not rows or tuple(rows[0]) != COLUMNS or any(len(row) != len(COLUMNS) for row in rows):
        return {}
    try:
        frame(rows[1:])
    except (ValueError, OverflowError):  # a text where a number was written
        return {}
    return {row[0]: row for row in rows[1:]}


def _mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1


def _rules_mtime() -> int:
    return max(map(_mtime, Path(__file__).parent.glob("*.py")))
