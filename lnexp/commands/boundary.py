"""lnexp boundary: how far a knob can be turned before most runs of a cell turn unstable."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lnexp.boundary.reading import boundary_sheet, ramp_sheet
from lnexp.boundary.search import Knob
from lnexp.boundary.work import Boundary, Ramp
from lnexp.commands.jobs import resumable
from lnexp.commands.training import one_sweep, training_in, write_rows
from lnexp.config.sweep import Sweep
from lnexp.files import strict_json
from lnexp.lab.schemas import BoundaryRow, RampRow
from lnexp.messages import UserError, amount, say
from lnexp.terminal.sheet import display

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
    as_json: bool,
) -> int:
    """Exit code: 0 done, 1 a run failed to execute, 130 interrupted."""
    sweep = one_sweep(config, overrides)
    knob = _knob(sweep, key, low, high, points, resolution)
    search, began = Boundary(sweep, key, knob, out), time.monotonic()
    with training_in(search.folder, jobs, grows=True) as training:
        say(
            f"{search.folder.name}: {amount(len(search.cells), 'cell')}, scan of {key} at "
            f"{', '.join(f'{value:g}' for value in knob.scan())}; at most "
            f"{amount(knob.seeds, 'seed')} a value, fewer where they agree; then bisection to a "
            f"factor of {knob.resolution:g}"
        )
        for words in search.steps(training.train):
            say(words)
        rows = search.rows()
        write_rows(search.folder / "lab" / "boundary.csv", BoundaryRow, rows, key)
    seconds = time.monotonic() - began
    if as_json:
        more = {"full_grid_values": knob.full_grid, "wall_seconds": seconds}
        print(strict_json({"schema": 1, "cells": list(map(asdict, rows)), **more}), end="")
    else:
        cells = [cell.settings for cell in search.cells]
        display(boundary_sheet(sweep, cells, rows, knob.full_grid, seconds))
    return training.exit_code()


@resumable
def ramp(
    config: str,
    key: str,
    low: float | None,
    high: float,
    out: Path,
    overrides: Sequence[str],
    jobs: int,
    as_json: bool,
) -> int:
    """Exit code: 0 done, 1 a run failed to execute, 130 interrupted."""
    if key != "train.lr" or low is not None:
        raise UserError("--ramp turns train.lr, from 0 up to --high: write it without --low")
    if not 0 < high < float("inf"):
        raise UserError(f"--high {high:g}: write a number above 0")
    growing = Ramp(one_sweep(config, overrides), high, out)
    runs = amount(len(growing.plan.runs), "run")
    steps = amount(growing.steps, "step")
    say(f"{growing.folder.name}: {runs}, train.lr growing linearly to {high:g} in {steps}")
    with training_in(growing.folder, jobs) as training:
        growing.train(training.train)
        rows = growing.rows()
        write_rows(growing.folder / "lab" / "ramp.csv", RampRow, rows)
    if as_json:
        print(strict_json({"schema": 1, "cells": list(map(asdict, rows))}), end="")
    else:
        display(ramp_sheet(growing.plan.sweep.name, rows))
    return training.exit_code()


def _knob(
    sweep: Sweep, key: str, low: float | None, high: float, points: int, resolution: float
) -> Knob:
    if key not in KNOBS:
        near = [knob for knob in KNOBS if knob.rpartition(".")[2] == key.rpartition(".")[2]]
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"--knob {key}: {hint}one of {', '.join(KNOBS)}")
    if key in sweep.axes:
        raise UserError(
            f"{sweep.line(key)}: {key}: the sweep varies the knob already; take it out, or set "
            f"one value: -s {key}=..."
        )
    if low is None:
        raise UserError("--low: where the scan begins is missing; write --low 1e-4")
    if not 0 < low < high < float("inf"):
        raise UserError(f"--low {low:g} --high {high:g}: write two numbers, 0 < low < high")
    if key in WHOLE and (low % 1 or high % 1):
        raise UserError(f"--low {low:g} --high {high:g}: {key} takes whole numbers")
    if points < 2:
        raise UserError(f"--points {points}: the scan needs 2 or more")
    if not 1 < resolution < float("inf"):
        raise UserError(f"--resolution {resolution:g}: a factor above 1, such as 1.25")
    seeds = len({(p.config.seed.init, p.config.seed.data) for p in sweep.points})
    return Knob(low, high, points, resolution, key in WHOLE, seeds)
