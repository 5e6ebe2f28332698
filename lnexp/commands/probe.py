"""lnexp probe: how readings change over depth, at initialisation and after a few steps."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lnexp.commands.boundary import one
from lnexp.commands.jobs import resumable
from lnexp.commands.read import step_numbers
from lnexp.commands.training import at_work, write_rows
from lnexp.files import strict_json
from lnexp.lab.measure import measure
from lnexp.lab.schemas import ProbeRow
from lnexp.messages import amount, say
from lnexp.probe.laws import Judged
from lnexp.probe.reading import Profile, judged, profiles
from lnexp.probe.work import TABLE, probe_plan, probe_rows
from lnexp.results.load import Results, load
from lnexp.runs.execute import is_done
from lnexp.runs.local import Executor
from lnexp.runs.plan import Plan

PICTURES = ("gradient_by_layer", "stream_by_layer", "matrix_by_layer", "branch_by_layer")


@resumable
def probe(
    config: str,
    steps_text: str,
    out: Path,
    overrides: Sequence[str],
    jobs: int,
    executor: Executor,
    as_json: bool,
) -> int:
    """Exit code: 0 done, 1 a run failed to execute or to be measured, 130 interrupted."""
    began = time.monotonic()
    steps = sorted(set(step_numbers(steps_text)))
    sweep = one(config, overrides)
    plan = probe_plan(sweep, steps)
    for note in plan.notes:
        say(f"note: {note}")
    decays = {point.config.train.schedule for point in sweep.points} - {"constant"}
    if decays:
        say(f"note: train.schedule {', '.join(sorted(decays))}: these steps stand before any decay")
    folder = plan.folder(out)
    with at_work(folder, jobs, executor) as work:
        todo = [run for run in plan.runs if not is_done(run, folder / "runs" / run.name)]
        what = f"{amount(len(plan.runs), 'run')} of {amount(max(steps) + 1, 'step')}"
        say(f"{folder.name}: {what}, {len(todo)} to train")
        work.train(plan, todo)
        unmeasured = measure(plan, out, jobs, [run.name for run in todo], [TABLE])
        rows = list(probe_rows(plan, out, steps))
        write_rows(folder / "lab" / "probe.csv", ProbeRow, rows)
    results, axes = load(folder), list(plan.sweep.axes)
    plain = [asdict(row) for row in rows]
    laws = judged(results.runs, plan.sweep.name, axes, plain)
    cells = profiles(results.runs, plan.sweep.name, axes, plain, steps)
    pictures, undrawn = _draw(
        results, plan, folder, steps, any(law.law.exponent is not None for law in laws)
    )
    if as_json:
        _print_json(plan, steps, plain, cells, laws)
    else:
        _print_tables(plan, steps, cells, laws)
        print(folder / "lab" / "probe.csv", *pictures, sep="\n")
        print(f"{time.monotonic() - began:.0f} s")
    return work.exit_code() or int(bool(unmeasured or undrawn))


def _draw(
    results: Results, plan: Plan, folder: Path, steps: Sequence[int], laws: bool
) -> tuple[list[Path], list[str]]:
    """The pictures, and what could not be drawn."""
    os.environ["MPLBACKEND"] = "Agg"  # matplotlib fails at import where it names no backend
    from lnexp.figures.plots import plot_sweep

    undrawn: list[str] = []
    written = plot_sweep(
        results.runs,
        results.steps(),
        results.layers(),
        list(plan.sweep.axes),
        folder / "plots",
        name=plan.sweep.name,
        kinds=[*PICTURES, *["laws"] * laws],
        formats=("png",),
        at_steps=steps,
        warn=undrawn.append,
    )
    for text in undrawn:
        say(text)
    return written, undrawn


def _print_json(
    plan: Plan,
    steps: Sequence[int],
    rows: Sequence[dict[str, Any]],
    cells: Sequence[Profile],
    laws: Sequence[Judged],
) -> None:
    whole = {
        "schema": 1,
        "name": plan.sweep.name,
        "steps": list(steps),
        "runs": list(rows),
        "cells": [cell.plain() for cell in cells],
        "laws": [law.plain() for law in laws],
    }
    print(strict_json(whole), end="")


def _print_tables(
    plan: Plan, steps: Sequence[int], cells: Sequence[Profile], laws: Sequence[Judged]
) -> None:
    from rich.console import Console

    from lnexp.probe.show import sheets

    console = Console(highlight=False)
    for sheet in sheets(plan.sweep.name, cells, laws, steps):
        console.print(sheet)
