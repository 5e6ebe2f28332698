"""Five runs, four kinds of trouble: each is its own run's, and the fifth is as if alone."""

import csv
import os
import signal
from pathlib import Path

import torch

from lnexp.config.schema import RunConfig
from lnexp.config.sweep import load_sweep
from lnexp.records import Status
from lnexp.runs import local, worker
from lnexp.runs.plan import make_plan
from lnexp.runs.rundir import read_status
from lnexp.train.state import State, set_up
from tests.cases.conftest import run_here
from tests.cli import lnexp
from tests.runs.small import SMALL, rows, train_here, write_config

FIVE = SMALL.replace("[pre, post], model.dropout: [0.0, 0.1]", "[pre]").replace(
    "seeds: [0, 1]", "seeds: [0, 1, 2, 3, 4]"
)


def in_trouble(folder: str, config: RunConfig, *work: str) -> Status:
    """What a worker does, with trouble by seed: 0 has none."""

    def prepared(config: RunConfig, *rest) -> State:
        state = set_up(config, *rest)
        if config.seed.init == 1:
            torch.empty(1 << 60)
        if config.seed.init == 2:
            raise ValueError("injected")
        if config.seed.init == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if config.seed.init == 4:
            with torch.no_grad():
                state.model.head.weight[0, 0] = float("nan")
        return state

    worker.set_up = prepared
    return worker.train_run(folder, config, *work)


def verdicts(folder: Path) -> dict[str, tuple[str, str]]:
    with (folder / "small" / "runs.csv").open(encoding="utf-8", newline="") as file:
        return {row["seed_init"]: (row["status"], row["verdict"]) for row in csv.DictReader(file)}


def test_each_trouble_is_its_own_runs_and_retry_takes_the_three_that_failed(tmp_path, monkeypatch):
    config = write_config(tmp_path, FIVE)
    monkeypatch.setattr(local, "train_run", in_trouble)
    done = lnexp("run", config, "-o", tmp_path, "-j", "1")
    assert done.code == 1 and "3 runs failed" in done.err
    found = verdicts(tmp_path)
    assert [found[seed][0] for seed in "12340"] == ["failed"] * 3 + ["finished"] * 2
    assert found["4"][1] == "nonfinite"
    plan = make_plan(load_sweep(config))
    folders = {run.config.seed.init: tmp_path / "small" / "runs" / run.name for run in plan.runs}
    for seed, said in ((1, "memory"), (2, "injected"), (3, "SIGKILL")):
        status = read_status(folders[seed])
        assert status is not None and said in (status.error or "")
        assert f"failed: {folders[seed].name}: " in done.err
    train_here(plan, tmp_path / "calm", [run for run in plan.runs if run.config.seed.init == 0])
    alone = rows(tmp_path / "calm")
    assert alone == {name: table for name, table in rows(tmp_path).items() if name in alone}

    monkeypatch.undo()
    again = lnexp("run", config, "-o", tmp_path, "--retry", "failed", "--dry-run")
    assert sorted(again.out.split()) == sorted(folders[seed].name for seed in (1, 2, 3))
    assert run_here(config, "-o", tmp_path, "--retry", "failed", cwd=tmp_path).code == 0
    assert [verdicts(tmp_path)[seed][0] for seed in "01234"] == ["finished"] * 5
