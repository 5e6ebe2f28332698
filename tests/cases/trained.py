"""A few steps trained in this process, with a fault put in; and what the reading half says."""

import csv
import json
import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lnexp.config.schema import Data, Measure, Model, RunConfig, Train
from lnexp.data import Corpus, load
from lnexp.explain.explain import Explanation, explain
from lnexp.results.run_folder import read_run
from lnexp.rows import EventRow, Record
from lnexp.runs import worker
from lnexp.train.loop import train
from lnexp.train.state import State, set_up

MARKOV = Data(source="markov", length=5000)
# Norms whose eps stands under the root, and placements that hold one.
ROOTED = ("layernorm", "layernorm_plain", "rmsnorm")
BEFORE, PLACED = ("pre", "sandwich"), ("pre", "sandwich", "post", "output")
SIZE = {"depth": 3, "width": 16, "heads": 2, "context": 12, "init": "xavier"}


@cache
def corpus(data: Data) -> Corpus:
    return load(data)


def config(data: Data = MARKOV, model=None, measure=None, **settings: Any) -> RunConfig:
    """A small run; `settings` are train's."""
    return RunConfig(
        data=data,
        model=Model(**{**SIZE, **(model or {})}),
        train=Train(**{"steps": 4, "batch_size": 4, **settings}),
        measure=Measure(**(measure or {})),
    )


def state_of(data: Data = MARKOV, model=None, measure=None, **settings: Any) -> State:
    return set_up(config(data, model, measure, **settings), corpus(data), "cpu")


def records(state: State) -> list[Record]:
    return list(train(state))


def events(rows: list[Record], *kinds: str, role: str | None = None) -> list[EventRow]:
    return [
        e
        for row in rows
        for e in row.events
        if (not kinds or e.kind in kinds) and role in (None, e.role)
    ]


def nonfinite(rows: list[Record]) -> list[EventRow]:
    return events(rows, "nan", "inf", "not_reproduced")


def origin(rows: list[Record]) -> EventRow:
    """The one and only."""
    (found,) = events(rows, role="origin")
    return found


@contextmanager
def hooked(module: nn.Module, change: Callable, when: Callable[[], bool] = lambda: True):
    """The module's output goes through `change` while `when()` holds; the replay included."""
    handle = module.register_forward_hook(lambda m, i, out: change(out) if when() else None)
    try:
        yield
    finally:
        handle.remove()


def tensors(state: State) -> list[torch.Tensor]:
    """Copies of all that an update may change: weights and the optimizer's own state."""
    kept = [p.detach().clone() for p in state.model.parameters()]
    for entry in state.optimizer.state.values():
        kept += [t.clone() for t in entry.values() if isinstance(t, torch.Tensor)]
    return kept


@dataclass(frozen=True)
class Told:
    """A run folder as its readers see it."""

    folder: Path
    row: dict[str, Any]  # of runs.csv

    @property
    def env(self) -> dict[str, Any]:
        return json.loads((self.folder / "env.json").read_text(encoding="utf-8"))

    def table(self, name: str) -> list[dict[str, str]]:
        with (self.folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def numbers(self, name: str, table: str = "steps") -> list[float]:
        return [float(row[name]) if row[name] else math.nan for row in self.table(table)]

    @property
    def causes(self) -> list[str]:
        return [name for name in self.row["cause"].split("; ") if name]

    @property
    def explained(self) -> Explanation:
        return explain(self.folder)


def read(folder: Path) -> Told:
    row, notes = read_run(folder, {"seed_init": 0, "seed_data": 0, "settings": {}}, locked=False)
    assert not notes, notes
    return Told(folder, row)


def told(folder: Path, run: RunConfig, before: Callable[[State], None] = lambda _: None) -> Told:
    """The run trained into `folder` here; `before` may put a fault into its state."""

    def prepared(*args: Any) -> State:
        state = set_up(*args)
        before(state)
        return state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "set_up", prepared)
        status = worker.train_run(str(folder), run, "cpu", corpus(run.data).sha256)
    assert status.status == "finished", status.error
    return read(folder)
