"""Trains along a knob: the search of every cell of a sweep at once (train, read the verdicts, train
again), and the ramp, one run a seed in which the learning rate grows until training breaks."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from lnexp.boundary.reading import LR, by_value, largest_useful, ramp_edge, sensitivity
from lnexp.boundary.search import Knob, Tallies, Tally, edge, other_crossings, slow_values, wanted
from lnexp.config.rules import Settings
from lnexp.config.sweep import Sweep
from lnexp.explain.case import read_case
from lnexp.lab.schemas import BoundaryRow, RampRow
from lnexp.messages import UserError, amount
from lnexp.results.load import load, read_points
from lnexp.results.tables import column, numbers
from lnexp.runs.derived import Train, cells, derive, missing, part, words
from lnexp.runs.plan import Plan, PlannedRun, with_steps
from lnexp.runs.rundir import read_status

LONGER = 4  # times its steps: as far as a slow run is extended before it stays undecided


class Chosen(NamedTuple):
    """A run that the search asks for."""

    run: PlannedRun
    cell: int
    value: float


@dataclass
class Cell:
    """One cell's search."""

    settings: Settings
    seeds: dict[float, int]  # value -> how many of its seeds
    tallies: dict[float, Tally] = field(default_factory=dict)
    runs: Any = None  # its rows of the runs' frame


class Boundary:
    """`steps()` trains until every cell's edge is bracketed; `rows()` says where they are."""

    def __init__(self, sweep: Sweep, key: str, knob: Knob, out: Path) -> None:
        self.sweep, self.key, self.knob = sweep, key, knob
        self.cells = [Cell(settings, wanted(knob, {})) for settings in cells(sweep)]
        self.folder = out / f"{sweep.name}-boundary"
        self._add_known()

    def _add_known(self) -> None:
        """What an earlier call trained in this range: a search takes all of it into account."""
        if not (self.folder / "points.json").is_file():
            return
        of = {_key(cell.settings): cell for cell in self.cells}
        counts: dict[tuple[int, float], int] = defaultdict(int)
        for point in read_points(self.folder)["runs"]:
            settings = dict(point["settings"])
            value = settings.pop(self.key, None)
            cell = of.get(_key(settings))
            if cell and value is not None and self.knob.low <= value <= self.knob.high:
                counts[id(cell), value] += 1
                cell.seeds[value] = max(cell.seeds.get(value, 0), counts[id(cell), value])

    def steps(self, train: Train) -> Iterator[str]:
        """One round each: what will be trained, in words."""
        while True:
            whole, chosen = self._plan()
            plan = part(whole, [pick.run for pick in chosen])
            if todo := missing(plan.runs, self.folder):
                yield self._announce(todo)
            train(plan, todo)
            self._read(chosen)
            if slow := self._slow(chosen):
                yield f"{amount(len(slow), 'run')} at an edge may only be slow: extended"
                train(plan, slow)
                self._read(chosen)
            elif not self._choose():
                return

    def _plan(self) -> tuple[Plan, list[Chosen]]:
        """The whole plan, and of its runs those that are chosen, with their cell and value."""
        places = [(i, value) for i, cell in enumerate(self.cells) for value in sorted(cell.seeds)]
        kind = int if self.knob.whole else float
        cases = [{**self.cells[i].settings, self.key: kind(value)} for i, value in places]
        plan = derive(self.sweep, "boundary", cases)
        of = {_key(case): place for case, place in zip(cases, places, strict=True)}
        chosen: list[Chosen] = []
        counts: dict[tuple[int, float], int] = defaultdict(int)
        for run in plan.runs:
            cell, value = of[_key(run.point.settings)]
            if counts[cell, value] < self.cells[cell].seeds[value]:
                chosen.append(Chosen(run, cell, value))
            counts[cell, value] += 1
        return plan, chosen

    def _read(self, chosen: list[Chosen]) -> None:
        """Every cell's runs from the files, and its tallies."""
        runs = load(self.folder).runs.set_index("run", drop=False)
        for i, cell in enumerate(self.cells):
            names = [pick.run.name for pick in chosen if pick.cell == i]
            cell.runs = runs.loc[names].reset_index(drop=True)
            ended = cell.runs[cell.runs["status"].isin(["finished", "failed"])]
            shares = by_value(ended, self.key)
            columns = (list(shares[name]) for name in ("value", "unstable", "decided", "runs"))
            cell.tallies = {
                value: Tally(bad, decided - bad, ran - decided)
                for value, bad, decided, ran in zip(*columns, strict=True)
            }

    def _choose(self) -> bool:
        """More seeds and values, where a search is not over; whether there is any."""
        more = False
        for cell in self.cells:
            for value, count in wanted(self.knob, cell.tallies).items():
                cell.seeds[value] = cell.tallies.get(value, Tally()).ran + count
                more = True
        return more

    def _slow(self, chosen: list[Chosen]) -> list[PlannedRun]:
        """Undecided runs at the better end of a bracket, to be extended to twice their steps."""
        if self.sweep.points[0].config.train.schedule != "constant":
            return []
        ends = {
            (i, value)
            for i, cell in enumerate(self.cells)
            if not wanted(self.knob, cell.tallies)
            for value in slow_values(self.knob, cell.tallies)
        }
        longer = []
        for run, cell, value in chosen:
            status = read_status(self.folder / "runs" / run.name)
            if (cell, value) not in ends or status is None or status.status != "finished":
                continue
            target = min(2 * status.steps_done, LONGER * run.config.train.steps)
            if not status.stopped and target > status.steps_done:
                longer.append(with_steps(run, target))
        return longer

    def _announce(self, todo: Sequence[PlannedRun]) -> str:
        """'train.lr 0.001, 0.01: 24 runs'"""
        values = sorted({float(run.point.settings[self.key]) for run in todo})
        few = ", ".join(f"{value:g}" for value in values)
        span = few if len(values) <= 8 else f"{values[0]:g} to {values[-1]:g}"
        return f"{self.key} {span}: {amount(len(todo), 'run')}"

    def rows(self) -> list[BoundaryRow]:
        """One a cell."""
        return [self._row(cell) for cell in self.cells]

    def _row(self, cell: Cell) -> BoundaryRow:
        good, bad = edge(self.knob, cell.tallies)
        scan = cell.runs[cell.runs[self.key].astype(float).isin(self.knob.scan())]
        return BoundaryRow(
            knob=self.key,
            cell=words(cell.settings),
            low=self.knob.low,
            high=self.knob.high,
            resolution=self.knob.resolution,
            seeds=self.knob.seeds,
            stable=_side(good, bad, cell.tallies),
            edge=good,
            beyond=bad,
            edge_unstable=_counts(cell.tallies, good),
            beyond_unstable=_counts(cell.tallies, bad),
            useful=largest_useful(cell.runs, self.key),
            sensitivity=sensitivity(scan, self.key) if self.key == LR else None,
            other_crossings="; ".join(
                f"{a:g} to {b:g}" for a, b in other_crossings(self.knob, cell.tallies)
            ),
            undecided=sum(tally.undecided for tally in cell.tallies.values()),
            runs=len(cell.runs),
            values=len(cell.tallies),
            seconds=float(cell.runs["seconds"].fillna(0).sum()),
        )


def _key(settings: Settings) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, repr(value)) for key, value in settings.items()))


def _side(
    good: float | None, bad: float | None, tallies: Tallies
) -> Literal["below", "above", "everywhere", "nowhere", "undecided"]:
    """Where the stable values lie; undecided: all that are not unstable are merely slow."""
    if good is not None and bad is not None:
        return "below" if good < bad else "above"
    if all(tally.is_unstable for tally in tallies.values()):
        return "nowhere"
    return "everywhere" if any(tally.stable for tally in tallies.values()) else "undecided"


def _counts(tallies: Tallies, value: float | None) -> str:
    """'0 of 2', unstable of the decided runs."""
    if value is None:
        return ""
    tally = tallies[value]
    return f"{tally.unstable} of {tally.decided}"


class Ramp:
    """KEEL's way: the learning rate grows linearly, from lr / steps in the first step to `high` in
    the last. `train()`, then `rows()`."""

    def __init__(self, sweep: Sweep, high: float, out: Path) -> None:
        for key in ("train.lr", "train.warmup", "train.steps", "train.schedule"):
            if key in sweep.axes:
                raise UserError(f"{sweep.line(key)}: {key}: the ramp sets it; take it out")
        self.folder, self.high = out / f"{sweep.name}-ramp", high
        self.cells, self.steps = cells(sweep), sweep.points[0].config.train.steps
        ramp = {"train.lr": high, "train.warmup": self.steps}
        self.plan = derive(sweep, "ramp", [{**cell, **ramp} for cell in self.cells])

    def train(self, train: Train) -> None:
        train(self.plan, missing(self.plan.runs, self.folder))

    def rows(self) -> list[RampRow]:
        return [self._row(cell) for cell in self.cells]

    def _row(self, cell: Settings) -> RampRow:
        edges = []
        for run in self.plan.runs:
            if all(run.point.settings[key] == value for key, value in cell.items()):
                case = read_case(self.folder / "runs" / run.name)
                lr, loss, level = (
                    numbers(column(case.steps, name)) for name in ("lr", "loss", "unigram_loss")
                )
                edges.append(ramp_edge(lr, loss - level, case.bad_step))
        broke = [edge for edge in edges if edge is not None]
        return RampRow(
            cell=words(cell),
            high=self.high,
            steps=self.steps,
            edge=float(np.median(broke)) if broke else None,
            lowest=min(broke, default=None),
            highest=max(broke, default=None),
            broke=len(broke),
            runs=len(edges),
        )
