"""One CSV of a run folder as a frame that keeps "not measured" and NaN apart.

Numbers are nullable Float64: <NA> is an empty cell, NaN is a NaN that was measured. pandas 3 keeps
both apart in slices and in concat, but its arithmetic turns NaN into <NA>: compute on
`numbers(column)`, where both are NaN, and ask `column.isna()` for what was not measured.
"""

import csv
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
    return pd.Series(pd.arrays.FloatingArray(values.astype(np.float64), empty.astype(bool)))


def read_table(
    path: Path, row_type: type, columns: list[str] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """The asked columns (default: all) of a table, and notes on what was left out."""
    known = header(row_type)
    wanted = _wanted(row_type, columns)
    data = path.read_bytes()
    whole, newline, rest = data.rpartition(b"\n")
    notes = [f"{path}: the last line is half-written and was left out"] if rest else []
    body = whole + newline
    if not body:
        return _finish({}, wanted, 0), notes
    found = body[: body.index(b"\n")].decode("utf-8", "replace").rstrip("\r").split(",")
    _check_header(path, found, known, KEYS[row_type])
    try:
        if row_type is EventRow:
            texts, rows = _quoted(body, found)
        else:
            texts, rows = _plain(body, found, [name for name in wanted if name in found])
    except (ValueError, OverflowError, csv.Error) as problem:
        raise BrokenTable(f"{path}: cannot be read: {' '.join(str(problem).split())}") from None
    return _finish(texts, wanted, rows), notes


def _wanted(row_type: type, columns: list[str] | None) -> list[str]:
    return [name for name in header(row_type) if columns is None or name in columns]


def _check_header(path: Path, found: list[str], known: list[str], keys: tuple[str, ...]) -> None:
    """Columns are read by name; an older or a newer file is fine, any other header is not."""
    related = set(found) >= set(known) or set(found) <= set(known)
    if not related or len(set(found)) < len(found) or not set(keys) <= set(found):
        raise BrokenTable(f"{path}: header is {','.join(found)}; expected {','.join(known)}")


def _plain(body: bytes, found: list[str], wanted: list[str]) -> tuple[dict[str, pd.Series], int]:
    """A table without quotes, parsed by pandas; a row that is too long or too short is refused."""
    lines = body.count(b"\n") - 1
    if body.count(b",") != (lines + 1) * (len(found) - 1):
        raise ValueError("a row has more or fewer cells than the header")
    if not wanted or not lines:
        return {}, lines
    whole = {"step": np.int64, "layer": np.int64}
    frame = pd.read_csv(
        BytesIO(body),
        usecols=wanted,
        index_col=False,
        dtype={n: str if n in TEXT else whole.get(n, np.float64) for n in wanted},
        keep_default_na=False,
        na_values={n: [] if n in TEXT else ["", "nan"] for n in wanted},
        skip_blank_lines=False,
        low_memory=False,
        **EXACT,
    )
    floats = [n for n in wanted if n not in TEXT and n not in whole]
    missing = {n: frame[n].isna().to_numpy() for n in floats}
    # Only a file that has "nan" in it needs a second look to tell NaN from empty.
    unclear = [n for n in floats if missing[n].any()] if b"nan" in body else []
    if unclear:
        texts = pd.read_csv(
            BytesIO(body), usecols=unclear, index_col=False, dtype=str, na_filter=False,
            skip_blank_lines=False,
        )  # fmt: skip
        missing |= {n: (texts[n] == "").to_numpy() for n in unclear}
    series = {n: frame[n] for n in wanted}
    series |= {n: nullable(frame[n].to_numpy(), missing[n]) for n in floats}
    return series, lines


def _quoted(body: bytes, found: list[str]) -> tuple[dict[str, pd.Series], int]:
    rows = list(csv.reader(body.decode("utf-8", "replace").splitlines(), strict=True))[1:]
    if any(len(row) != len(found) for row in rows):
        raise ValueError("a row has more or fewer cells than the header")
    columns = dict(zip(found, zip(*rows, strict=True), strict=True)) if rows else {}
    series = {name: pd.Series(list(cells), dtype=str) for name, cells in columns.items()}
    if rows:
        series["step"] = pd.Series([int(step) for step in columns["step"]], dtype=np.int64)
    return series, len(rows)


def _finish(series: dict[str, pd.Series], wanted: list[str], rows: int) -> pd.DataFrame:
    """The frame with all wanted columns; one that the file lacks is empty."""
    return pd.DataFrame({n: series[n] if n in series else absent(n, rows) for n in wanted})


def empty_table(row_type: type, columns: list[str] | None) -> pd.DataFrame:
    """No rows, in the columns and types of `read_table`."""
    return _finish({}, _wanted(row_type, columns), 0)


def absent(name: str, rows: int) -> pd.Series:
    """A column that was not measured, in the type that it has when it was."""
    if name in TEXT:
        return pd.Series([""] * rows, dtype=str)
    if name in ("step", "layer"):
        return pd.Series(np.zeros(rows, dtype=np.int64))
    return nullable(np.full(rows, np.nan), np.ones(rows, dtype=bool))
