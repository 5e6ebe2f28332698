"""A run that goes on gives the rows of one that was never interrupted, bit for bit."""

import json
from dataclasses import replace

import pytest
import torch

from lnexp.config.schema import Data, Measure, Model, RunConfig, Train
from lnexp.config.sweep import load_sweep
from lnexp.data import load
from lnexp.messages import UserError
from lnexp.rows import Record
from lnexp.runs import checkpoint
from lnexp.runs.plan import make_plan
from lnexp.runs.rundir import read_status
from lnexp.train.loop import train
from lnexp.train.state import State, set_up
from tests.runs.small import SMALL, rows, train_here, write_config

CORPUS = load(Data(source="markov", length=4000))


def state_of(steps: int = 20, level: str = "full", **settings) -> State:
    config = RunConfig(
        data=Data(source="markov", length=4000),
        model=Model(depth=2, width=16, heads=2, context=16, dropout=0.1),
        train=Train(**{"steps": steps, "batch_size": 4, "lr": 3e-3, "warmup": 15, **settings}),
        measure=Measure(level=level, eval_every=5),
    )
    return set_up(config, CORPUS, "cpu")


def timeless(records: list[Record]) -> list[Record]:
    return [replace(r, step=replace(r.step, seconds=0.0)) for r in records]


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed", "fp16", "bf16-mixed"])
def test_ten_and_ten_are_twenty_to_the_bit(tmp_path, precision, optimizer, schedule):
    how = {"precision": precision, "optimizer": optimizer, "schedule": schedule}
    straight = timeless(list(train(state_of(**how))))
    first = state_of(**how)
    stream = train(first)
    begun = timeless([next(stream) for _ in range(10)])
    checkpoint.save(tmp_path, first, CORPUS.sha256)
    torch.rand(5)  # what else draws must not matter
    second = state_of(**how)
    assert checkpoint.restore(tmp_path, second, CORPUS.sha256)
    assert begun + timeless(list(train(second))) == straight


def test_a_snapshot_of_other_settings_is_refused_with_both_values(tmp_path):
    state = state_of()
    checkpoint.save(tmp_path, state, CORPUS.sha256)
    with pytest.raises(UserError, match="train.lr was 0.003, is 0.1"):
        checkpoint.restore(tmp_path, state_of(lr=0.1), CORPUS.sha256)
    with pytest.raises(UserError, match="data.sha256"):
        checkpoint.restore(tmp_path, state_of(), "0" * 64)
    assert checkpoint.restore(tmp_path, state_of(steps=50), CORPUS.sha256)
    assert not checkpoint.restore(tmp_path / "nowhere", state_of(), CORPUS.sha256)
    (tmp_path / "checkpoint.pt").write_bytes(b"half")
    assert not checkpoint.restore(tmp_path, state_of(), CORPUS.sha256)


def trained(folder, *overrides: str) -> None:
    plan = make_plan(load_sweep(write_config(folder, SMALL), ["seeds=[0]", *overrides]))
    train_here(plan, folder)


def test_more_steps_go_on_from_the_snapshot_and_give_the_rows_of_one_long_run(tmp_path):
    short, long = tmp_path / "short", tmp_path / "long"
    for folder in (short, long):
        folder.mkdir()
    trained(short)  # 12 steps; its last row has a val_loss of its own
    trained(short, "train.steps=23")
    trained(long, "train.steps=23")
    assert rows(short) == rows(long)
    for run in (short / "small" / "runs").iterdir():
        status = read_status(run)
        assert status is not None and status.steps_done == 23
        assert json.loads((run / "env.json").read_text())["resumed_at_step"] == 12


def test_rows_after_the_snapshot_and_half_lines_are_cut_before_going_on(tmp_path):
    short, long = tmp_path / "short", tmp_path / "long"
    for folder in (short, long):
        folder.mkdir()
    every = "measure.snapshot_every=4"
    trained(short, every, "train.steps=10")
    trained(long, every, "train.steps=20")
    for run in (short / "small" / "runs").iterdir():  # as a kill at step 10 leaves it
        (run / "status.json").unlink()
        with (run / "steps.csv").open("a") as file:
            file.write("10,640,0.1,0.003,1.5,2.5,,,,,,,,\n11,70")
        with (run / "layers.csv").open("a") as file:
            file.write("10,0,attn,0.2")
    trained(short, every, "train.steps=20")
    assert rows(short) == rows(long)


def test_a_table_with_other_columns_is_refused_and_left_alone(tmp_path):
    trained(tmp_path)
    (run, *_) = (tmp_path / "small" / "runs").iterdir()
    older = (run / "steps.csv").read_text().replace("loss_scale,", "", 1)
    (run / "steps.csv").write_text(older)
    trained(tmp_path, "train.steps=15")
    status = read_status(run)
    assert status is not None and status.status == "failed" and "other columns" in str(status.error)
    assert (run / "steps.csv").read_text() == older


def test_keep_rules_what_stays(tmp_path):
    trained(tmp_path, "measure.keep=none")
    assert not list(tmp_path.glob("small/runs/*/checkpoint.pt"))
