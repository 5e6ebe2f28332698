"""B5, B8, B14, B15, B16, C13: sweeps that are killed, changed, resumed, or run at once."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lnexp.rows import LayerRow, StepRow, header
from lnexp.runs import checkpoint
from tests.cases.conftest import run_here
from tests.cli import lnexp
from tests.runs.small import rows, write_config

FOUR = """
data: {source: markov, length: 4000}
model: {width: 16, heads: 2, context: 16, dropout: 0.1}
train: {steps: 12, batch_size: 4}
sweep: {model.depth: [1, 2], model.placement: [pre, post]}
"""
LAST = "post-layernorm-d2-w16-s0"


def of_run(results: Path, name: str = LAST) -> dict[str, list[list[str]]]:
    """File -> rows of one run of the sweep."""
    found = {key.partition("/"): table for key, table in rows(results).items()}
    return {file: table for (run, _, file), table in found.items() if run.startswith(name)}


# ------------------------------------------------------------- B14, B15: runs at once


@pytest.mark.parametrize("jobs", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_runs_at_once_after_a_forward_in_the_parent_have_the_rows_they_have_alone(tmp_path, jobs):
    write_config(tmp_path, FOUR)
    assert lnexp("run", "small.yaml", "-j", jobs, "-o", "at_once", cwd=tmp_path).code == 0
    first = ["-s", "model.depth=[2, 1]", "-s", "model.placement=[post, pre]"]
    assert run_here("small.yaml", "-j", "1", "-o", "turned", *first, cwd=tmp_path).code == 0
    only = ["-s", "model.depth=[2]", "-s", "model.placement=[post]"]
    assert run_here("small.yaml", "-o", "alone", *only, cwd=tmp_path).code == 0
    order = [json.loads((tmp_path / f / "small/points.json").read_text())["runs"]
             for f in ("at_once", "turned")]  # fmt: skip
    assert order[0][3]["run"] == order[1][0]["run"] and order[0][3]["run"].startswith(LAST)
    assert rows(tmp_path / "at_once") == rows(tmp_path / "turned")
    assert of_run(tmp_path / "at_once") == of_run(tmp_path / "alone") != {}
    for path in tmp_path.glob("at_once/small/runs/*/env.json"):
        env = json.loads(path.read_text())
        assert env["threads"] == 1 and env["device"] == "cpu" and env["torch"]


def test_runs_of_other_depth_and_placement_see_the_same_batches(tmp_path):
    write_config(tmp_path, FOUR)
    assert run_here("small.yaml", cwd=tmp_path).code == 0
    tables = [
        table for key, table in rows(tmp_path / "results").items() if key.endswith("steps.csv")
    ]
    at = tables[0][0].index("unigram_loss")
    seen = {tuple(row[at] for row in table[1:]) for table in tables}
    assert len(tables) == 4 and len(seen) == 1 and "" not in seen.pop()


# ------------------------------------------------------------- B5, C13: going on


ONE = FOUR.replace("sweep: {model.depth: [1, 2], model.placement: [pre, post]}", "")


def calm(folder: Path, *words: str) -> dict[str, list[list[str]]]:
    assert run_here("small.yaml", "-o", "calm", *words, cwd=folder).code == 0
    return rows(folder / "calm")


def test_an_empty_table_of_a_killed_run_gets_its_header_once(tmp_path):
    write_config(tmp_path, ONE)
    assert run_here("small.yaml", "--dry-run", cwd=tmp_path).code == 0
    name = lnexp("run", "small.yaml", "--dry-run", cwd=tmp_path).out.strip()
    run = tmp_path / "results" / "small" / "runs" / name
    run.mkdir(parents=True)
    for table in ("steps.csv", "layers.csv", "events.csv"):
        (run / table).write_bytes(b"")
    assert run_here("small.yaml", cwd=tmp_path).code == 0
    assert rows(tmp_path / "results") == calm(tmp_path)
    for table, row in (("steps.csv", StepRow), ("layers.csv", LayerRow)):
        lines = (run / table).read_text().splitlines()
        assert lines[0] == ",".join(header(row)) and lines.count(lines[0]) == 1


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_kill_at_73_of_100_with_a_snapshot_at_50_leaves_every_step_once(tmp_path, precision):
    """And what was seen before the break is still there: events included."""
    text = ONE.replace("steps: 12", f"steps: 100, precision: {precision}")
    write_config(tmp_path, text)
    every = ("-s", "measure.snapshot_every=50")
    child = f"""
import os, signal, sys
from lnexp.runs import rundir
write = rundir.RunDir.write
def dies(self, record):
    write(self, record)
    if record.step.step == 73:
        os.kill(os.getpid(), signal.SIGKILL)
rundir.RunDir.write = dies
from tests.cases.conftest import run_here
from pathlib import Path
run_here("small.yaml", *{every!r}, cwd=Path({str(tmp_path)!r}))
"""
    died = subprocess.run([sys.executable, "-c", child], cwd=Path(__file__).parents[2])
    assert died.returncode == -signal.SIGKILL
    (run,) = (tmp_path / "results" / "small" / "runs").iterdir()
    assert (run / "steps.csv").read_text().splitlines()[-1].startswith("73,")
    assert run_here("small.yaml", *every, cwd=tmp_path).code == 0
    found = rows(tmp_path / "results")
    assert found == calm(tmp_path, *every)
    assert [row[0] for row in found[f"{run.name}/steps.csv"][1:]] == [str(n) for n in range(100)]
    assert json.loads((run / "env.json").read_text())["resumed_at_step"] == 50


# ------------------------------------------------------------- B8: a changed config


def test_a_changed_config_trains_the_new_points_and_names_the_dropped_ones(tmp_path):
    write_config(tmp_path, FOUR)
    assert run_here("small.yaml", cwd=tmp_path).code == 0
    write_config(tmp_path, FOUR.replace("[1, 2]", "[2, 3]"))
    said = run_here("small.yaml", cwd=tmp_path)
    assert said.code == 0 and "4 runs, 2 finished, 2 to train" in said.err
    for placement in ("pre", "post"):
        assert f"{placement}-layernorm-d1-w16-s0" in said.err  # no longer a point, still there
        assert list(tmp_path.glob(f"results/small/runs/{placement}-layernorm-d1-*/status.json"))
    shown = lnexp("show", "results/small", cwd=tmp_path)
    assert shown.code == 0 and "d1-w16" in shown.out + shown.err


# ------------------------------------------------------------- B16: killed while it writes


def test_twenty_kills_in_the_middle_of_a_snapshot_always_leave_one_that_loads(tmp_path):
    """Children that write snapshots as fast as they can, each killed at its own moment."""
    child = f"""
import os, signal, time
from pathlib import Path
from lnexp.runs import checkpoint
from tests.cases.trained import state_of
state, folder = state_of(model={{"width": 128}}), Path({str(tmp_path)!r})
checkpoint.save(folder, state, "0" * 64)
for kill in range(20):
    pid = os.fork()
    if pid == 0:
        while True:
            checkpoint.save(folder, state, "0" * 64)
    time.sleep(0.01 + 0.0037 * kill)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert "optimizer" in checkpoint.read(folder), kill
"""
    done = subprocess.run([sys.executable, "-c", child], cwd=Path(__file__).parents[2])
    assert done.returncode == 0
    assert "optimizer" in (checkpoint.read(tmp_path) or {})
