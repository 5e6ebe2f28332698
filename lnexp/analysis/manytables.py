"""The same table of many runs: long files one by one, short ones parsed together.

A parser's start costs as much as some thousand rows. What cannot be joined, or not parsed as one,
is read file by file, so that every note names the file it is about.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pandas as pd

from lnexp.analysis.stored import LEAST, stored_table
from lnexp.analysis.table import BrokenTable, Text, empty_table, parse, read_text
from lnexp.rows import EventRow

TOGETHER = 8_000_000  # bytes of short files that are parsed as one
THREADS = 8  # each holds a file's text; more wait for one another

Tables = list[tuple[pd.DataFrame, list[int], list[str]]]  # rows, how many of each file, notes


def many_tables(
    paths: Sequence[Path], row_type: type, columns: list[str] | None
) -> tuple[pd.DataFrame, list[int], list[str]]:
    """All files' rows in order, how many each has, and notes.

    A table that is not there yet, or is broken (which is noted), has no rows.
    """
    read = partial(_read, row_type=row_type, columns=columns)
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as threads:
        found = [table for tables in threads.map(read, _batches(paths)) for table in tables]
    frames = [empty_table(row_type, columns), *(frame for frame, _, _ in found)]
    lengths = [n for _, rows, _ in found for n in rows]
    return pd.concat(frames, ignore_index=True), lengths, [n for *_, notes in found for n in notes]


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


def _read(paths: list[Path], row_type: type, columns: list[str] | None) -> Tables:
    if len(paths) > 1 and row_type is not EventRow:  # whose cells may hold anything
        try:
            texts = [_text(path, row_type) for path in paths]
            return [_joined(texts, row_type, columns)]
        except (BrokenTable, OSError):
            pass
    return [_alone(path, row_type, columns) for path in paths]


def _text(path: Path, row_type: type) -> Text:
    try:
        return read_text(path, row_type)
    except FileNotFoundError:
        return Text(path, b"", [], 0, [])


def _joined(
    texts: list[Text], row_type: type, columns: list[str] | None
) -> tuple[pd.DataFrame, list[int], list[str]]:
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


def _alone(
    path: Path, row_type: type, columns: list[str] | None
) -> tuple[pd.DataFrame, list[int], list[str]]:
    notes: list[str] = []
    try:
        frame, notes = stored_table(path, row_type, columns)
    except (BrokenTable, OSError) as problem:
        frame = empty_table(row_type, columns)
        notes = [str(problem)] if isinstance(problem, BrokenTable) else []
    return frame, [len(frame)], notes
