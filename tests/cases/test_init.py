"""A14: the init that was asked for is the init of what trains, and `lnexp plan` prints it."""

from math import sqrt

import pytest
import torch

from lnexp.config.schema import Data, Measure, Model, RunConfig, Train
from lnexp.data import load
from lnexp.model.init import build, weights
from lnexp.train.loop import train
from lnexp.train.state import set_up
from tests.cli import lnexp
from tests.runs.small import write_config

PLAN = """
data: {source: markov, length: 2000}
model: {width: 64, heads: 4, context: 64, init: gpt2}
sweep: {model.depth: [2, 50]}
"""
RESIDUAL = ("wo", "w2")


def expected(name: str, depth: int) -> float:
    return 0.02 / sqrt(2 * depth) if name.endswith(RESIDUAL) else 0.02


@pytest.mark.parametrize("depth", [2, 50])
def test_every_weight_of_the_plan_is_002_or_that_over_the_root_of_twice_the_depth(planned, depth):
    (model,) = planned(PLAN, "-s", f"model.depth={depth}")["models"]
    assert len([w for w in model["init_std"] if w["weight"].endswith(RESIDUAL)]) == 2 * depth
    for weight in model["init_std"]:
        assert weight["std"] == pytest.approx(expected(weight["weight"], depth)), weight


def test_the_plan_in_the_terminal_shows_both_depths(tmp_path):
    write_config(tmp_path, PLAN)
    said = lnexp("plan", "small.yaml", cwd=tmp_path)
    assert said.code == 0
    for depth, std in ((2, "0.01"), (50, "0.002")):
        tables = said.out.split("Initialisation: ")[1:]
        (table,) = (text for text in tables if f"depth {depth}\n" in text)
        rows = [line.split() for line in table.splitlines() if ".wo " in line or ".w2 " in line]
        assert len(rows) == 2
        assert all(std in row and str(depth) in row for row in rows), rows


@pytest.mark.parametrize("depth", [2, 50])
def test_what_is_drawn_is_what_the_plan_prints_in_every_block(planned, depth):
    (model,) = planned(PLAN, "-s", f"model.depth={depth}")["models"]
    promised = {w["weight"]: w["std"] for w in model["init_std"]}
    drawn = list(weights(build(Model(depth=depth), 16, 0)))
    assert {w.name for w in drawn if w.tensor.ndim > 1} == set(promised)
    for w in drawn:
        std = float(w.tensor.detach().std(correction=0))
        rel = 0.05 if w.tensor.numel() > 2000 else 0.1
        assert std == pytest.approx(promised.get(w.name, 0.0), rel=rel), w.name


@pytest.mark.parametrize("depth", [2, 50])
def test_the_first_reading_of_a_run_is_of_these_weights(depth):
    """From the rows of training itself: the scaling is not lost between plan and run."""
    data = Data(source="markov", length=500)
    config = RunConfig(
        data=data,
        model=Model(depth=depth, width=32, heads=2, context=8),
        train=Train(steps=1, batch_size=2),
        measure=Measure(level="full"),
    )
    (record,) = train(set_up(config, load(data), "cpu"))
    for part, size in (("wq", 32 * 32), ("wo", 32 * 32), ("w1", 128 * 32), ("w2", 128 * 32)):
        norms = [row.weight_norm for row in record.layers if row.part == part]
        assert len(norms) == depth
        std = sqrt(sum(norm**2 for norm in norms) / (depth * size))
        assert std == pytest.approx(expected(part, depth), rel=0.05)


def test_a_tied_head_is_one_tensor_in_the_plan_counted_once_and_drawn_as_002(planned):
    (tied,), (free,) = (
        planned(PLAN, "-s", "model.depth=2", "-s", f"model.tie_embeddings={tie}")["models"]
        for tie in ("true", "false")
    )
    names = [{w["weight"] for w in model["init_std"]} for model in (tied, free)]
    assert names[1] - names[0] == {"head"} and names[0] < names[1]
    assert free["parameters"] - tied["parameters"] == 16 * 64
    head = build(Model(tie_embeddings=True, width=256), 103, 0).head.weight.detach()
    assert float(head.std()) == pytest.approx(0.02, rel=0.05)
    assert not torch.equal(head, torch.zeros_like(head))
