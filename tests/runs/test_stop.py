"""Runs that stop early, what takes them up again, and what is left alone."""

import json
from pathlib import Path

import pytest

from lnexp.commands.run import Choice
from lnexp.config.sweep import load_sweep
from lnexp.messages import UserError
from lnexp.runs.execute import earlier_runs
from lnexp.runs.plan import Plan, PlannedRun, make_plan
from lnexp.runs.rundir import read_status
from tests.cases.conftest import run_here
from tests.cli import lnexp
from tests.runs.small import SMALL, files, rows, train_here, write_config

TWO = SMALL.replace("{model.placement: [pre, post], model.dropout: [0.0, 0.1]}", "{}").replace(
    "{depth: 2", "{dropout: 0.1, depth: 2"
)
NOW = "train.max_seconds=1e-9"  # over after one step


def plan_of(folder: Path, *overrides: str, text: str = TWO) -> Plan:
    return make_plan(load_sweep(write_config(folder, text), overrides))


def done(plan: Plan, out: Path) -> list[bool]:
    return [run.done for run in earlier_runs(plan, out).values()]


def chosen_by(plan: Plan, out: Path, **how) -> list[PlannedRun]:
    return Choice(**how).of(plan, out, earlier_runs(plan, out))


# ---------------------------------------------------------------------------- max_seconds


def test_a_run_whose_time_is_over_stops_at_the_step_and_a_larger_limit_goes_on(tmp_path):
    limited, free = plan_of(tmp_path, NOW), plan_of(tmp_path)
    assert [run.name for run in limited.runs] == [run.name for run in free.runs]
    for status in train_here(limited, tmp_path / "a"):
        assert (status.status, status.steps_done) == ("interrupted", 1)
        assert status.error == "stopped after train.max_seconds 1e-09, at step 1 of 12"
    assert done(limited, tmp_path / "a") == [True, True]  # the same call has nothing to train
    assert done(free, tmp_path / "a") == [False, False]
    train_here(free, tmp_path / "a")
    train_here(free, tmp_path / "b")
    assert rows(tmp_path / "a") == rows(tmp_path / "b")


def test_a_limit_reached_with_the_last_step_is_no_interruption(tmp_path):
    plan = plan_of(tmp_path, NOW, "train.steps=1")
    assert {s.status for s in train_here(plan, tmp_path)} == {"finished"}


def test_a_stopped_run_keeps_the_snapshot_it_goes_on_from_whatever_keep_says(tmp_path):
    plan = plan_of(tmp_path, NOW, "measure.keep=none")
    train_here(plan, tmp_path)
    assert len(list(tmp_path.glob("small/runs/*/checkpoint.pt"))) == 2


def test_a_run_that_has_more_rows_than_are_asked_for_ends_as_one_that_stopped_there(tmp_path):
    eleven = "train.steps=11"  # no multiple of eval_every: the last row has a val_loss of its own
    train_here(plan_of(tmp_path, "train.steps=10"), tmp_path / "a")
    train_here(plan_of(tmp_path, "train.steps=40", NOW), tmp_path / "a")  # interrupted at 11
    assert {
        s.steps_done for s in train_here(plan_of(tmp_path, "train.steps=7"), tmp_path / "a")
    } == {11}
    train_here(plan_of(tmp_path, eleven), tmp_path / "b")
    assert rows(tmp_path / "a") == rows(tmp_path / "b")


def test_run_says_when_the_time_was_over_and_that_is_no_failure(tmp_path):
    write_config(tmp_path, TWO)
    said = run_here("small.yaml", "-s", NOW, cwd=tmp_path)
    assert said.code == 0 and said.err.count("interrupted: ") == 2
    assert "stopped after train.max_seconds" in said.err
    said = lnexp("run", "small.yaml", "-s", NOW, cwd=tmp_path)
    assert "2 runs, 0 finished, 0 to train" in said.err
    assert "2 runs used up train.max_seconds" in said.err


# ---------------------------------------------------------------------------- retry, fail-fast


def test_retry_picks_among_what_is_not_finished(tmp_path):
    plan = plan_of(tmp_path, text=SMALL)  # 8 runs
    train_here(plan, tmp_path, plan.runs[:3])
    failed, cut, whole, *never = (plan.folder(tmp_path) / "runs" / run.name for run in plan.runs)
    status = json.loads((failed / "status.json").read_text())
    (failed / "status.json").write_text(json.dumps({**status, "status": "failed"}))
    (cut / "status.json").unlink()  # as kill -9 leaves it

    def chosen(**how) -> set[str]:
        return {run.name for run in chosen_by(plan, tmp_path, **how)}

    names = {path.name for path in never}
    assert [run.ended_as for run in earlier_runs(plan, tmp_path).values()][:4] == [
        "failed", "interrupted", "finished", "pending",
    ]  # fmt: skip
    assert chosen(retry="failed") == chosen(retry="failed", force=True) == {failed.name}
    assert chosen(retry="interrupted") == {cut.name}
    assert chosen() == {failed.name, cut.name, *names}
    assert chosen(force=True) == {failed.name, cut.name, whole.name, *names}


def test_fail_fast_ends_the_sweep_and_the_next_call_goes_on(tmp_path):
    text = TWO.replace("steps: 12", "steps: 20000").replace(
        "sweep: {}", "cases: [{model.width: 4000000}, {model.depth: 2}]"
    )  # the first is 64 TB of weights
    write_config(tmp_path, text)
    words = ("run", "small.yaml", "-s", "seeds=[0]", "-j", 2)
    said = lnexp(*words, "--fail-fast", cwd=tmp_path)
    assert (
        said.code == 1 and "--fail-fast: a run failed" in said.err and "Traceback" not in said.err
    )
    began = earlier_runs(plan_of(tmp_path, "seeds=[0]", text=text), tmp_path / "results").values()
    assert sorted(run.ended_as for run in began) in (
        ["failed", "pending"],  # before the other one began
        ["failed", "interrupted"],
    )
    again = lnexp(*words, "--retry", "failed", "--dry-run", cwd=tmp_path)
    assert "2 runs, 0 finished, 1 to train" in again.err and "-w4000000-" in again.out


# ---------------------------------------------------------------------------- extend


def test_extend_gives_the_rows_of_one_long_run(tmp_path):
    train_here(plan_of(tmp_path), tmp_path / "results")
    words = ("small.yaml", "--extend")
    said = run_here(*words, "plateau", "--steps", "2x", cwd=tmp_path)
    assert said.code == 0 and "2 finished, 0 to extend" in said.err
    said = run_here(*words, "too_short", "--steps", "1.5x", cwd=tmp_path)
    assert said.code == 0 and "0 finished, 2 to extend" in said.err
    train_here(plan_of(tmp_path, "train.steps=18"), tmp_path / "long")
    assert rows(tmp_path / "results") == rows(tmp_path / "long")
    before = files(tmp_path / "results" / "small" / "runs")
    said = lnexp("run", "small.yaml", cwd=tmp_path)
    assert "0 to train" in said.err and "up to step 18" in said.err
    assert files(tmp_path / "results" / "small" / "runs") == before


def test_an_extension_that_was_interrupted_goes_on_to_where_it_was_going(tmp_path):
    plan = plan_of(tmp_path)
    train_here(plan, tmp_path)
    twice = {"extend": "too_short", "steps": "2x"}
    begun = chosen_by(plan_of(tmp_path, NOW), tmp_path, **twice)
    assert [run.config.train.steps for run in begun] == [24, 24]
    train_here(plan, tmp_path, begun)  # one step further
    again = chosen_by(plan, tmp_path, **twice)
    assert [run.config.train.steps for run in again] == [24, 24]
    assert {status.steps_done for status in train_here(plan, tmp_path, again)} == {24}
    train_here(plan_of(tmp_path, "train.steps=24"), tmp_path / "long")
    assert rows(tmp_path) == rows(tmp_path / "long")


def test_extend_counts_in_all_or_times_the_steps_done_and_only_where_that_is_more(tmp_path):
    plan = plan_of(tmp_path)
    train_here(plan, tmp_path)

    def targets(steps: str) -> list[int]:
        chosen = chosen_by(plan, tmp_path, extend="stalled,too_short", steps=steps)
        return [run.config.train.steps for run in chosen]

    assert targets("2x") == [24, 24] and targets("2.1x") == [26, 26]
    assert targets("500") == [500, 500]
    assert targets("12") == targets("3") == []
    with pytest.raises(UserError, match="less than or equal to 1000000000"):
        targets("1000000001")


def test_a_planned_schedule_is_not_extended_and_says_why(tmp_path):
    plan = plan_of(tmp_path, "train.schedule=cosine")
    train_here(plan, tmp_path)
    with pytest.raises(UserError, match="schedule cosine cannot be extended: the learning rate"):
        chosen_by(plan, tmp_path, extend="too_short", steps="2x")
    both = plan_of(tmp_path, text=TWO.replace("{}", "{train.schedule: [cosine, constant]}"))
    train_here(both, tmp_path)
    chosen = chosen_by(both, tmp_path, extend="too_short", steps="2x")
    assert [run.config.train.schedule for run in chosen] == ["constant", "constant"]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"extend": "too_short"}, "--extend and --steps go together"),
        ({"steps": "2x"}, "--extend and --steps go together"),
        ({"extend": "tooshort", "steps": "2x"}, "--extend tooshort: not a verdict"),
        ({"extend": "nonfinite", "steps": "2x"}, "--extend nonfinite: not a verdict"),
        ({"extend": "too_short", "steps": "twice"}, "--steps twice: write a factor"),
        ({"extend": "too_short", "steps": "1x"}, "a factor above 1"),
        ({"extend": "too_short", "steps": "2x", "force": True}, "without --force"),
        ({"extend": "too_short", "steps": "2x", "retry": "failed"}, "without --retry"),
        ({"retry": "finished"}, "--retry finished: one of failed, interrupted, all"),
    ],
)
def test_options_that_make_no_sense_are_refused(how, says):
    with pytest.raises(UserError, match=says):
        Choice(**how).check()


def test_nothing_is_there_to_extend_before_the_first_run(tmp_path):
    with pytest.raises(UserError, match="nothing here to extend"):
        chosen_by(plan_of(tmp_path), tmp_path, extend="too_short", steps="2x")


def test_a_run_asked_to_stop_before_it_began_touches_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("lnexp.runs.worker.asked", lambda: True)
    plan = plan_of(tmp_path)
    assert {s.status for s in train_here(plan, tmp_path)} == {"interrupted"}
    assert not (tmp_path / "small" / "runs").exists()


def test_a_run_asked_to_stop_while_it_trains_says_where_it_was(tmp_path, monkeypatch):
    heard = iter([False, False, True] * 2)  # before it began, after step 0, after step 1
    monkeypatch.setattr("lnexp.runs.worker.asked", lambda: next(heard))
    plan = plan_of(tmp_path)
    train_here(plan, tmp_path)
    for run in plan.runs:
        status = read_status(tmp_path / "small" / "runs" / run.name)
        assert status and status.status == "interrupted" and status.steps_done == 2
