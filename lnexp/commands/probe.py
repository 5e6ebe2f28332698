"""lnexp probe: how readings change over depth, at initialisation and after a few steps."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lnexp.commands.jobs import resumable
from lnexp.commands.read import step_numbers
from lnexp.commands.training import one_sweep, training_in, write_rows
from lnexp.files import strict_json
from lnexp.lab.measure import measure
from lnexp.lab.schemas import ProbeRow
from lnexp.messages import amount, say
from lnexp.probe.reading import judged, profiles
from lnexp.probe.show import sheets
from lnexp.probe.work import TABLE, probe_plan, probe_rows
from lnexp.results.load import Results, load
from lnexp.runs.derived import missing
from lnexp.terminal.sheet import display

PICTURES = ("gradient_by_layer", "stream_by_layer", "matrix_by_layer", "branch_by_layer")


@resumable
def probe(
    config: str, steps_text: str, out: Path, overrides: Sequence[str], jobs: int, as_json: bool
) -> int:
    """Exit code: 0 done, 1 a run failed to execute or to be measured, 130 interrupted."""
    began = time.monotonic()
    steps = sorted(set(step_numbers(steps_text)))
    sweep = one_sweep(config, overrides)
    plan = probe_plan(sweep, steps)
    for note in plan.notes:
        say(f"note: {note}")
    decays = {point.config.train.schedule for point in sweep.points} - {"constant"}
    if decays:
        say(f"note: train.schedule {', '.join(sorted(decays))}: these steps stand before any decay")
    name, axes, folder = plan.sweep.name, list(plan.sweep.axes), plan.folder(out)
    with training_in(folder, jobs) as training:
        todo = missing(plan.runs, folder)
        what = f"{amount(len(plan.runs), 'run')} of {amount(max(steps) + 1, 'step')}"
        say(f"{name}: {what}, {len(todo)} to train")
        training.train(plan, todo)
        unmeasured = measure(plan, out, jobs, [run.name for run in todo], [TABLE])
        rows = list(probe_rows(plan, out, steps))
        write_rows(folder / "lab" / "probe.csv", ProbeRow, rows)
    results, figures = load(folder), list(map(asdict, rows))
    laws = judged(results.runs, name, axes, figures)
    cells = profiles(results.runs, name, axes, figures, steps)
    kinds = [*PICTURES, *["laws"] * any(law.law.exponent is not None for law in laws)]
    pictures, undrawn = _draw(results, name, axes, folder / "plots", kinds, steps)
    if as_json:
        whole = {
            "schema": 1,
            "name": name,
            "steps": steps,
            "runs": figures,
            "cells": [cell.plain() for cell in cells],
            "laws": [law.plain() for law in laws],
        }
        print(strict_json(whole), end="")
    else:
        display(*sheets(name, cells, laws, steps))
        print(folder / "lab" / "probe.csv", *pictures, sep="\n")
        print(f"{time.monotonic() - began:.0f} s")
    return training.exit_code() or int(bool(unmeasured or undrawn))


def _draw(
    results: Results,
    name: str,
    axes: list[str],
    folder: Path,
    kinds: Sequence[str],
    steps: Sequence[int],
) -> tuple[list[Path], list[str]]:
    """The pictures, and what could not be drawn."""
    os.environ["MPLBACKEND"] = "Agg"  # matplotlib fails at import where it names no backend
    from lnexp.figures.plots import plot_sweep

    undrawn: list[str] = []
    written = plot_sweep(
        results.runs,
        results.steps(),
        results.layers(),
        axes,
        folder,
        name=name,
        kinds=kinds,
        formats=("png",),
        at_steps=steps,
        warn=undrawn.append,
    )
    for text in undrawn:
        say(text)
    return written, undrawn
