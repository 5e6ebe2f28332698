"""CSVs of run folders as frames that keep "not measured" and NaN apart: one table, what a long one
leaves beside it as Parquet, and the same table of many runs.

Numbers are nullable Float64: <NA> is an empty cell, NaN is a NaN that was measured. pandas 3 keeps
both apart in slices and in concat, but its arithmetic turns NaN into <NA>: compute on
`numbers(column)`, where both are NaN, and ask `column.isna()` for what was not measured.
"""

import csv
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from time import time
from typing import Any, cast

import numpy as np
import pandas as pd

from lnexp import __version__
from lnexp.files import draft_of
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


def python_values(column: pd.Series) -> list[Any]:
    """None for "not measured", NaN for a NaN."""
    splits = pd.api.types.is_extension_array_dtype(column.dtype) or column.dtype == object
    empty = column.isna() if splits else [False] * len(column)
    return [
        None if gone else value.item() if isinstance(value, np.generic) else value
        for value, gone in zip(column.astype(object), empty, strict=True)
    ]


def nullable(values: np.ndarray, empty: np.ndarray) -> pd.Series:
    """Float64 built from its two halves; every other way in would turn NaN into <NA>."""
    array = pd.arrays.FloatingArray(values.astype(np.float64), empty.astype(bool))
    return pd.Series(array, copy=False)  # its halves are copies already


def floats(values: Sequence[float | None]) -> pd.Series:
    """None: not measured."""
    empty = [value is None for value in values]
    return nullable(np.array([np.nan if v is None else v for v in values]), np.array(empty))


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
    _check_header(path, names, row_type)
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


def _check_header(path: Path, names: list[str], row_type: type) -> None:
    """Columns are read by name; an older or a newer file is fine, any other header is not."""
    known, distinct = header(row_type), set(names)
    related = distinct >= set(known) or distinct <= set(known)
    if not related or len(distinct) < len(names) or not distinct.issuperset(KEYS[row_type]):
        raise BrokenTable(f"{path}: header is {','.join(names)}; expected {','.join(known)}")


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


# Numbers parsed once are not parsed again: `layers.csv` leaves `.layers.parquet` where pyarrow is
# installed, the run is over and the file is long enough to pay. It is believed only of the very
# file it was made from (size, times, columns, version), every page by its checksum, and may be
# deleted at any time.

FORMAT = 1  # of this file
LEAST = 1_000_000  # bytes of a CSV; a shorter one is read as soon
SETTLED = 2.0  # seconds without a change: a clock's tick may hide one that is closer
PYARROW = find_spec("pyarrow") is not None
KEY = b"lnexp"


def stored_table(
    path: Path, row_type: type, columns: list[str] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """As `read_table`, from the Parquet file beside it where that holds."""
    stat = path.stat()  # before the file is read: what is written meanwhile is then newer
    if not PYARROW or row_type is EventRow or stat.st_size < LEAST:
        return read_table(path, row_type, columns)
    stamp = _stamp(stat, row_type)
    wanted = wanted_columns(row_type, columns)
    if (frame := _recall(beside(path), stamp, wanted)) is not None:
        return frame, []
    text = read_text(path, row_type)
    stores = not text.notes and _is_settled(path, stat)
    frame = parse(text, row_type, None if stores else columns)
    if stores:
        _store(beside(path), stamp, frame)
    return cast(pd.DataFrame, frame[wanted]), text.notes


def beside(path: Path) -> Path:
    return path.with_name(f".{path.stem}.parquet")


def _is_settled(path: Path, stat: os.stat_result) -> bool:
    """Nobody writes it: its run is over, and it has not changed just now."""
    age = time() - max(stat.st_mtime, stat.st_ctime)
    return age > SETTLED and path.with_name("status.json").exists()


def _stamp(stat: os.stat_result, row_type: type) -> bytes:
    """Of which file, and by which reader. The time of the inode's change cannot be set back."""
    file = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
    return json.dumps([FORMAT, __version__, pd.__version__, header(row_type), file]).encode()


def _recall(path: Path, stamp: bytes, wanted: list[str]) -> pd.DataFrame | None:
    """None: nothing is stored, it is damaged, or it is of another file or version."""
    try:
        import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if (file.schema_arrow.metadata or {}).get(KEY) != stamp:
                return None
            table = file.read(wanted)
        return pd.DataFrame({name: _series(name, table[name]) for name in wanted}, copy=False)
    except Exception:  # of a damaged file any; the CSV says it all
        return None


def _series(name: str, column: Any) -> pd.Series:
    if name in TEXT:
        return pd.Series(column.combine_chunks(), dtype=str)
    values = column.to_numpy()
    if values.dtype != np.float64:
        return pd.Series(values)
    return nullable(values, column.is_null().to_numpy())


def _store(path: Path, stamp: bytes, frame: pd.DataFrame) -> None:
    """Where it cannot be written there is none."""
    # A read-only folder, a full disk: nothing that a reader asked for.
    with suppress(Exception), draft_of(path, one_writer=False) as draft:
        import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

        table = arrow_table(frame).replace_schema_metadata({KEY: stamp})
        keys = [name for name in frame if frame[name].dtype != "Float64"]
        how: dict[str, Any] = {"use_dictionary": keys, "write_page_checksum": True}
        pq.write_table(table, draft, compression="zstd", **how)


def arrow_table(frame: pd.DataFrame) -> Any:
    """A column's own mask says what was not measured; NaN stays NaN."""
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    return pa.table({name: pa.array(frame[name], from_pandas=False) for name in frame})


# Of many runs long files are read one by one, short ones parsed together: a parser's start costs as
# much as some thousand rows. What cannot be joined, or not parsed as one, is read file by file, so
# that every note names the file it is about.

TOGETHER = 8_000_000  # bytes of short files that are parsed as one
THREADS = 8  # each holds a file's text; more wait for one another

Rows = tuple[pd.DataFrame, list[int], list[str]]  # of some files, how many of each, and notes


def many_tables(paths: Sequence[Path], row_type: type, columns: list[str] | None) -> Rows:
    """All files' rows in order, how many each has, and notes.

    A table that is not there yet, or is broken (which is noted), has no rows.
    """
    read = partial(_read, row_type=row_type, columns=columns)
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as threads:
        parts = [part for parts in threads.map(read, _batches(paths)) for part in parts]
    frames = [empty_table(row_type, columns), *(frame for frame, _, _ in parts)]
    lengths = [n for _, rows, _ in parts for n in rows]
    return pd.concat(frames, ignore_index=True), lengths, [n for *_, notes in parts for n in notes]


def _batches(paths: Sequence[Path]) -> Iterator[list[Path]]:
    batch: list[Path] = []
    size = 0
    for path in paths:
        try:
            more = os.stat(path).st_size
        except OSError:  # said, or not, by whoever reads it
            more = 0
        if batch and (more >= LEAST or size + more > TOGETHER):
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += more if more < LEAST else TOGETHER
    if batch:
        yield batch


def _read(paths: list[Path], row_type: type, columns: list[str] | None) -> list[Rows]:
    if len(paths) > 1 and row_type is not EventRow:  # whose cells may hold anything
        try:
            return [_joined([_text(path, row_type) for path in paths], row_type, columns)]
        except (BrokenTable, OSError):
            pass
    return [_alone(path, row_type, columns) for path in paths]


def _text(path: Path, row_type: type) -> Text:
    try:
        return read_text(path, row_type)
    except FileNotFoundError:
        return Text(path, b"", [], 0, [])


def _joined(texts: list[Text], row_type: type, columns: list[str] | None) -> Rows:
    whole = [text for text in texts if text.rows]
    heads = {text.body[: text.body.index(b"\n")] for text in whole}
    rest = [text.body[text.body.index(b"\n") + 1 :] for text in whole]
    # Either may reach beyond its file: a quote that is never closed, a line that ends otherwise.
    if len(heads) > 1 or any(b'"' in body or b"\r" in body for body in (*heads, *rest)):
        raise BrokenTable
    names = whole[0].names if whole else []
    lengths = [text.rows for text in texts]
    body = b"\n".join([*heads, b"".join(rest)])
    frame = parse(Text(Path(), body, names, sum(lengths), []), row_type, columns)
    if len(frame) != sum(lengths):
        raise BrokenTable
    return frame, lengths, [note for text in texts for note in text.notes]


def _alone(path: Path, row_type: type, columns: list[str] | None) -> Rows:
    try:
        frame, notes = stored_table(path, row_type, columns)
        return frame, [len(frame)], notes
    except BrokenTable as problem:
        return empty_table(row_type, columns), [0], [str(problem)]
    except OSError:
        return empty_table(row_type, columns), [0], []
