"""One run a seed in which the learning rate grows linearly until training breaks (KEEL's way)."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..analysis.case import read_case
from ..analysis.stability import ramp_edge
from ..analysis.table import column, numbers
from ..errors import UserError
from ..labrows import RampRow
from ..runs.execute import is_done
from ..runs.plan import Plan, PlannedRun
from ..sweep import Sweep
from .derived import cells, derive, words

Train = Callable[[Plan, Sequence[PlannedRun]], None]


class Ramp:
    """`train()`, then `rows()`: from lr / steps in the first step to `high` in the last."""

    def __init__(self, sweep: Sweep, high: float, out: Path) -> None:
        for key in ("train.lr", "train.warmup", "train.steps", "train.schedule"):
            if key in sweep.axes:
                raise UserError(f"{sweep.line(key)}: {key}: the ramp sets it; take it out")
        self.folder, self.high = out / f"{sweep.name}-ramp", high
        self.cells, self.steps = cells(sweep), sweep.points[0].config.train.steps
        ramp = {"train.lr": high, "train.warmup": self.steps}
        self.plan = derive(sweep, "ramp", [{**cell, **ramp} for cell in self.cells])

    def train(self, train: Train) -> None:
        runs = self.plan.runs
        train(self.plan, [r for r in runs if not is_done(r, self.folder / "runs" / r.name)])

    def rows(self) -> list[RampRow]:
        return [self._row(cell) for cell in self.cells]

    def _row(self, cell: dict) -> RampRow:
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
