"""Runs and cells as tables: for the terminal, JSON, CSV and LaTeX."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Group
from rich.text import Text

from lnexp.config.rules import caveats
from lnexp.files import strict_json
from lnexp.messages import amount, one_line
from lnexp.results.axes import LETTERS, all_foreign, gap_words, seed_texts, short_key, value_text
from lnexp.results.cells import WITH_HORIZON, all_cells, horizon, outcomes
from lnexp.results.load import Results
from lnexp.results.tables import column, python_values
from lnexp.rows import line
from lnexp.terminal.sheet import Column, Sheet

LEGEND = (
    "loss, gap: medians of the last 10 % of a run's steps (nats), and of those over a cell's runs; "
    "gap: {gap}; first/last: gradient norm of the first block over that of the last; P(failure): "
    "nonfinite, diverged, lost or stalled, of the decided runs [95 %]."
)
H1 = f"H1 = {{}} nats: the loss of {LETTERS}."
NAMED = 3  # folders that are named where more are left out


def tables(results: Results) -> Group:
    """Cells, then runs, sweep by sweep; below each what it left out, and notes at the end."""
    parts: list[Sheet | Text] = []
    for sweep, *sheets in zip(
        results.axes, cells_sheets(results), _runs_sheets(results), strict=True
    ):
        parts += [*sheets, *_left_out(results, sweep)]
    return Group(*parts, *(Text(one_line(f"note: {note}")) for note in results.notes))


def as_json(results: Results) -> str:
    """Strict JSON: a non-finite number is "nan", "inf" or "-inf", what was not measured is null."""
    return strict_json(
        {
            "runs": _records(results.runs),
            "cells": _records(all_cells(results.runs, results.axes)),
            "axes": results.axes,
            "dropped": [str(folder) for folder in results.dropped],
            "notes": results.notes,
        }
    )


def as_csv(frame: pd.DataFrame) -> str:
    """Runs or cells as in the CSVs of a run: nan and inf written out, empty: not measured."""
    rows = zip(*(python_values(column(frame, name)) for name in frame), strict=True)
    return line(frame.columns) + "".join(map(line, rows))


def as_tex(results: Results) -> str:
    """The tables of runs and cells as LaTeX tabulars (booktabs)."""
    return "\n".join(sheet.tex() for sheet in (*cells_sheets(results), *_runs_sheets(results)))


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


def legend(runs: pd.DataFrame) -> str:
    return LEGEND.format(gap=gap_words(runs))


def _runs_sheets(results: Results) -> list[Sheet]:
    return [
        _runs_sheet(runs, axes, f"{sweep}: each run")
        for sweep, (runs, axes, _) in zip(results.axes, by_sweep(results), strict=True)
    ]


def _runs_sheet(runs: pd.DataFrame, axes: Sequence[str], title: str) -> Sheet:
    words, steps = outcomes(runs), python_values(column(runs, "steps_done"))
    columns = [
        Column("seed", seed_texts(runs), number=True),
        Column("verdict", words),
        _numbers("loss", column(runs, "end_loss"), figure, 6),
        _numbers("gap", column(runs, "end_gap"), figure, 3),
        _numbers("first/last", column(runs, "grad_ratio_end"), ratio, 2),
        Column("cause", list(column(runs, "cause")), rank=5, wraps=True),
        Column("run", list(column(runs, "run")), rank=1),
    ]
    below = [*_horizons(words, steps), *caveats(column(runs, "model.norm")), legend(runs)]
    return _sheet(title, axis_columns(runs, axes), columns, below)


def _horizons(words: Sequence[str], steps: Sequence[Any]) -> list[str]:
    """'stalled: within 200 steps.': said once below the table instead of in every row."""
    lines = []
    for word in WITH_HORIZON:
        done = [s for w, s in zip(words, steps, strict=True) if w == word]
        if done:
            lines.append(f"{word}: {horizon(word, done).removeprefix(word).strip() or 'here'}.")
    return lines


def _sheet(title: str, axes: list[Column], columns: list[Column], below: list[str]) -> Sheet:
    """Where it is narrow the axes stand in one column and 'first/last' breaks."""
    folded = [
        Column(
            " ".join(column.head for column in axes),
            [" ".join(texts) for texts in zip(*(column.cells for column in axes), strict=True)],
        )
    ]
    rest = [replace(c, head=c.head.replace("/", "/ ")) for c in columns]
    return Sheet(
        title, [*axes, *columns], below, narrow=[*(folded if len(axes) > 1 else axes), *rest]
    )


def cells_sheets(results: Results) -> list[Sheet]:
    cells = all_cells(results.runs, results.axes)
    return [
        _cells_sheet(cells.loc[cells["sweep"] == sweep], axes, title, all_foreign(runs))
        for sweep, (runs, axes, title) in zip(results.axes, by_sweep(results), strict=True)
    ]


def _cells_sheet(cells: pd.DataFrame, axes: Sequence[str], title: str, given: bool) -> Sheet:
    """`given`: the level of a gap of 0 is no H1 but what the user said."""
    limits = (column(cells, f"p_failure{end}") for end in ("", "_low", "_high"))
    share = [
        "-" if p is pd.NA else f"{p:.2f} [{low:.2f},{high:.2f}]"
        for p, low, high in zip(*limits, strict=True)
    ]
    known = {figure(value) for value in python_values(column(cells, "h1")) if value is not None}
    level = "baseline" if given else "H1"
    words = "Baseline: {} nats, where one was given." if given else H1
    # One text, one H1: said once below the table instead of in every row.
    below = [words.format(value) for value in known] if len(known) == 1 else []
    counts = zip(column(cells, "finished"), column(cells, "runs"), strict=True)
    columns = [
        Column("runs", [f"{n} of {m}" for n, m in counts]),
        Column("verdicts", list(column(cells, "verdicts")), wraps=True, readable=14),
        Column("loss", _medians(cells, "end_loss"), number=True, rank=4),
        Column("loss range", _ranges(cells, "end_loss"), rank=7),
        Column("gap", _medians(cells, "end_gap"), number=True, rank=3),
        Column("gap range", _ranges(cells, "end_gap"), rank=6),
        *([_numbers(level, column(cells, "h1"), figure, 4)] if len(known) > 1 else []),
        Column("P(failure)", share, number=True),
        _numbers("first/last", column(cells, "grad_ratio_end"), ratio, 2),
        Column("causes", list(column(cells, "causes")), rank=5, wraps=True),
    ]
    return _sheet(title, axis_columns(cells, axes), columns, below)


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


def axis_columns(frame: pd.DataFrame, axes: Sequence[str]) -> list[Column]:
    """The last part of an axis's name, or all of it where two axes share it."""
    short = [short_key(axis) for axis in axes]
    columns = []
    for axis, name in zip(axes, short, strict=True):
        values = column(frame, axis)
        columns.append(
            Column(
                name if short.count(name) == 1 else axis,
                [value_text(value) for value in python_values(values)],
                number=pd.api.types.is_numeric_dtype(values.dtype)
                and not pd.api.types.is_bool_dtype(values.dtype),
            )
        )
    return columns


def _numbers(head: str, values: pd.Series, form: Callable[[Any], str], rank: int) -> Column:
    return Column(head, [form(value) for value in values], number=True, rank=rank)


def by_sweep(results: Results) -> list[tuple[pd.DataFrame, list[str], str]]:
    """The runs, axes and title of every sweep."""
    parts = []
    for sweep, axes in results.axes.items():
        question = one_line(" ".join(results.questions.get(sweep, "").split()))
        title = f"{sweep}: {question}" if question else sweep
        runs = results.runs.loc[results.runs["sweep"] == sweep]
        parts.append((runs.reset_index(drop=True), axes, title))
    return parts


def _left_out(results: Results, sweep: str) -> list[Text]:
    """The run folders on disk that the sweep no longer holds: how many, and some by name."""
    names = [folder.name for folder in results.dropped if folder.parents[1].name == sweep]
    if not names:
        return []
    more = ", ..." if len(names) > NAMED else ""
    some = ", ".join(names[:NAMED])
    folders = amount(len(names), "folder")
    return [Text(f"Left out, no point of {sweep} any more: {folders} ({some}{more})\n")]


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    columns = {name: python_values(column(frame, name)) for name in frame}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
