"""The table of all runs: every run a row, whatever became of it; and what it can be filtered by."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import pandas as pd

from lnexp.report.runs import RunSection
from lnexp.results.axes import as_number, axis_texts, in_order, seed_texts, short_key
from lnexp.results.cells import horizon, outcomes
from lnexp.results.load import Results
from lnexp.results.run_folder import DEFAULTS
from lnexp.results.tables import column, numbers
from lnexp.terminal.summary import figure, ratio

UNKNOWN = "not set"  # a setting that a pending run has not resolved


@dataclass(frozen=True)
class CellText:
    """One cell: what is read, and what it is sorted by ('' stands last)."""

    text: str
    by: str


@dataclass(frozen=True)
class Head:
    name: str
    number: bool = False
    title: str = ""  # the whole name, where the head is short


@dataclass(frozen=True)
class Filter:
    """A setting or an outcome, its values, and of each run which value it has."""

    key: str
    values: list[str]
    of: list[int]
    main: bool = False  # shown without asking for more


def table(
    results: Results, sections: Sequence[RunSection]
) -> tuple[list[Head], list[list[CellText]]]:
    """The heads, and a row a run; the first column is the run's name."""
    runs = results.runs
    settings: list[tuple[Head, list[CellText]]] = []
    if len(results.axes) > 1:
        settings.append((Head("sweep"), _texts(column(runs, "sweep"))))
    axes = list(dict.fromkeys(axis for axes in results.axes.values() for axis in axes))
    short = [short_key(axis) for axis in axes]
    for axis, name in zip(axes, short, strict=True):
        texts = axis_texts(runs, axis)
        numeric = all(as_number(text) is not None or text == UNKNOWN for text in texts)
        head = Head(name if short.count(name) == 1 else axis, numeric, axis)
        settings.append((head, [CellText(t, "" if t == UNKNOWN else t) for t in texts]))
    words = zip(outcomes(runs), column(runs, "steps_done"), strict=True)
    within = [horizon(word, [steps]).replace("_", " ") for word, steps in words]
    seeds = seed_texts(runs)
    columns = [
        (Head("run"), _texts(column(runs, "run"))),
        (Head("verdict"), _texts(within)),
        *settings,
        (Head("seed", number=True), [CellText(seed, seed.split("/")[0]) for seed in seeds]),
        (Head("status"), _texts(column(runs, "status"))),
        (Head("cause"), _texts(column(runs, "cause"))),
        (Head("born bad"), _texts(one.born for one in sections)),
        (Head("first bad step", True), _figures(column(runs, "first_bad_step"), whole)),
        (Head("loss", True, "end loss, nats"), _figures(column(runs, "end_loss"), figure)),
        (Head("gap", True, "end gap, nats"), _figures(column(runs, "end_gap"), figure)),
        (
            Head("first/last", True, "first/last block gradient, end"),
            _figures(column(runs, "grad_ratio_end"), ratio),
        ),
        (Head("steps", number=True), _figures(column(runs, "steps_done"), whole)),
        (Head("seconds", number=True), _figures(column(runs, "seconds"), seconds)),
    ]
    heads = [head for head, _ in columns]
    return heads, [list(row) for row in zip(*(cells for _, cells in columns), strict=True)]


def filters(results: Results) -> list[Filter]:
    """By outcome, status, and every setting that differs between runs."""
    runs = results.runs
    axes = {axis for axes in results.axes.values() for axis in axes}
    every = [
        _filter("verdict", [word.replace("_", " ") for word in outcomes(runs)], True),
        _filter("status", list(column(runs, "status")), True),
        _filter("cause", [cause or "none" for cause in column(runs, "cause")], True),
        _filter("sweep", list(column(runs, "sweep")), True),
        *(_filter(key, axis_texts(runs, key), key in axes) for key in DEFAULTS),
        _filter("seed", [seed or UNKNOWN for seed in seed_texts(runs)], True),
    ]
    return [one for one in every if len(set(one.values) - {UNKNOWN}) > 1]


def whole(value: Any) -> str:
    return "-" if value is None or value is pd.NA else str(int(value))


def seconds(value: Any) -> str:
    return figure(value, 1)


def _texts(values: Iterable[Any]) -> list[CellText]:
    return [CellText(text, text) for text in map(str, values)]


def _figures(values: pd.Series, form: Any) -> list[CellText]:
    """NaN and Inf are words to read, and stand behind every number when sorted."""
    return [
        CellText(
            form(None if gone else value),
            "" if gone else repr(float(value)) if isfinite(value) else str(float(value)),
        )
        for value, gone in zip(numbers(values), values.isna(), strict=True)
    ]


def _filter(key: str, texts: Sequence[str], main: bool) -> Filter:
    values = in_order(texts)
    place = {text: i for i, text in enumerate(values)}
    return Filter(key, values, [place[text] for text in texts], main)
