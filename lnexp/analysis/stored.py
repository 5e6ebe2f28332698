"""What a long CSV says, kept beside it as Parquet: numbers parsed once are not parsed again.

`layers.csv` leaves `.layers.parquet` where pyarrow is installed, the run is over and the file is
long enough to pay. It is believed only of the very file it was made from (size, times, columns,
version), every page by its checksum, and may be deleted at any time.
"""

import json
import os
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from lnexp import __version__
from lnexp.analysis.table import TEXT, nullable, parse, read_text, wanted_columns
from lnexp.rows import EventRow, header

FORMAT = 1  # of this file
LEAST = 1_000_000  # bytes of a CSV; a shorter one is read as soon
SETTLED = 2.0  # seconds without a change: a clock's tick may hide one that is closer
PYARROW = find_spec("pyarrow") is not None
KEY = b"lnexp"


def stored_table(
    path: Path, row_type: type, columns: list[str] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """As `read_table`, from what is kept of the file where that holds."""
    seen = path.stat()  # before the file is read: what is written meanwhile is then newer
    if not _pays(seen, row_type):
        text = read_text(path, row_type)
        return parse(text, row_type, columns), text.notes
    stamp = _stamp(seen, row_type)
    wanted = wanted_columns(row_type, columns)
    if (found := _recall(beside(path), stamp, wanted)) is not None:
        return found, []
    text = read_text(path, row_type)
    keeps = not text.notes and _is_settled(path, seen)
    frame = parse(text, row_type, None if keeps else columns)
    if keeps:
        _keep(beside(path), stamp, frame)
    return cast(pd.DataFrame, frame[wanted]), text.notes


def beside(path: Path) -> Path:
    return path.with_name(f".{path.stem}.parquet")


def _pays(seen: os.stat_result, row_type: type) -> bool:
    return PYARROW and row_type is not EventRow and seen.st_size >= LEAST


def _is_settled(path: Path, seen: os.stat_result) -> bool:
    """Nobody writes it: its run is over, and it has not changed just now."""
    age = time.time() - max(seen.st_mtime, seen.st_ctime)
    return age > SETTLED and path.with_name("status.json").exists()


def _stamp(seen: os.stat_result, row_type: type) -> bytes:
    """Of which file, and by which reader. The time of the inode's change cannot be set back."""
    file = [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns]
    return json.dumps([FORMAT, __version__, pd.__version__, header(row_type), file]).encode()


def _recall(path: Path, stamp: bytes, wanted: list[str]) -> pd.DataFrame | None:
    """None: nothing is kept, it is damaged, or it is of another file or version."""
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


def _keep(path: Path, stamp: bytes, frame: pd.DataFrame) -> None:
    """By rename, so that a reader sees a whole file. Where it cannot be written there is none."""
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    with suppress(Exception):  # a read-only folder, a full disk: nothing that a reader asked for
        try:
            _write(draft, stamp, frame)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)


def _write(path: Path, stamp: bytes, frame: pd.DataFrame) -> None:
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

    # A column's own mask says what was not measured; NaN stays NaN.
    columns = {name: pa.array(frame[name], from_pandas=False) for name in frame}
    table = pa.table(columns).replace_schema_metadata({KEY: stamp})
    keys = [name for name in frame if frame[name].dtype != "Float64"]
    how: dict[str, Any] = {"use_dictionary": keys, "write_page_checksum": True}
    pq.write_table(table, path, compression="zstd", **how)
