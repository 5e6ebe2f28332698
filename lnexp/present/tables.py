"""Runs and cells as tables: for the terminal, JSON, CSV and LaTeX."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Group
from rich.text import Text

from lnexp.analysis.cells import all_cells, horizon, outcomes
from lnexp.analysis.load import Results
from lnexp.analysis.table import column
from lnexp.lines import one_line
from lnexp.present.grid import short_key, value_text
from lnexp.present.sheet import Column, Sheet
from lnexp.rows import line

RUNS_LEGEND = (
    "loss, gap: medians of the last 10 % of steps (nats); gap: loss minus that of guessing by "
    "letter frequency; first/last: gradient norm of the first block over that of the last."
)
CELLS_LEGEND = (
    "loss, gap: medians over seeds of the runs' ends, with their range; gap: loss minus that of "
    "guessing by letter frequency; P(failure): nonfinite, diverged, lost or stalled, of the "
    "decided runs [95 %]."
)


def runs_table(results: Results) -> Group:
    """One row a run, a table a sweep."""
    return Group(*_runs_sheets(results))


def cells_table(results: Results) -> Group:
    """One row a cell, a table a sweep; below them, once, what the tables do not hold."""
    return Group(*_cells_sheets(results), *_remarks(results))


def as_json(results: Results) -> str:
    """Strict JSON: a non-finite number is "nan", "inf" or "-inf", what was not measured is null."""
    value = {
        "runs": _records(results.runs),
        "cells": _records(all_cells(results.runs, results.axes)),
        "axes": results.axes,
        "dropped": [str(folder) for folder in results.dropped],
        "notes": results.notes,
    }
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def as_csv(frame: pd.DataFrame) -> str:
    """Runs or cells as in the CSVs of a run: nan and inf written out, empty: not measured."""
    rows = zip(*(map(_plain, _values(column(frame, name))) for name in frame), strict=True)
    return line(frame.columns) + "".join(map(line, rows))


def as_tex(results: Results) -> str:
    """The tables of runs and cells as LaTeX tabulars (booktabs)."""
    return "\n".join(sheet.tex() for sheet in (*_cells_sheets(results), *_runs_sheets(results)))


def figure(value: Any, digits: int = 3) -> str:
    """A number in a table, '-' where it was not measured; one that is not 0 never reads 0.000."""
    if value is None or value is pd.NA:
        return "-"
    if not np.isfinite(value):
        return str(float(value))
    small = value != 0 and abs(value) < 0.5 * 10**-digits
    return f"{value:.1e}" if small or abs(value) >= 1e5 else f"{value:.{digits}f}"


def ratio(value: Any) -> str:
    """Ratios run over many powers of ten."""
    if value is None or value is pd.NA or value == 0 or not np.isfinite(value):
        return "0" if value is not pd.NA and value == 0 else figure(value)
    return f"{value:.2f}" if 0.1 <= value < 1000 else f"{value:.1e}"


def _runs_sheets(results: Results) -> list[Sheet]:
    return [_runs_sheet(runs, axes, title) for runs, axes, title in _sweeps(results)]


def _runs_sheet(runs: pd.DataFrame, axes: Sequence[str], title: str) -> Sheet:
    words = outcomes(runs)
    verdicts = [
        horizon(w, [s]) for w, s in zip(words, _values(column(runs, "steps_done")), strict=True)
    ]
    pairs = list(zip(column(runs, "seed_init"), column(runs, "seed_data"), strict=True))
    seeds = [str(a) if a == b else f"{a}/{b}" for a, b in pairs]
    columns = [
        *_axis_columns(runs, axes),
        Column("seed", seeds, number=True),
        Column("verdict", verdicts),
        _numbers("loss", column(runs, "end_loss"), figure, 3),
        _numbers("gap", column(runs, "end_gap"), figure, 2),
        _numbers("first/last", column(runs, "grad_ratio_end"), ratio, 4),
        Column("cause", list(column(runs, "cause")), rank=1, wraps=True),
        Column("run", list(column(runs, "run")), rank=5),
    ]
    return Sheet(title, columns, [RUNS_LEGEND])


def _cells_sheets(results: Results) -> list[Sheet]:
    cells = all_cells(results.runs, results.axes)
    sheets = []
    for (_, axes, title), sweep in zip(_sweeps(results), results.axes, strict=True):
        sheets.append(_cells_sheet(cells.loc[cells["sweep"] == sweep], axes, title))
    return sheets


def _cells_sheet(cells: pd.DataFrame, axes: Sequence[str], title: str) -> Sheet:
    share = [
        "-" if p is pd.NA else f"{p:.2f} [{low:.2f},{high:.2f}]"
        for p, low, high in zip(
            column(cells, "p_failure"),
            column(cells, "p_failure_low"),
            column(cells, "p_failure_high"),
            strict=True,
        )
    ]
    h1 = _one_h1(cells)
    counts = zip(column(cells, "finished"), column(cells, "runs"), strict=True)
    columns = [
        *_axis_columns(cells, axes),
        Column("runs", [f"{n} of {m}" for n, m in counts]),
        Column("verdicts", list(column(cells, "verdicts")), wraps=True),
        Column("loss", _medians(cells, "end_loss"), number=True, rank=2),
        Column("loss range", _ranges(cells, "end_loss"), rank=6),
        Column("gap", _medians(cells, "end_gap"), number=True, rank=1),
        Column("gap range", _ranges(cells, "end_gap"), rank=5),
        *([] if h1 else [_numbers("H1", column(cells, "h1"), figure, 3)]),
        Column("P(failure)", share, number=True),
        _numbers("first/last", column(cells, "grad_ratio_end"), ratio, 4),
        Column("causes", list(column(cells, "causes")), rank=7, wraps=True),
    ]
    return Sheet(title, columns, [*h1, CELLS_LEGEND])


def _one_h1(cells: pd.DataFrame) -> list[str]:
    """One text, one H1: said once below the table instead of in every row."""
    values = {figure(value) for value in _values(column(cells, "h1")) if value is not pd.NA}
    return (
        [f"H1 = {values.pop()} nats: the loss of guessing by letter frequency."]
        if len(values) == 1
        else []
    )


def _medians(cells: pd.DataFrame, name: str) -> list[str]:
    """'3.214', and of how many runs where not all count."""
    of = zip(column(cells, name), column(cells, f"{name}_n"), column(cells, "runs"), strict=True)
    return [figure(value) + (f" {n} of {m}" if 0 < n < m else "") for value, n, m in of]


def _ranges(cells: pd.DataFrame, name: str) -> list[str]:
    """'3.180..3.250' where there are two runs or more."""
    parts = (column(cells, f"{name}{part}") for part in ("_min", "_max", "_n"))
    return [
        f"{figure(low)}..{figure(high)}" if n > 1 else ""
        for low, high, n in zip(*parts, strict=True)
    ]


def _axis_columns(frame: pd.DataFrame, axes: Sequence[str]) -> list[Column]:
    """The last part of an axis's name, or all of it where two axes share it."""
    short = [short_key(axis) for axis in axes]
    return [
        Column(
            name if short.count(name) == 1 else axis,
            [value_text(value) for value in _values(column(frame, axis))],
            number=pd.api.types.is_numeric_dtype(column(frame, axis).dtype)
            and not pd.api.types.is_bool_dtype(column(frame, axis).dtype),
        )
        for axis, name in zip(axes, short, strict=True)
    ]


def _numbers(head: str, values: pd.Series, form: Callable[[Any], str], rank: int) -> Column:
    return Column(head, [form(value) for value in values], number=True, rank=rank)


def _sweeps(results: Results) -> list[tuple[pd.DataFrame, list[str], str]]:
    """The runs, axes and title of every sweep."""
    found = []
    for sweep, axes in results.axes.items():
        question = one_line(" ".join(results.questions.get(sweep, "").split()))
        title = f"{sweep}: {question}" if question else sweep
        runs = results.runs.loc[results.runs["sweep"] == sweep]
        found.append((runs.reset_index(drop=True), axes, title))
    return found


def _remarks(results: Results) -> list[Text]:
    """What the tables do not hold, by name."""
    remarks = [one_line(f"note: {note}") for note in results.notes]
    if results.dropped:
        names = ", ".join(folder.name for folder in results.dropped)
        remarks.append(f"Left out, on disk but no point of its sweep any more: {names}")
    return [Text(remark) for remark in remarks]


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    columns = {name: map(_strict, _values(column(frame, name))) for name in frame}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _values(series: pd.Series) -> list[Any]:
    """Python values with None for "not measured"."""
    empty = series.isna().to_numpy()
    masked = not isinstance(series.dtype, np.dtype)
    values = series.astype(object).to_list()
    if not masked and series.dtype.kind == "f":
        return values
    return [None if gone else v for v, gone in zip(values, empty, strict=True)]


def _plain(value: Any) -> Any:
    """A Python number for a numpy one, which would print its type."""
    return value.item() if isinstance(value, np.generic) else value


def _strict(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value
