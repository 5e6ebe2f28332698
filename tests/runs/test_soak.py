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

from lnexp.runs.execute import is_done
from lnexp.runs.plan import make_plan
from lnexp.runs.rundir import last_row
from lnexp.sweep import load_sweep

from ..cli import lnexp
from .small import SMALL, rows, train_here, write_config

SIX = SMALL.replace("seeds: [0, 1]", "").replace(
    "model.dropout: [0.0, 0.1]", "train.precision: [fp32, fp16-mixed, bf16-mixed]"
)
SETTINGS = ("model.dropout=0.1", "measure.snapshot_every=7")
KILLS = 15
MORE = 800  # steps for the kills to fall into, as often as a sweep is done before the last kill


def words(steps: int) -> list[str]:
    settings = (*SETTINGS, f"train.steps={steps}")
    return ["run", "small.yaml", "-j", "2", *(w for s in settings for w in ("-s", s))]


def rows_there(folder: Path) -> int:
    runs = (folder / "results" / "small" / "runs").glob("*")
    return sum(row.step + 1 for run in runs if (row := last_row(run)))


@pytest.mark.slow
def test_fifteen_kills_of_the_parent_leave_the_rows_of_a_calm_sweep(tmp_path):
    config = write_config(tmp_path, SIX)
    draw, kills, steps = random.Random(5), 0, MORE
    while kills < KILLS:
        before = rows_there(tmp_path)
        process = subprocess.Popen(
            [sys.executable, "-m", "lnexp.cli", *words(steps)],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if kills % 4:  # one in four falls anywhere into the start
            while process.poll() is None and rows_there(tmp_path) <= before:
                time.sleep(0.01)
        with suppress(subprocess.TimeoutExpired):
            process.wait(draw.uniform(0, 0.8 if kills % 4 else 3))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
        else:
            assert process.returncode == 0
            steps += MORE
    said = lnexp(*words(steps), cwd=tmp_path)
    assert said.code == 0, said.err
    plan = make_plan(load_sweep(config, [*SETTINGS, f"train.steps={steps}"]))
    folder = tmp_path / "results" / "small" / "runs"
    assert len(plan.runs) == 6 and all(is_done(run, folder / run.name) for run in plan.runs)
    train_here(plan, tmp_path / "calm")
    assert rows(tmp_path / "results") == rows(tmp_path / "calm")
