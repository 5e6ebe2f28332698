"""Signals: no traceback, no orphan, nothing half-finished called finished."""

import os
import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path

import pytest

from lnexp.config.sweep import load_sweep
from lnexp.runs import checkpoint, execute, local
from lnexp.runs.execute import Watcher, run_plan
from lnexp.runs.plan import make_plan
from lnexp.runs.rundir import last_row, read_status
from lnexp.runs.stop import Interruption
from tests.cases.conftest import run_here
from tests.cli import lnexp
from tests.runs.processes import group, needs_proc
from tests.runs.small import SMALL, rows, train_here, write_config

LONG = SMALL.replace("steps: 12", "steps: 4000").replace(
    "sweep: {model.placement: [pre, post], model.dropout: [0.0, 0.1]}", "sweep: {}"
)


@pytest.fixture
def sweep(tmp_path) -> Path:
    write_config(tmp_path, LONG)
    return tmp_path


def start(folder: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "lnexp", "run", "small.yaml", "-j", "2"],
        cwd=folder,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a process group of its own, as a terminal's foreground job
    )


def wait_for(what, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def training(folder: Path) -> list[Path]:
    """Runs with some rows."""
    found = (p.parent for p in folder.glob("results/small/runs/*/steps.csv"))
    return [run for run in found if (row := last_row(run)) and row.step > 5]


def ended(process: subprocess.Popen, sweep: Path) -> None:
    """With 130, no traceback, no child and no lock."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in err and "Traceback" not in err + out
    wait_for(lambda: not group(process.pid), 10)
    assert not (sweep / "results/small/.lock.json").exists()
    assert "interrupted" in lnexp("show", "results/small", cwd=sweep).out


@needs_proc
def test_the_first_signal_ends_every_run_at_a_step_and_it_goes_on_there_to_the_bit(sweep):
    process = start(sweep)
    wait_for((sweep / "results/small/.lock.json").exists)
    said = lnexp("run", "small.yaml", cwd=sweep)
    assert said.code == 2 and f"in use by process {process.pid}" in said.err
    wait_for(lambda: len(training(sweep)) == 2)
    os.killpg(process.pid, signal.SIGTERM)  # as a scheduler ends a job, the workers too
    ended(process, sweep)
    done = []
    for run in training(sweep):
        status, last, saved = read_status(run), last_row(run), checkpoint.read(run)
        assert status and status.status == "interrupted" and status.error is None
        assert last and saved and status.steps_done == last.step + 1 == saved["steps_done"]
        done.append(status.steps_done)
    plan = make_plan(load_sweep(sweep / "small.yaml", [f"train.steps={max(done) + 20}"]))
    train_here(plan, sweep / "results")
    train_here(plan, sweep / "calm")
    assert rows(sweep / "results") == rows(sweep / "calm")


@needs_proc
def test_a_second_signal_ends_it_at_once(sweep):
    process = start(sweep)
    wait_for(lambda: len(training(sweep)) == 2)
    for _ in range(6):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal's Ctrl-C
        time.sleep(0.02)
    ended(process, sweep)


def never_ends(*_: object) -> None:
    while True:
        time.sleep(1)


def test_a_worker_that_reaches_no_step_boundary_is_killed(sweep, monkeypatch):
    interruption = Interruption()

    class Impatient(Watcher):
        def running(self, names):
            interruption.asked = bool(names)

    monkeypatch.setattr(local, "train_run", never_ends)
    monkeypatch.setattr(execute, "GRACE_SECONDS", 0.3)
    plan = make_plan(load_sweep(sweep / "small.yaml"))
    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, sweep, jobs=1, watcher=Impatient(), interruption=interruption)
    assert not active_children()


@needs_proc
def test_no_worker_outlives_a_killed_parent_and_the_next_call_finishes(sweep):
    write_config(sweep, LONG.replace("steps: 4000", "steps: 150"))
    process = start(sweep)
    wait_for(lambda: len(training(sweep)) == 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    wait_for(lambda: not group(process.pid), 10)
    assert run_here("small.yaml", cwd=sweep).code == 0
    train_here(make_plan(load_sweep(sweep / "small.yaml")), sweep / "calm")
    assert rows(sweep / "results") == rows(sweep / "calm")
