"""lnexp boundary: how far a knob can be turned before most runs of a cell turn unstable."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lnexp.boundary.search import Knob
from lnexp.boundary.work import Boundary, Ramp
from lnexp.commands.jobs import resumable
from lnexp.commands.training import at_work, write_rows
from lnexp.config.shipped import find
from lnexp.config.sweep import Sweep, load_sweep
from lnexp.files import strict_json
from lnexp.lab.schemas import BoundaryRow, RampRow
from lnexp.messages import UserError, amount, say
from lnexp.runs.local import Executor

KNOBS = (
    "train.lr", "train.adam_eps", "model.eps", "model.depth", "train.warmup", "model.init_scale",
    "train.loss_scale",
)  # fmt: skip
WHOLE = ("model.depth", "train.warmup")


@resumable
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
    with at_work(search.folder, jobs, executor, grows=True) as work:
        _begin(search)
        for words in search.steps(work.train):
            say(words)
        rows = search.rows()
        write_rows(search.folder / "lab" / "boundary.csv", BoundaryRow, rows, key)
    seconds = time.monotonic() - began
    if as_json:
        more = {"full_grid_values": knob.full_grid, "wall_seconds": seconds}
        print(strict_json({"schema": 1, "cells": list(map(asdict, rows)), **more}), end="")
    else:
        from rich.console import Console

        from lnexp.boundary.reading import sheet

        cells = [cell.settings for cell in search.cells]
        Console(highlight=False).print(sheet(sweep, cells, rows, knob.full_grid, seconds))
    return work.exit_code()


@resumable
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
    growing = Ramp(one(config, overrides), high, out)
    runs = amount(len(growing.plan.runs), "run")
    steps = amount(growing.steps, "step")
    say(f"{growing.folder.name}: {runs}, train.lr growing linearly to {high:g} in {steps}")
    with at_work(growing.folder, jobs, executor) as work:
        growing.train(work.train)
        rows = growing.rows()
        write_rows(growing.folder / "lab" / "ramp.csv", RampRow, rows)
    if as_json:
        print(strict_json({"schema": 1, "cells": list(map(asdict, rows))}), end="")
    else:
        from rich.console import Console

        from lnexp.boundary.reading import ramp_sheet

        Console(highlight=False).print(ramp_sheet(growing.plan.sweep.name, rows))
    return work.exit_code()


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
