"""kill -9 at random moments, again and again, costs no row and changes none."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lnexp.config.sweep import load_sweep
from lnexp.runs.execute import earlier_run
from lnexp.runs.plan import make_plan
from lnexp.runs.rundir import last_row
from tests.cli import lnexp
from tests.runs.processes import group, needs_proc
from tests.runs.small import SMALL, rows, train_here, write_config

SIX = SMALL.replace("seeds: [0, 1]", "").replace(
    "model.dropout: [0.0, 0.1]", "train.precision: [fp32, fp16-mixed, bf16-mixed]"
)
SETTINGS = ("model.dropout=0.1", "measure.snapshot_every=7")
CALM = 0.5  # a share of kills waits for rows first, the others fall anywhere into the start


def words(steps: int) -> list[str]:
    settings = (*SETTINGS, f"train.steps={steps}")
    return ["run", "small.yaml", "-j", "2", *(w for s in settings for w in ("-s", s))]


def rows_there(folder: Path) -> int:
    runs = (folder / "results" / "small" / "runs").glob("*")
    return sum(row.step + 1 for run in runs if (row := last_row(run)))


def workers(parent: int) -> list[int]:
    """The processes that train, of those in the parent's group."""
    found = []
    for pid in group(parent):
        with suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def soak(folder: Path, wanted: dict[str, int], more: int, seed: int) -> int:
    """Kills workers and parents until there are so many of both; the steps the sweep then has:
    `more` to begin with, and again as often as it is done before the last kill."""
    draw, steps, kills = random.Random(seed), more, dict.fromkeys(wanted, 0)
    while any(kills[kind] < wanted[kind] for kind in wanted):
        process = subprocess.Popen(
            [sys.executable, "-m", "lnexp", *words(steps)],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while process.poll() is None:
            before = rows_there(folder)
            if draw.random() > CALM:
                while process.poll() is None and rows_there(folder) <= before:
                    time.sleep(0.01)
            time.sleep(draw.uniform(0, 0.4))
            kind = draw.choice([kind for kind in wanted if kills[kind] < wanted[kind]] or [""])
            victims = {"worker": workers(process.pid), "parent": [process.pid], "": []}[kind]
            if victims and process.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(draw.choice(victims), signal.SIGKILL)
                    kills[kind] += 1
            if not kind or (kind == "parent" and victims):
                break
        if process.wait() == 0:
            steps += more
    return steps


@needs_proc
@pytest.mark.parametrize(
    ("wanted", "more"),
    [
        pytest.param({"worker": 2, "parent": 2}, 100, id="4 kills"),
        pytest.param({"worker": 40, "parent": 15}, 400, id="55 kills", marks=pytest.mark.slow),
    ],
)
def test_kills_of_workers_and_parents_leave_the_rows_of_a_calm_sweep(tmp_path, wanted, more):
    config = write_config(tmp_path, SIX)
    steps = soak(tmp_path, wanted, more, seed=5)
    said = lnexp(*words(steps), cwd=tmp_path)
    assert said.code == 0, said.err
    plan = make_plan(load_sweep(config, [*SETTINGS, f"train.steps={steps}"]))
    folder = tmp_path / "results" / "small" / "runs"
    assert len(plan.runs) == 6 and all(
        earlier_run(run, folder / run.name).done for run in plan.runs
    )
    train_here(plan, tmp_path / "calm")
    assert rows(tmp_path / "results") == rows(tmp_path / "calm")
