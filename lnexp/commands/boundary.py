"""lnexp boundary: how far a knob can be turned before most runs of a cell turn unstable."""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from ..console import say
from ..errors import UserError
from ..lab.boundary import Boundary
from ..lab.ramp import Ramp
from ..lab.search import Knob
from ..labrows import BoundaryRow, RampRow
from ..lines import amount
from ..runs.interrupt import interruptible
from ..runs.local import Executor
from ..runs.lock import locked
from ..runs.plan import Plan, PlannedRun
from ..shipped import find
from ..sweep import Sweep, load_sweep
from .lab import failed_in, plain_row, tell_failed, write_rows
from .run import INTERRUPTED

KNOBS = (
    "train.lr", "train.adam_eps", "model.eps", "model.depth", "train.warmup", "model.init_scale",
    "train.loss_scale",
)  # fmt: skip
WHOLE = ("model.depth", "train.warmup")


def boundary(
    config: str,
    key: str,
    low: float | None,
    high: float,
    points: int,
    resolution: float,
    out: Path,
    overrides: Sequence[str],
    jobs: int,
    executor: Executor,
    as_json: bool,
) -> int:
    """Exit code: 0 done, 1 a run failed to execute, 130 interrupted."""
    sweep = one(config, overrides)
    knob = _knob(sweep, key, low, high, points, resolution)
    search, began = Boundary(sweep, key, knob, out), time.monotonic()
    failed: list[str] = []
    try:
        with interruptible() as interruption, ExitStack() as locks:
            locks.enter_context(locked(search.folder))
            _begin(search)

            def train(plan: Plan, todo: Sequence[PlannedRun]) -> None:
                failed.extend(failed_in(plan, out, todo, jobs, executor, interruption))

            for words in search.steps(train):
                say(words)
            rows = search.rows()
            write_rows(search.folder / "lab" / "boundary.csv", BoundaryRow, rows, key)
    except KeyboardInterrupt:
        say("interrupted: what is finished is kept; the same command goes on")
        return INTERRUPTED
    seconds = time.monotonic() - began
    if as_json:
        print(json.dumps(_plain(rows, knob, seconds), indent=1, allow_nan=False))
    else:
        from rich.console import Console

        from ..present.boundary import sheet

        cells = [cell.settings for cell in search.cells]
        Console(highlight=False).print(sheet(sweep, cells, rows, knob.full_grid, seconds))
    return tell_failed(failed)


def ramp(
    config: str,
    key: str,
    low: float | None,
    high: float,
    out: Path,
    overrides: Sequence[str],
    jobs: int,
    executor: Executor,
    as_json: bool,
) -> int:
    """Exit code: 0 done, 1 a run failed to execute, 130 interrupted."""
    if key != "train.lr" or low is not None:
        raise UserError("--ramp turns train.lr, from 0 up to --high: write it without --low")
    if not 0 < high < float("inf"):
        raise UserError(f"--high {high:g}: write a number above 0")
    work, failed = Ramp(one(config, overrides), high, out), list[str]()
    runs = amount(len(work.plan.runs), "run")
    say(f"{work.folder.name}: {runs}, train.lr growing linearly to {high:g} in {work.steps} steps")
    try:
        with interruptible() as interruption, locked(work.folder):

            def train(plan: Plan, todo: Sequence[PlannedRun]) -> None:
                failed.extend(failed_in(plan, out, todo, jobs, executor, interruption))

            work.train(train)
            rows = work.rows()
            write_rows(work.folder / "lab" / "ramp.csv", RampRow, rows)
    except KeyboardInterrupt:
        say("interrupted: what is finished is kept; the same command goes on")
        return INTERRUPTED
    if as_json:
        found = {"schema": 1, "cells": [plain_row(asdict(row)) for row in rows]}
        print(json.dumps(found, indent=1, allow_nan=False))
    else:
        from rich.console import Console

        from ..present.boundary import ramp_sheet

        Console(highlight=False).print(ramp_sheet(work.plan.sweep.name, rows))
    return tell_failed(failed)


def one(config: str, overrides: Sequence[str]) -> Sweep:
    """The sweep of one config. Raises UserError where the words name several."""
    found = find([config])
    if len(found) != 1:
        raise UserError(f"{config}: {len(found)} configs; name one")
    return load_sweep(found[0], overrides)


def _knob(
    sweep: Sweep, key: str, low: float | None, high: float, points: int, resolution: float
) -> Knob:
    if key not in KNOBS:
        near = [knob for knob in KNOBS if knob.rpartition(".")[2] == key.rpartition(".")[2]]
        raise UserError(f"--knob {key}: {_hint(near)}one of {', '.join(KNOBS)}")
    if key in sweep.axes:
        raise UserError(
            f"{sweep.line(key)}: {key}: the sweep varies the knob already; take it out, or set "
            f"one value: -s {key}=..."
        )
    whole = key in WHOLE
    if low is None:
        raise UserError("--low: where the scan begins is missing; write --low 1e-4")
    if not 0 < low < high < float("inf"):
        raise UserError(f"--low {low:g} --high {high:g}: write two numbers, 0 < low < high")
    if whole and (low != int(low) or high != int(high)):
        raise UserError(f"--low {low:g} --high {high:g}: {key} takes whole numbers")
    if points < 2:
        raise UserError(f"--points {points}: the scan needs 2 or more")
    if not 1 < resolution < float("inf"):
        raise UserError(f"--resolution {resolution:g}: a factor above 1, such as 1.25")
    seeds = len({(p.config.seed.init, p.config.seed.data) for p in sweep.points})
    return Knob(low, high, points, resolution, whole, seeds)


def _hint(near: list[str]) -> str:
    return f"did you mean {near[0]}? " if near else ""


def _begin(search: Boundary) -> None:
    knob = search.knob
    values = ", ".join(f"{value:g}" for value in knob.scan())
    say(
        f"{search.folder.name}: {amount(len(search.cells), 'cell')}, scan of {search.key} at "
        f"{values}; at most {amount(knob.seeds, 'seed')} a value, fewer where they agree; then "
        f"bisection to a factor of {knob.resolution:g}"
    )


def _plain(rows: Sequence[BoundaryRow], knob: Knob, seconds: float) -> dict:
    return {
        "schema": 1,
        "cells": [plain_row(asdict(row)) for row in rows],
        "full_grid_values": knob.full_grid,
        "wall_seconds": seconds,
    }
