"""Everything that one run left behind, read once."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lnexp.explain.chain import COLUMNS, chain
from lnexp.messages import UserError
from lnexp.records import Autopsy, BrokenRecord, Status, read_json
from lnexp.results.causes import Cause
from lnexp.results.load import load
from lnexp.results.run_folder import (
    TABLES,
    judge_run,
    read_config,
    read_process,
)
from lnexp.results.runs_csv import is_locked
from lnexp.results.tables import BrokenTable, column, empty_table, numbers
from lnexp.results.verdicts import FAILURES, Judgement

NAMED = 4  # run folders that are named to whoever gave a sweep


@dataclass(frozen=True)
class Case:
    """One run. Where a file is missing or broken its part is empty and a note says so."""

    folder: Path
    settings: dict[str, Any]  # by dotted name
    seeds: dict[str, int]  # seed_init, seed_data; empty: not known
    env: dict[str, Any]
    process: Status
    steps: pd.DataFrame
    layers: pd.DataFrame
    events: pd.DataFrame
    autopsy: Autopsy | None
    judgement: Judgement
    notes: list[str]

    @property
    def depth(self) -> int:
        """0: not known (an imported run)."""
        return int(self.settings.get("model.depth", 0))

    @property
    def foreign(self) -> bool:
        """Whether somebody's own loop made it: a watched run, or an imported log."""
        return bool(self.env.get("watched")) or "imported" in self.env

    @property
    def all_frozen(self) -> bool:
        """Whether no weight ever moved."""
        return bool(self.process.unmoved) and len(self.process.unmoved) == self.env.get("tensors")

    @property
    def causes(self) -> dict[str, Cause]:
        return {cause.name: cause for cause in self.judgement.causes}

    @property
    def figures(self) -> dict[str, float | int | None]:
        return self.judgement.numbers

    @property
    def bad_step(self) -> int | None:
        step = self.figures.get("first_bad_step")
        return None if step is None else int(step)

    @cached_property
    def chain(self) -> pd.DataFrame:
        """What left its usual range, up to the first non-finite value or the end."""
        steps = column(self.steps, "step")
        if not len(steps):
            return pd.DataFrame(columns=COLUMNS)
        last = int(steps.iloc[-1])
        until = last if self.bad_step is None else self.bad_step
        return chain(self.steps, self.layers, self.events, self.depth, until)

    def left(self, series: str) -> dict[str, Any] | None:
        """The row of the chain of that series."""
        rows = self.chain.to_dict("records")
        return next((row for row in rows if row["series"] == series), None)

    def events_of(self, *kinds: str) -> Iterator[dict[str, Any]]:
        return (event for event in self.events.to_dict("records") if event["kind"] in kinds)

    def readings(self, name: str) -> np.ndarray:
        """The finite readings of a column of steps.csv."""
        values = numbers(column(self.steps, name))
        return values[np.isfinite(values)]


def read_case(folder: Path) -> Case:
    """A run folder, or a point of a sweep that has none yet."""
    if not (folder / "config.yaml").is_file():
        return _without_config(folder)
    try:
        settings, seeds = read_config(folder)
    except BrokenRecord as problem:
        raise UserError(str(problem)) from None
    process, notes = _process(folder)
    try:
        env = read_json(folder / "env.json")
        frames, autopsy, judgement, more = judge_run(
            folder, dict.fromkeys(TABLES), settings, env, process
        )
    except (BrokenRecord, BrokenTable) as problem:
        return _blank(folder, settings, seeds, process, [*notes, str(problem)])
    return Case(
        folder, settings, seeds, env, process, frames["steps"], frames["layers"],
        frames["events"], autopsy, judgement, [*notes, *more],
    )  # fmt: skip


def _process(folder: Path) -> tuple[Status, list[str]]:
    return read_process(folder, is_locked(folder.resolve().parent.parent))


def _without_config(folder: Path) -> Case:
    """A sweep (which is no run), a point that is pending, a run that failed at once, or neither."""
    sweep = folder.resolve().parent.parent
    if (folder / "points.json").is_file() or next(folder.glob("*/points.json"), None):
        raise UserError(*_which(folder, load(folder).runs))
    if folder.resolve().parent.name == "runs" and (sweep / "points.json").is_file():
        results = load(sweep)
        for row in results.runs.to_dict("records"):
            if row["run"] == folder.name:
                settings = {key: row[key] for key in results.axes[sweep.name]}
                seeds = {key: int(row[key]) for key in ("seed_init", "seed_data")}
                process, notes = _process(folder) if folder.is_dir() else (Status("pending"), [])
                return _blank(folder, settings, seeds, process, notes)
    raise UserError(f"{folder}: not a run folder; expected results/SWEEP/runs/RUN")


def _which(folder: Path, runs: pd.DataFrame) -> list[str]:
    """The sweep's most telling runs: one of each outcome, failures first."""
    rows = runs.to_dict("records")
    first = {row["verdict"] or row["status"]: row["folder"] for row in reversed(rows)}
    order = sorted(first, key=lambda word: word not in FAILURES)
    return [
        f"{folder}: {len(rows)} runs; explain takes one run folder, for example",
        *(f"  {first[word]}  ({word})" for word in order[:NAMED]),
    ]


def _blank(folder: Path, settings: dict, seeds: dict, process: Status, notes: list[str]) -> Case:
    """A run of which nothing but its settings and status is known."""
    steps, layers, events = (empty_table(row_type, None) for row_type in TABLES.values())
    judgement = Judgement("", process.error or "", [], {}, "within 0 steps")
    return Case(
        folder, settings, seeds, {}, process, steps, layers, events, None, judgement, notes
    )  # fmt: skip
