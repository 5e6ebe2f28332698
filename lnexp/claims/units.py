"""The units that claims count: runs of one sweep, in cells that differ in the seed alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lnexp.config.names import NOT_IDENTITY
from lnexp.config.rules import canonical, hashable
from lnexp.config.sweep import Point
from lnexp.messages import amount
from lnexp.results.run_folder import DEFAULTS, FIGURES
from lnexp.results.statistics import median
from lnexp.results.tables import column, python_values

Seed = tuple[int, int]  # of initialisation and data
ENDS = ("end_loss", "end_gap")  # a run that went non-finite has no end: it ranks worst


@dataclass(frozen=True)
class Run:
    """One run, planned or done."""

    name: str
    folder: Path
    seed: Seed
    settings: dict[str, Any]
    canonical: dict[str, Any]
    status: str = "pending"
    verdict: str = ""
    causes: tuple[str, ...] = ()
    figures: Mapping[str, float | None] | None = None  # None: not measured

    @property
    def missing(self) -> str:
        """Why the run says nothing, as 'RUN: failed'; '' where it does."""
        if self.status != "finished":
            return f"{self.name}: {self.status}"
        return "" if self.verdict else f"{self.name}: no verdict"

    def figure(self, name: str) -> float | None:
        """A column of runs.csv; the end loss and gap of a non-finite run are infinite."""
        value = (self.figures or {}).get(name)
        if name in ENDS and (self.verdict == "nonfinite" or (value is not None and value != value)):
            return inf
        return value


def runs_of(frame: pd.DataFrame, sweep: str) -> list[Run]:
    """The runs of one sweep in grid order.

    A pending run knows its axes only; what it leaves open is as in the other runs.
    """
    frame = frame.loc[frame["sweep"] == sweep]
    texts = {
        name: python_values(column(frame, name))
        for name in ("run", "folder", "seed_init", "seed_data", "status", "verdict", "cause")
    }
    settings = {key: python_values(column(frame, key)) for key in DEFAULTS}
    usual = {key: _usual(values, DEFAULTS[key]) for key, values in settings.items()}
    figures = {name: python_values(column(frame, name)) for name in FIGURES}
    runs = []
    for i in range(len(frame)):
        own = {k: usual[k] if v[i] is None else v[i] for k, v in settings.items()}
        text = {name: values[i] for name, values in texts.items()}
        runs.append(
            Run(
                name=text["run"],
                folder=Path(text["folder"] or ""),
                seed=(text["seed_init"], text["seed_data"]),
                settings=own,
                canonical=canonical(own),
                status=text["status"],
                verdict=text["verdict"] or "",
                causes=tuple(filter(None, (text["cause"] or "").split("; "))),
                figures={
                    name: None if values[i] is None else float(values[i])
                    for name, values in figures.items()
                },
            )
        )
    return runs


def planned(points: Sequence[Point]) -> list[Run]:
    """The runs that a sweep would have, as if each had learned: what they can decide at best."""
    return [
        Run(
            name="",
            folder=Path(),
            seed=(point.config.seed.init, point.config.seed.data),
            settings=point.config.settings() | point.settings,
            canonical=canonical(point.config.settings()),
            status="finished",
            verdict="learned",
            figures={"end_loss": 0.0},
        )
        for point in points
    ]


def _usual(values: Iterable[Any], default: Any) -> Any:
    """The one value that all runs have which have any."""
    distinct = {hashable(value): value for value in values if value is not None}
    return next(iter(distinct.values())) if len(distinct) == 1 else default


def has(run: Run, settings: Mapping[str, Any]) -> bool:
    """Whether a run has these settings, each a value."""
    return all(_equal(run, key, value) for key, value in settings.items())


def matching(runs: Sequence[Run], where: Mapping[str, Sequence[Any]]) -> list[Run]:
    """The runs that have, of each setting, one of the values."""
    return [
        run
        for run in runs
        if all(any(_equal(run, key, v) for v in values) for key, values in where.items())
    ]


def _equal(run: Run, key: str, value: Any) -> bool:
    """By the value as resolved or in its one spelling (embed_std: 1.0 or auto); true is not 1."""
    return any(
        hashable(own[key]) == hashable(value) and (own[key] is True) == (value is True)
        for own in (run.settings, run.canonical)
    )


def cells(runs: Sequence[Run], axes: Sequence[str]) -> list[list[Run]]:
    """Runs with the same values on the axes, in grid order."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(hashable(run.settings[axis]) for axis in axes), []).append(run)
    return list(groups.values())


def by_seed(runs: Sequence[Run]) -> dict[Seed, list[Run]]:
    groups: dict[Seed, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.seed, []).append(run)
    return groups


class Partners:
    """Finds the run of equal seed and other settings."""

    def __init__(self, runs: Sequence[Run], chosen: str | None = None) -> None:
        """`chosen`: a setting that each side chose for itself, so partners may differ in it."""
        self.skip = {*NOT_IDENTITY, chosen}
        self.runs = {(run.seed, self._key(run.canonical)): run for run in runs}

    def of(self, run: Run, settings: Mapping[str, Any]) -> Run | None:
        """The run that differs in these settings alone (and in what they leave without effect)."""
        return self.runs.get((run.seed, self._key(canonical({**run.canonical, **settings}))))

    def _key(self, settings: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(hashable(v) for key, v in settings.items() if key not in self.skip)


@dataclass(frozen=True)
class Tuned:
    """What is left to judge after each cell chose its own value of a setting."""

    runs: list[Run]
    axes: list[str]  # without the setting
    problem: str = ""  # why nothing could be chosen


def tune(runs: Sequence[Run], axes: Sequence[str], key: str, seeds: Sequence[int]) -> Tuned:
    """Choose the value with the lowest median end loss on tuning seeds; keep the other seeds' runs.

    Tuning seeds: those with an initialisation seed in `seeds`, or the first half of all seeds.
    """
    rest = [axis for axis in axes if axis != key]
    if key not in axes:
        return Tuned([], rest, f"this sweep does not vary {key}")
    distinct = list(dict.fromkeys(run.seed for run in runs))
    tuning = (
        {s for s in distinct if s[0] in seeds} if seeds else set(distinct[: len(distinct) // 2])
    )
    if not tuning or len(tuning) == len(distinct):
        return Tuned(
            [], rest, f"{amount(len(distinct), 'seed')}: none to choose {key}, or none to judge"
        )
    judging: list[Run] = []
    for group in cells(runs, rest):
        scores = {}
        for candidate in cells(group, [key]):
            ends = [r.figure("end_loss") for r in candidate if r.seed in tuning and not r.missing]
            if ends and None not in ends:
                scores[hashable(candidate[0].settings[key])] = _score(ends)
        if scores:
            best = min(scores, key=lambda value: scores[value])
            judging += [
                r for r in group if r.seed not in tuning and hashable(r.settings[key]) == best
            ]
    return Tuned(judging, rest, "" if judging else f"no tuning run has finished to choose {key}")


def _score(ends: Sequence[Any]) -> float:
    middle = median(np.array(ends, dtype=float))
    return middle if middle is not None and isfinite(middle) else inf
