"""Sweeps end to end: the pool, skipping, isolation, the lock."""

import json
import os
from pathlib import Path

import pytest
from filelock import FileLock

from lnexp.errors import UserError
from lnexp.rows import EventRow, LayerRow, StepRow, header
from lnexp.runs import execute, worker
from lnexp.runs.execute import is_done, locked, run_plan, write_index
from lnexp.runs.plan import make_plan
from lnexp.runs.rundir import read_status
from lnexp.sweep import load_sweep

from .small import SMALL, files, rows, write_config


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
    run_plan(alone, tmp_path, jobs=1)
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
    assert all(is_done(r, folder / r.name) for r in plan.runs)
    assert not any(is_done(r, folder / r.name) for r in longer.runs)
    assert not is_done(plan.runs[0], trained / "nowhere")


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
    statuses = run_plan(plan, tmp_path, jobs=2)
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
    monkeypatch.setattr(execute, "train_run", die)
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


def test_a_lock_file_that_a_dead_process_left_is_no_obstacle(tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / ".lock").touch()
    with locked(tmp_path / "small"):
        assert not FileLock(tmp_path / "small" / ".lock", thread_local=False).is_locked
