"""Runs in one forward and backward: each has the bits that it has alone."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from lnexp.config import Data, Measure, Model, RunConfig, Seed, Train
from lnexp.data import load
from lnexp.rows import Record
from lnexp.train import stack
from lnexp.train.loop import steps, train
from lnexp.train.passes import Pass
from lnexp.train.stack import Stack
from lnexp.train.state import State, set_up

CORPUS = load(Data(source="markov", length=4000))
FORMS = [
    {"placement": "pre"},
    {"placement": "post", "heads": 4},
    {"placement": "post", "residual": False},
    {"placement": "none", "activation": "relu"},
    {"placement": "sandwich", "qk_norm": True},
    {"placement": "residual_dual"},  # blocks of two streams
    {"placement": "b2t", "affine": False},
    {"placement": "lns", "bias": False},
    {"placement": "pre", "tie_embeddings": True},
    {"placement": "pre", "norm": "dyt"},
    {"placement": "pre", "attention": "plain", "softmax": "plain"},
]


def states(runs: int = 3, model=None, measure=None, train=None) -> list[State]:
    """Of other seeds, eps and learning rates."""
    found = []
    for seed in range(runs):
        shape = {"depth": 2, "width": 16, "heads": 2, "context": 16, "eps": 1e-5 * 10**seed}
        config = RunConfig(
            data=Data(source="markov", length=4000),
            model=Model(**{**shape, "init": "xavier", **(model or {})}),
            train=Train(**{"steps": 6, "batch_size": 4, "lr": 0.01 / (seed + 1), **(train or {})}),
            measure=Measure(**{"eval_every": 3, **(measure or {})}),
            seed=Seed(init=seed, data=seed),
        )
        found.append(set_up(config, CORPUS, "cpu"))
    return found


def told(record: Record) -> str:
    """All but times."""
    autopsy = {k: v for k, v in (record.autopsy or {}).items() if k != "seconds"}
    return repr(replace(record, step=replace(record.step, seconds=0.0), autopsy=autopsy))


def alone(several: Sequence[State]) -> list[list[str]]:
    return [[told(record) for record in train(state)] for state in several]


def together(several: Sequence[State], joint: Stack) -> list[list[str]]:
    rows: list[list[str]] = [[] for _ in several]
    runs = {at: steps(state, joint.row(state.model)) for at, state in enumerate(several)}
    while runs:
        passes = []
        for at, run in list(runs.items()):
            for item in run:
                if isinstance(item, Pass):
                    passes.append(item)
                    break
                rows[at].append(told(item))
            else:
                del runs[at]
        joint.make(passes)
    return rows


def same_weights(one: State, other: State) -> bool:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)


@pytest.fixture
def sizes(monkeypatch) -> list[int]:
    """Of the passes made together."""
    made, whole = [], stack._pass

    def counted(network, passes):
        made.append(len(passes))
        whole(network, passes)

    monkeypatch.setattr(stack, "_pass", counted)
    return made


@pytest.mark.parametrize("model", FORMS, ids=str)
def test_rows_and_weights_of_runs_together_are_those_of_each_alone(model, sizes):
    lone, several = states(model=model), states(model=model)
    joint = Stack(3)
    assert together(several, joint) == alone(lone)
    assert all(map(same_weights, several, lone))
    assert joint.trusted and sizes == [3] * 6


def test_so_are_those_with_z_loss_clipping_and_a_loss_scale(sizes):
    how = {"z_loss": 1e-3, "clip": 0.5, "loss_scale": 64.0, "optimizer": "sgd"}
    assert together(states(train=how), Stack(3)) == alone(states(train=how))
    assert sizes == [3] * 6


def test_a_step_whose_modules_are_listened_to_is_made_alone(sizes):
    full = {"level": "full", "every": 3}
    assert together(states(measure=full), Stack(3)) == alone(states(measure=full))
    assert sizes == [3] * 4  # of 6 steps


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_a_bad_value_in_one_run_leaves_the_others_as_they_are(value, sizes):
    def spoilt() -> list[State]:
        several = states(runs=4)
        with torch.no_grad():
            several[1].model.blocks[0].attn.body.wqkv.weight[0, 0] = value  # type: ignore[union-attr]
        return several

    rows = together(spoilt(), Stack(4))
    assert rows == alone(spoilt())
    healthy = alone(states(runs=4))
    assert [rows[at] == healthy[at] for at in range(4)] == [True, False, True, True]
    assert sizes[0] == 4 and "first_bad" not in rows[0][0]


def test_where_a_run_has_ended_its_neighbours_go_on_together(sizes):
    def some() -> list[State]:
        several = states(runs=4)
        with torch.no_grad():
            several[1].model.head.weight[0, 0] = float("nan")
        return several

    assert together(some(), Stack(4)) == alone(some())
    assert sizes == [4] + [2] * 5  # rows 2 and 3; row 0 alone


def test_where_the_bits_differ_all_go_on_alone(monkeypatch, sizes):
    whole = stack._pass

    def rounded(network, passes):
        whole(network, passes)
        passes[0].loss = passes[0].loss + 1e-6

    monkeypatch.setattr(stack, "_pass", rounded)
    joint = Stack(3)
    assert together(states(), joint) == alone(states())
    assert not joint.trusted and sizes == [3]
    joint = Stack(2)
    monkeypatch.setattr(stack, "_pass", whole)
    norm = {"norm": "rmsnorm"}  # its gradients are summed in another order
    assert together(states(2, norm), joint) == alone(states(2, norm))
