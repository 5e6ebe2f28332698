"""Signals: no traceback, no orphan, nothing half-finished called finished."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lnexp.runs.rundir import last_row, read_status

from ..cli import lnexp
from .small import SMALL, rows, write_config

LONG = SMALL.replace("steps: 12", "steps: 4000").replace(
    "sweep: {model.placement: [pre, post], model.dropout: [0.0, 0.1]}", "sweep: {}"
)


@pytest.fixture
def sweep(tmp_path) -> Path:
    write_config(tmp_path, LONG)
    return tmp_path


def start(folder: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "lnexp.cli", "run", "small.yaml", "-j", "2"],
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


def group(pid: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


@needs_proc
@pytest.mark.parametrize("how", ["once", "six times", "terminated"])
def test_an_interrupt_ends_in_130_without_a_traceback_or_a_child(sweep, how):
    process = start(sweep)
    wait_for(lambda: len(training(sweep)) == 2)
    if how == "terminated":  # what `timeout` and schedulers send, to the parent alone
        process.terminate()
    else:
        for _ in range(6 if how == "six times" else 1):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.02)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted" in err and "Traceback" not in err + out
    wait_for(lambda: not group(process.pid), 10)
    assert not (sweep / "results/small/.lock.json").exists()
    assert all(read_status(run) is None for run in training(sweep))
    said = lnexp("show", "results/small", cwd=sweep)
    assert "interrupted" in said.out


@needs_proc
def test_no_worker_outlives_a_killed_parent_and_the_next_call_finishes(sweep, tmp_path_factory):
    write_config(sweep, LONG.replace("steps: 4000", "steps: 300"))
    process = start(sweep)
    wait_for(lambda: len(training(sweep)) == 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    wait_for(lambda: not group(process.pid), 10)
    assert lnexp("run", "small.yaml", cwd=sweep).code == 0
    calm = tmp_path_factory.mktemp("calm")
    write_config(calm, LONG.replace("steps: 4000", "steps: 300"))
    assert lnexp("run", "small.yaml", cwd=calm).code == 0
    assert rows(sweep / "results") == rows(calm / "results")
