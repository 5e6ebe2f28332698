"""One CSV of a run folder as a frame that keeps "not measured" and NaN apart.

Numbers are nullable Float64: <NA> is an empty cell, NaN is a NaN that was measured. pandas 3 keeps
both apart in slices and in concat, but its arithmetic turns NaN into <NA>: compute on
`numbers(column)`, where both are NaN, and ask `column.isna()` for what was not measured.
"""

import csv
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from lnexp.rows import EventRow, LayerRow, StepRow, header

KEYS: dict[type, tuple[str, ...]] = {
    StepRow: ("step",),
    LayerRow: ("step", "layer", "part"),
    EventRow: ("step",),
}
TEXT = {"part"} | set(header(EventRow)) - {"step"}
# From pandas 3.1 on the default parser is exact and the option is deprecated.
_PANDAS = tuple(int(part) for part in pd.__version__.split(".")[:2])
EXACT: dict[str, Any] = {} if _PANDAS >= (3, 1) else {"float_precision": "round_trip"}

UNEVEN = "a row has more or fewer cells than the header"


class BrokenTable(Exception):
    """A table that cannot be read without guessing; says why in one line."""


def numbers(column: pd.Series) -> np.ndarray:
    """A numeric column as float64, with NaN for "not measured" too."""
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def column(frame: pd.DataFrame, name: str) -> pd.Series:
    """The column, or one that says "not measured" where the frame lacks it."""
    return cast(pd.Series, frame[name]) if name in frame else absent(name, len(frame))


def nullable(values: np.ndarray, empty: np.ndarray) -> pd.Series:
    """Float64 built from its two halves; every other way in would turn NaN into <NA>."""
    array = pd.arrays.FloatingArray(values.astype(np.float64), empty.astype(bool))
    return pd.Series(array, copy=False)  # its halves are copies already


@dataclass(frozen=True)
class Text:
    """A CSV's whole lines, the header first; what comes after the last newline is left out."""

    path: Path
    body: bytes
    names: list[str]  # of the columns; none: an empty file
    rows: int
    notes: list[str]


def read_table(
    path: Path, row_type: type, columns: list[str] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """The asked columns (default: all) of a table, and notes on what was left out."""
    text = read_text(path, row_type)
    return parse(text, row_type, columns), text.notes


def read_text(path: Path, row_type: type) -> Text:
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    body = data if end == len(data) else data[:end]  # a long file is not copied
    notes = [f"{path}: the last line is half-written and was left out"] * (end < len(data))
    if not body:
        return Text(path, body, [], 0, notes)
    names = body[: body.index(b"\n")].decode("utf-8", "replace").rstrip("\r").split(",")
    _check_header(path, names, header(row_type), KEYS[row_type])
    lines = body.count(b"\n")
    if row_type is not EventRow and body.count(b",") != lines * (len(names) - 1):
        raise BrokenTable(f"{path}: cannot be read: {UNEVEN}")
    return Text(path, body, names, lines - 1, notes)


def parse(text: Text, row_type: type, columns: list[str] | None) -> pd.DataFrame:
    wanted = wanted_columns(row_type, columns)
    try:
        if row_type is EventRow:
            series, rows = _quoted(text) if text.names else ({}, 0)
        else:
            series, rows = _plain(text, [name for name in wanted if name in text.names]), text.rows
    except (ValueError, OverflowError, csv.Error) as problem:
        why = " ".join(str(problem).split())
        raise BrokenTable(f"{text.path}: cannot be read: {why}") from None
    return _finish(series, wanted, rows)


def wanted_columns(row_type: type, columns: list[str] | None) -> list[str]:
    return [name for name in header(row_type) if columns is None or name in columns]


def _check_header(path: Path, found: list[str], known: list[str], keys: tuple[str, ...]) -> None:
    """Columns are read by name; an older or a newer file is fine, any other header is not."""
    related = set(found) >= set(known) or set(found) <= set(known)
    if not related or len(set(found)) < len(found) or not set(keys) <= set(found):
        raise BrokenTable(f"{path}: header is {','.join(found)}; expected {','.join(known)}")


def _plain(text: Text, wanted: list[str]) -> dict[str, pd.Series]:
    """A table without quotes, parsed by pandas."""
    if not wanted or not text.rows:
        return {}
    whole = {"step": np.int64, "layer": np.int64}
    types = {n: str if n in TEXT else whole.get(n, np.float64) for n in wanted}
    frame = _read_csv(text.body, types, ["", "nan"])
    floats = [n for n in wanted if n not in TEXT and n not in whole]
    missing = {n: frame[n].isna().to_numpy() for n in floats}
    # Only a file that has "nan" in it needs a second look to tell NaN from empty.
    unclear = [n for n in floats if missing[n].any()] if b"nan" in text.body else []
    if unclear:
        head, newline, rest = text.body.partition(b"\n")
        body = head + newline + rest.replace(b"nan", b"0")
        again = _read_csv(body, dict.fromkeys(unclear, np.float64), [""])
        missing |= {n: again[n].isna().to_numpy() for n in unclear}
    series = {n: cast(pd.Series, frame[n]) for n in wanted}
    return series | {n: nullable(frame[n].to_numpy(), missing[n]) for n in floats}


def _read_csv(body: bytes, types: dict[str, type], missing: list[str]) -> pd.DataFrame:
    return pd.read_csv(
        BytesIO(body),
        usecols=list(types),
        index_col=False,
        dtype=types,  # type: ignore
        keep_default_na=False,
        na_values={n: [] if n in TEXT else missing for n in types},
        skip_blank_lines=False,
        low_memory=False,
        **EXACT,
    )


def _quoted(text: Text) -> tuple[dict[str, pd.Series], int]:
    rows = list(csv.reader(text.body.decode("utf-8", "replace").splitlines(), strict=True))[1:]
    if any(len(row) != len(text.names) for row in rows):
        raise ValueError(UNEVEN)
    columns = dict(zip(text.names, zip(*rows, strict=True), strict=True)) if rows else {}
    series = {name: pd.Series(list(cells), dtype=str) for name, cells in columns.items()}
    if rows:
        series["step"] = pd.Series([int(step) for step in columns["step"]], dtype=np.int64)
    return series, len(rows)


def _finish(series: dict[str, pd.Series], wanted: list[str], rows: int) -> pd.DataFrame:
    """The frame with all wanted columns; one that the file lacks is empty."""
    columns = {n: series[n] if n in series else absent(n, rows) for n in wanted}
    return pd.DataFrame(columns, copy=False)  # they are nobody else's


def empty_table(row_type: type, columns: list[str] | None) -> pd.DataFrame:
    """No rows, in the columns and types of `read_table`."""
    return _finish({}, wanted_columns(row_type, columns), 0)


def absent(name: str, rows: int) -> pd.Series:
    """A column that was not measured, in the type that it has when it was."""
    if name in TEXT:
        return pd.Series([""] * rows, dtype=str)
    if name in ("step", "layer"):
        return pd.Series(np.zeros(rows, dtype=np.int64))
    return nullable(np.full(rows, np.nan), np.ones(rows, dtype=bool))
