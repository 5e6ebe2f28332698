"""The table of all runs: every run a row, whatever became of it; and what it can be filtered by."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import pandas as pd

from lnexp.report.runs import Told
from lnexp.results.axes import axis_texts, in_order, seed_texts, short_key
from lnexp.results.cells import horizon, outcomes
from lnexp.results.load import Results
from lnexp.results.run_folder import DEFAULTS
from lnexp.results.tables import column, numbers
from lnexp.terminal.summary import figure, ratio

UNKNOWN = "not set"  # a setting that a pending run has not resolved


@dataclass(frozen=True)
class Entry:
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


def table(results: Results, told: Sequence[Told]) -> tuple[list[Head], list[list[Entry]]]:
    """The heads, and a row a run; the first column is the run's name."""
    runs = results.runs
    settings: list[tuple[Head, list[Entry]]] = []
    if len(results.axes) > 1:
        settings.append((Head("sweep"), _texts(column(runs, "sweep"))))
    axes = list(dict.fromkeys(axis for axes in results.axes.values() for axis in axes))
    short = [short_key(axis) for axis in axes]
    for axis, name in zip(axes, short, strict=True):
        texts = axis_texts(runs, axis)
        numeric = _numeric(texts)
        head = Head(name if short.count(name) == 1 else axis, numeric, axis)
        settings.append((head, [Entry(t, "" if t == UNKNOWN else t) for t in texts]))
    words = outcomes(runs)
    within = [
        horizon(word, [steps]).replace("_", " ")
        for word, steps in zip(words, column(runs, "steps_done"), strict=True)
    ]
    columns = [
        (Head("run"), _texts(column(runs, "run"))),
        (Head("verdict"), [Entry(text, text) for text in within]),
        *settings,
        (Head("seed", number=True), [Entry(seed, seed.split("/")[0]) for seed in seed_texts(runs)]),
        (Head("status"), _texts(column(runs, "status"))),
        (Head("cause"), _texts(column(runs, "cause"))),
        (Head("born bad"), [Entry(one.born, one.born) for one in told]),
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
    found = [
        _filter("verdict", [word.replace("_", " ") for word in outcomes(runs)], True),
        _filter("status", list(column(runs, "status")), True),
        _filter("cause", [cause or "none" for cause in column(runs, "cause")], True),
        _filter("sweep", list(column(runs, "sweep")), True),
        *(_filter(key, axis_texts(runs, key), key in axes) for key in DEFAULTS),
        _filter("seed", [seed or UNKNOWN for seed in seed_texts(runs)], True),
    ]
    return [one for one in found if len(set(one.values) - {UNKNOWN}) > 1]


def whole(value: Any) -> str:
    return "-" if value is None or value is pd.NA else str(int(value))


def seconds(value: Any) -> str:
    return figure(value, 1)


def _texts(values: pd.Series) -> list[Entry]:
    texts = [str(value) for value in values]
    return [Entry(text, text) for text in texts]


def _figures(values: pd.Series, form: Any) -> list[Entry]:
    """NaN and Inf are words to read, and stand behind every number when sorted."""
    return [
        Entry(
            form(None if gone else value),
            "" if gone else repr(float(value)) if isfinite(value) else str(float(value)),
        )
        for value, gone in zip(numbers(values), values.isna(), strict=True)
    ]


def _numeric(texts: Sequence[str]) -> bool:
    def is_number(text: str) -> bool:
        try:
            float(text)
        except ValueError:
            return text == UNKNOWN
        return True

    return all(map(is_number, texts))


def _filter(key: str, texts: Sequence[str], main: bool) -> Filter:
    values = in_order(texts)
    place = {text: i for i, text in enumerate(values)}
    return Filter(key, values, [place[text] for text in texts], main)
