"""Sweeps end to end: the pool, skipping, isolation, the lock."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lnexp.config.sweep import load_sweep
from lnexp.messages import UserError
from lnexp.rows import EventRow, LayerRow, StepRow, header
from lnexp.runs import local, worker
from lnexp.runs.execute import earlier_run, run_plan, write_index
from lnexp.runs.plan import make_plan
from lnexp.runs.rundir import locked, read_status
from tests.cases.conftest import run_here
from tests.runs.small import SMALL, files, rows, train_here, write_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The sweep of SMALL, trained by two workers."""
    folder = tmp_path_factory.mktemp("trained")
    run_plan(make_plan(load_sweep(write_config(folder))), folder, jobs=2)
    return folder


def plan_of(folder: Path, *overrides: str, text: str = SMALL):
    return make_plan(load_sweep(write_config(folder, text), overrides))


def test_a_sweep_leaves_what_the_contract_says(trained):
    folder = trained / "small"
    index = json.loads((folder / "points.json").read_text())
    assert index["axes"] == ["model.placement", "model.dropout"] and len(index["runs"]) == 8
    assert (folder / "sweep.yaml").is_file()
    for entry in index["runs"]:
        run = folder / "runs" / entry["run"]
        names = {p.name for p in run.iterdir()}
        assert names == {
            "config.yaml", "env.json", "steps.csv", "layers.csv", "events.csv", "status.json",
            "checkpoint.pt",
        }  # fmt: skip
        status = read_status(run)
        assert status is not None and status.status == "finished" and status.steps_done == 12
        for name, row in (("steps", StepRow), ("layers", LayerRow), ("events", EventRow)):
            first = (run / f"{name}.csv").read_text().splitlines()[0]
            assert first == ",".join(header(row))
        env = json.loads((run / "env.json").read_text())
        assert env["threads"] == 1 and env["device"] == "cpu" and env["optimizer_kernel"] == "fused"
        assert env["weights_dtype"] == "float32" and env["eps"] == [1e-5]
        assert len(env["data_sha256"]) == 64 and env["floor"] < env["h1"] < env["ln_v"]


def test_one_worker_and_two_give_the_same_rows_to_the_bit(trained, tmp_path):
    run_plan(plan_of(tmp_path), tmp_path, jobs=1)
    assert rows(tmp_path) == rows(trained)


def test_a_run_alone_gives_the_rows_it_gives_in_the_sweep(trained, tmp_path):
    alone = plan_of(tmp_path, "model.placement=[post]", "model.dropout=[0.1]", "seeds=[1]")
    train_here(alone, tmp_path)
    inside = rows(trained)
    assert len(alone.runs) == 1 and all(
        inside[key] == table for key, table in rows(tmp_path).items()
    )


def test_a_second_call_trains_nothing_and_touches_nothing_a_run_wrote(trained):
    before = files(trained / "small" / "runs")
    assert run_plan(make_plan(load_sweep(trained / "small.yaml")), trained, jobs=2) == {}
    assert files(trained / "small" / "runs") == before


def test_a_killed_run_is_trained_again_and_a_longer_sweep_is_not_done(trained):
    plan = make_plan(load_sweep(trained / "small.yaml"))
    longer = make_plan(load_sweep(trained / "small.yaml", ["train.steps=20"]))
    folder = trained / "small" / "runs"
    assert [r.name for r in plan.runs] == [r.name for r in longer.runs]
    assert all(earlier_run(r, folder / r.name).done for r in plan.runs)
    assert not any(earlier_run(r, folder / r.name).done for r in longer.runs)
    assert not earlier_run(plan.runs[0], trained / "nowhere").done


def test_a_changed_config_keeps_the_earlier_one_under_a_number(tmp_path):
    first, second = plan_of(tmp_path), plan_of(tmp_path, "seeds=[0,1,2]")
    folder = tmp_path / "small"
    folder.mkdir()
    for plan in (first, first, second, first):
        write_index(plan, folder)
    kept = sorted(p.name for p in folder.glob("sweep*.yaml"))
    assert kept == ["sweep.1.yaml", "sweep.2.yaml", "sweep.yaml"]


def test_sweep_yaml_runs_again_as_the_same_sweep(trained):
    again = make_plan(load_sweep(trained / "small" / "sweep.yaml"))
    first = make_plan(load_sweep(trained / "small.yaml"))
    assert again.sweep.name == "small" and [r.name for r in again.runs] == [
        r.name for r in first.runs
    ]


def test_a_run_that_raises_is_failed_with_its_traceback_and_the_others_go_on(trained, tmp_path):
    text = SMALL.replace("seeds: [0, 1]", "seeds: [0]").replace(
        "model.dropout: [0.0, 0.1]", "model.width: [16, 4000000]"
    )
    plan = plan_of(tmp_path, "model.placement=[pre]", text=text)  # 64 TB of weights: no machine
    statuses = run_plan(plan, tmp_path, jobs=1)
    assert sorted(s.status for s in statuses.values()) == ["failed", "finished"]
    failed = next(name for name, s in statuses.items() if s.status == "failed")
    folder = tmp_path / "small" / "runs" / failed
    assert "Traceback" in (folder / "error.txt").read_text()
    status = read_status(folder)
    assert status is not None and status.error
    good = next(name for name, s in statuses.items() if s.status == "finished")
    assert rows(tmp_path)[f"{good}/steps.csv"] == rows(trained)[f"{good}/steps.csv"]


def die(*_: object) -> None:
    os.kill(os.getpid(), 9)


def test_a_worker_that_is_killed_makes_its_run_failed_with_the_signal_named(tmp_path, monkeypatch):
    plan = plan_of(tmp_path, "seeds=[0]", "model.dropout=[0.0]")
    monkeypatch.setattr(local, "train_run", die)
    statuses = run_plan(plan, tmp_path, jobs=1)
    assert {s.status for s in statuses.values()} == {"failed"} and len(statuses) == 2
    assert all("SIGKILL" in (s.error or "") for s in statuses.values())


def test_a_text_that_changed_after_planning_is_refused(tmp_path):
    status = worker.train_run(
        str(tmp_path / "run"), plan_of(tmp_path).runs[0].config, "cpu", "0" * 64
    )
    assert status.status == "failed" and "the text changed" in (status.error or "")


def test_a_second_start_is_told_who_holds_the_sweep(tmp_path):
    with locked(tmp_path / "small"):
        with pytest.raises(UserError, match=f"in use by process {os.getpid()} on "):
            with locked(tmp_path / "small"):
                pass
    with locked(tmp_path / "small"):  # and is free again afterwards
        pass


HOLD = """
import sys, time
from pathlib import Path
from lnexp.runs.rundir import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path):
    folder = tmp_path / "small"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout and holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"in use by process {holder.pid} on "):
        with locked(folder):
            pass
    holder.kill()
    holder.communicate()
    assert (folder / ".lock.json").exists()  # it had no time to clear up
    with locked(folder):
        assert json.loads((folder / ".lock.json").read_text())["pid"] == os.getpid()


def test_a_run_that_went_on_after_a_bad_step_is_not_done_when_more_steps_are_asked(tmp_path):
    text = SMALL.replace("lr: 3e-3", "lr: 1e-30, on_nonfinite: continue")
    one = ["model.placement=[pre]", "model.dropout=[0.0]", "seeds=[0]"]
    plan = plan_of(tmp_path, *one, text=text)
    train_here(plan, tmp_path)
    folder = tmp_path / "small" / "runs" / plan.runs[0].name
    status = (folder / "status.json").read_text()
    skipping = status.replace('"first_bad_step": null', '"first_bad_step": 3')
    (folder / "status.json").write_text(skipping)
    longer = plan_of(tmp_path, *one, "train.steps=20", text=text)
    assert earlier_run(plan.runs[0], folder).done and not earlier_run(longer.runs[0], folder).done
    stopped = skipping.replace('"stopped": false', '"stopped": true')
    (folder / "status.json").write_text(stopped)
    assert earlier_run(longer.runs[0], folder).done


def test_a_later_versions_status_keeps_its_run_finished_and_lost_rows_do_not(trained, tmp_path):
    plan = make_plan(load_sweep(trained / "small.yaml"))
    folder = tmp_path / "run"
    shutil.copytree(trained / "small" / "runs" / plan.runs[0].name, folder)
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "later": 1, "unmoved": None}))
    assert earlier_run(plan.runs[0], folder).done
    whole = (folder / "steps.csv").read_text()
    (folder / "steps.csv").write_text("\n".join(whole.splitlines()[:-3]) + "\n")
    assert not earlier_run(plan.runs[0], folder).done


def test_a_damaged_snapshot_never_costs_the_table(tmp_path):
    text = SMALL.replace("steps: 12", "steps: 60").replace("lr: 3e-3", "lr: 1e-2")
    write_config(tmp_path, text)
    words = ("small.yaml", "-s", "model.placement=[pre]", "-s", "model.dropout=[0.0]")
    assert run_here(*words, cwd=tmp_path).code == 0
    for checkpoint in tmp_path.glob("results/small/runs/*/checkpoint.pt"):
        checkpoint.write_bytes(checkpoint.read_bytes()[:400])
    said = run_here(*words, cwd=tmp_path)
    assert said.code == 0 and "learned" in said.out and "damaged" in said.err


def test_a_stream_that_is_closed_never_decides_whether_runs_train(tmp_path):
    write_config(tmp_path)
    words = f"{sys.executable} -m lnexp run small.yaml -j 1 -s seeds=[0] -s model.dropout=[0.0]"
    done = subprocess.run(["bash", "-c", f"{words} 2>&-"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0
    assert len(list(tmp_path.glob("results/small/runs/*/status.json"))) == 2
    full = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m lnexp show results > /dev/full"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert full.returncode == 1 and "No space" in full.stderr and "Traceback" not in full.stderr
