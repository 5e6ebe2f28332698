"""One sweep on the page: question, claims, verdict map, cells, and how to run it again."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from shlex import quote
from typing import Any

import pandas as pd

from lnexp.claims.judge import ClaimResult
from lnexp.claims.show import claims_sheets
from lnexp.config.rules import caveats
from lnexp.figures.frames import outcome_words
from lnexp.messages import amount
from lnexp.report.runs import RunSection
from lnexp.results.axes import (
    axis_texts,
    choose_look,
    combinations,
    common_settings,
    in_words,
    map_axes,
    value_text,
)
from lnexp.results.cells import OUTCOMES, cells, members, outcomes
from lnexp.results.load import Results
from lnexp.results.run_folder import DEFAULTS
from lnexp.results.tables import column
from lnexp.terminal.sheet import Sheet

# Facts of env.json that are too long to be read.
LONG = ("schema", "letter_frequencies", "vocabulary", "init_std")


@dataclass(frozen=True)
class Part:
    """The runs of one outcome in a cell."""

    outcome: str
    n: int
    total: int

    @property
    def words(self) -> str:
        return f"{self.n} of {self.total} {self.outcome.replace('_', ' ')}"


@dataclass(frozen=True)
class Square:
    """One cell of the map."""

    cell: int  # its number on the page
    words: str  # its settings
    parts: list[Part]
    failure: str  # P(failure) with interval and n of m


@dataclass(frozen=True)
class SweepSection:
    """What the page says of one sweep."""

    name: str
    question: str
    summary: list[tuple[str, str]]  # outcome, '8 runs stalled within 200 steps'
    common: str
    claims: list[Sheet]
    table: Sheet
    columns: list[str]
    rows: list[tuple[str, list[list[Square]]]]
    config: str
    command: str
    settings: list[tuple[str, str]]
    env: list[tuple[str, str]]
    left_out: list[str]
    caveats: list[str]
    first_cell: int

    @property
    def file(self) -> str:
        return f"{self.name}.yaml"


def read_sweep(
    results: Results,
    sweep: str,
    table: Sheet,
    sections: Sequence[RunSection],
    claims: Sequence[ClaimResult],
    folder: Path,
    first_cell: int,
) -> SweepSection:
    """`sections`: of this sweep's runs; its cells are numbered from `first_cell` on."""
    runs = results.runs.loc[results.runs["sweep"] == sweep].reset_index(drop=True)
    axes = results.axes[sweep]
    columns, rows = _map(runs, axes, first_cell)
    return SweepSection(
        name=sweep,
        question=results.questions.get(sweep, ""),
        summary=list(outcome_words(runs).items()),
        common=common_settings(runs),
        claims=claims_sheets(sweep, claims),
        table=table,
        columns=columns,
        rows=rows,
        config=_text(folder / "sweep.yaml"),
        command=f"lnexp run {quote(f'{sweep}.yaml')}",
        settings=_settings(runs),
        env=_env([one.env for one in sections if one.env]),
        left_out=[f.name for f in results.dropped if f.parents[1].name == sweep],
        caveats=caveats(column(runs, "model.norm")),
        first_cell=first_cell,
    )


def cell_numbers(results: Results) -> tuple[list[int], dict[str, int]]:
    """Of each run the number of its cell on the page, and each sweep's first number."""
    number, first, at = [0] * len(results.runs), {}, 0
    for sweep, axes in results.axes.items():
        rows = (results.runs["sweep"] == sweep).to_numpy().nonzero()[0]
        first[sweep] = at
        for group in members(results.runs.iloc[rows], axes):
            for i in group:
                number[rows[i]] = at
            at += 1
    return number, first


def _map(
    runs: pd.DataFrame, axes: Sequence[str], first_cell: int
) -> tuple[list[str], list[tuple[str, list[list[Square]]]]]:
    """The heads of the columns, and the rows; a place that the grid leaves open is empty."""
    if not len(runs):
        return [], []
    down, across = map_axes(runs, axes, choose_look(runs, axes))
    row, col, whole = (in_words(runs, some) for some in (down, across, [*down, *across]))
    places: dict[tuple[str, str], list[Square]] = {}
    for i, (group, facts) in enumerate(
        zip(members(runs, axes), cells(runs, axes).to_dict("records"), strict=True)
    ):
        at = group[0]
        words = outcomes(runs.iloc[group])
        parts = [Part(o, words.count(o), len(words)) for o in OUTCOMES if o in words]
        square = Square(first_cell + i, whole[at] or "all runs", parts, _failure(facts))
        places.setdefault((row[at], col[at]), []).append(square)
    columns = combinations(runs, across)
    rows = [
        (words or "all", [places.get((words, c), []) for c in columns])
        for words in combinations(runs, down)
    ]
    return [c or "all" for c in columns], rows


def _failure(facts: dict[str, Any]) -> str:
    of = f"{facts['failures']} of {amount(facts['decided'], 'decided run')}"
    beside = f"; beside it {facts['undecided']}" if facts["undecided"] else ""
    if not facts["decided"]:
        return f"P(failure): no run is decided{beside}".replace("_", " ")
    low, high = facts["p_failure_low"], facts["p_failure_high"]
    share = f"P(failure) {facts['p_failure']:.2f} [{low:.2f}, {high:.2f}], {of}"
    return f"{share}{beside}".replace("_", " ")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as problem:
        return f"# {path.name} cannot be read: {problem.strerror}"


def _settings(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """Every setting as resolved; where runs differ, each value with its count."""
    return [(key, _counted(axis_texts(runs, key))) for key in DEFAULTS if key in runs]


def _env(facts: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """What env.json of the runs says, the same way."""
    keys = [key for key in dict.fromkeys(k for one in facts for k in one) if key not in LONG]
    return [(key, _counted([_fact(one.get(key)) for one in facts])) for key in keys]


def _counted(texts: Sequence[str]) -> str:
    counts = Counter(texts)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{text or 'none'} ({amount(n, 'run')})" for text, n in counts.items())


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_fact(item)}" for key, item in value.items())
    if isinstance(value, float) and isnan(value):
        return "nan"
    return "none" if value is None or value == "" else value_text(value)
