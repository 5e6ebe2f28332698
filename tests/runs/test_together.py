"""Runs that a worker trains together: their folders are those of runs trained one by one."""

import json
import os
from pathlib import Path

import pytest
import torch

from lnexp.commands.jobs import executor
from lnexp.errors import UserError
from lnexp.runs import local, worker
from lnexp.runs.execute import run_plan
from lnexp.runs.plan import Plan, make_plan
from lnexp.runs.rundir import read_status
from lnexp.runs.together import ALONE, AUTO, Together, groups
from lnexp.sweep import load_sweep

from .small import SMALL, rows, train_here, write_config

# Six runs of one shape; a learning rate of 1e30 ends two of them early.
ALIKE = (
    SMALL.replace("level: full", "level: light")
    .replace("[pre, post], model.dropout: [0.0, 0.1]", "[pre], train.lr: [3e-3, 1e-2, 1e30]")
    .replace("batch_size: 4,", "batch_size: 4, warmup: 2,")
)


def plan_of(folder: Path, text: str = ALIKE, *overrides: str) -> Plan:
    return make_plan(load_sweep(write_config(folder, text), overrides))


def sizes(plan: Plan, jobs: int = 1, together: Together = AUTO) -> list[int]:
    return [len(group) for group in groups(plan.runs, jobs, together)]


def contents(out: Path) -> dict[str, object]:
    """Rows, and all else but times."""
    found: dict[str, object] = dict(rows(out))
    for run in sorted((out / "small" / "runs").iterdir()):
        for name in ("status.json", "env.json", "autopsy.json"):
            if (run / name).exists():
                told = json.loads((run / name).read_text())
                for changing in ("seconds", "resumed_at_step"):
                    told.pop(changing, None)
                found[f"{run.name}/{name}"] = told
        found[f"{run.name}/config.yaml"] = (run / "config.yaml").read_text()
        if (run / "checkpoint.pt").exists():
            saved = torch.load(run / "checkpoint.pt")
            saved.pop("seconds")
            saved["size"] = (run / "checkpoint.pt").stat().st_size
            found[f"{run.name}/checkpoint.pt"] = repr(saved)
    return found


def train_together(plan: Plan, out: Path, runs: slice = slice(None)) -> list[str]:
    """In this process, as their worker trains them."""
    asked = [local.work(run, plan.folder(out)) for run in plan.runs[runs]]
    return [status.status for status in worker.train_runs(asked)]


@pytest.fixture(scope="module")
def lone(tmp_path_factory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("lone")
    train_here(plan_of(folder), folder)
    return contents(folder)


def test_every_file_of_a_sweep_is_that_of_runs_trained_one_by_one(lone, tmp_path):
    plan = plan_of(tmp_path)
    together = executor("local", "", 0.0, "2", "auto")
    statuses = run_plan(plan, tmp_path, executor=together)
    assert [s.stopped for s in statuses.values()].count(True) == 2  # the learning rate of 1e30
    assert contents(tmp_path) == lone


def test_runs_asked_to_stop_go_on_to_the_same_rows(lone, tmp_path, monkeypatch):
    plan = plan_of(tmp_path)
    calls = iter(range(10**6))
    monkeypatch.setattr(worker, "asked", lambda: next(calls) > 30)
    assert "interrupted" in train_together(plan, tmp_path)
    monkeypatch.undo()
    run_plan(plan, tmp_path, executor=executor("local", "", 0.0, "1", "auto"))
    assert contents(tmp_path) == lone


def test_a_run_that_raises_is_failed_and_its_neighbours_are_as_alone(lone, tmp_path, monkeypatch):
    plan = plan_of(tmp_path)
    save, failing = worker.checkpoint.save, plan.runs[1].name

    def full_disk(path, *rest):
        if path.name == failing:
            raise OSError("no space left")
        save(path, *rest)

    monkeypatch.setattr(worker.checkpoint, "save", full_disk)
    assert train_together(plan, tmp_path).count("failed") == 1
    found = contents(tmp_path)
    assert {k: v for k, v in found.items() if failing not in k} == {
        k: v for k, v in lone.items() if failing not in k
    }
    assert "no space left" in (plan.folder(tmp_path) / "runs" / failing / "error.txt").read_text()


def test_an_error_of_the_joint_pass_fails_the_runs_that_wait_for_it(tmp_path, monkeypatch):
    def out_of_memory(*_: object) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr("lnexp.train.stack._pass", out_of_memory)
    plan = plan_of(tmp_path)
    assert train_together(plan, tmp_path, slice(2)) == ["failed"] * 2
    for run in plan.runs[:2]:
        status = read_status(plan.folder(tmp_path) / "runs" / run.name)
        assert status is not None and "not enough memory" in (status.error or "")


def dies_at_the_end(works):
    first, *_ = works
    worker.train_run(*first)
    os.kill(os.getpid(), 9)


def test_a_killed_worker_fails_the_runs_that_were_not_over_until_they_train_again(
    lone, tmp_path, monkeypatch
):
    monkeypatch.setattr(local, "train_runs", dies_at_the_end)
    plan = plan_of(tmp_path, ALIKE, "train.lr=[3e-3]")
    together = executor("local", "", 0.0, "1", "auto")
    statuses = run_plan(plan, tmp_path, executor=together)
    assert [statuses[run.name].status for run in plan.runs] == ["finished", "failed"]
    assert "SIGKILL" in (statuses[plan.runs[1].name].error or "")
    monkeypatch.undo()
    assert list(run_plan(plan, tmp_path, executor=together)) == [plan.runs[1].name]
    assert contents(tmp_path).items() <= lone.items()


def fails_and_then_dies(works):
    worker.record_failure(Path(works[0][0]), "OSError: no space left", "no space left")
    os.kill(os.getpid(), 9)


def test_a_run_that_failed_before_its_worker_was_killed_keeps_its_own_error(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "train_runs", fails_and_then_dies)
    plan = plan_of(tmp_path, ALIKE, "train.lr=[3e-3]")
    statuses = run_plan(plan, tmp_path, executor=executor("local", "", 0.0, "1", "auto"))
    own, neighbour = (statuses[run.name].error or "" for run in plan.runs)
    assert own == "OSError: no space left" and "SIGKILL" in neighbour


def test_runs_of_one_shape_are_spread_over_the_workers(tmp_path):
    plan = plan_of(tmp_path, ALIKE, "seeds=[0, 1, 2, 3, 4, 5]")  # 18 runs
    assert sizes(plan) == [6, 6, 6] and sizes(plan, jobs=2) == [5, 5, 4, 4]
    assert sizes(plan, together=Together(18)) == [18]
    assert sizes(plan, together=ALONE) == [1] * 18


def test_other_seeds_eps_and_starts_are_of_one_shape_other_sizes_are_not(tmp_path):
    start = "model.init_scale=[1.0, 0.5]", "model.eps=[1e-5, 1e-3]", "train.lr=[3e-3]"
    assert sizes(plan_of(tmp_path, ALIKE, *start)) == [8]
    shapes = "model.depth=[1, 2]", "model.placement=[pre, post]", "train.lr=[3e-3]"
    assert sizes(plan_of(tmp_path, ALIKE, *shapes)) == [2] * 4


@pytest.mark.parametrize(
    "override",
    [
        "model.dropout=0.1", "model.norm=rmsnorm", "model.norm=batchnorm",
        "model.placement=[rezero]", "train.precision=fp16", "train.checkpointing=true",
        "train.max_seconds=9", "measure.level=full", "model.context=257", "model.width=2",
    ],
)  # fmt: skip
def test_what_others_would_hold_up_or_change_trains_alone(override, tmp_path):
    assert set(sizes(plan_of(tmp_path, ALIKE, override))) == {1}


@pytest.mark.parametrize("wrong", ["0", "-1", "1.5", "all", ""])
def test_a_number_of_runs_that_is_none_is_refused(wrong):
    with pytest.raises(UserError, match="--stack .*: write a number of runs"):
        executor("local", "", 0.0, "1", wrong)


def test_a_number_of_runs_goes_with_workers_here():
    with pytest.raises(UserError, match="--stack 4 goes with --executor local"):
        executor("ray", "", 0.0, "1", "4")
