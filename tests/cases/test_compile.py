"""C11: a compiled run has the names and files of an eager one, and its numbers within rounding."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from lnexp.runs import checkpoint
from lnexp.train.blocks import compile_problem, compiled
from lnexp.train.loop import train
from tests.cases.conftest import run_here
from tests.cases.trained import MARKOV, corpus, state_of
from tests.cli import lnexp

# Torch's compiler warns while it traces, and hides that itself; as errors they would end it.
pytestmark = pytest.mark.filterwarnings("ignore")

TINY = """
data: {source: markov, length: 2000}
model: {depth: 2, width: 8, heads: 1, context: 8, dropout: 0.1}
train: {steps: 12, batch_size: 2}
"""


def timeless(records):
    return [replace(r, step=replace(r.step, seconds=0.0)) for r in records]


def losses(records) -> list[float]:
    return [record.step.loss for record in records]


def test_without_a_compiler_it_is_one_line_before_anything_is_written(refused, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    (line,) = refused(TINY, "-s", "train.compile=true")
    assert "train.compile: torch.compile needs a C++ compiler" in line and "compile: false" in line
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "CXX is no-such-compiler, which is not there" in compile_problem()


def test_it_is_off_unless_asked_for():
    state = state_of()
    assert state.config.train.compile is False and state.forward is state.model


def test_a_snapshot_of_either_kind_is_gone_on_from_by_the_other(tmp_path):
    straight = losses(train(state_of(steps=12)))
    for first, then in ((True, False), (False, True)):
        begun = state_of(steps=12, compile=first)
        stream = train(begun)
        rows = [next(stream) for _ in range(6)]
        checkpoint.save(tmp_path, begun, corpus(MARKOV).sha256)
        assert not any("_orig_mod" in name for name in checkpoint.read(tmp_path)["model"])
        after = state_of(steps=12, compile=then)
        assert checkpoint.restore(tmp_path, after, corpus(MARKOV).sha256)
        assert losses(rows) + losses(train(after)) == pytest.approx(straight, rel=1e-4)


def test_it_resumes_itself_bit_for_bit_and_draws_the_same_dropout(tmp_path):
    how = {"model": {"dropout": 0.2}, "steps": 12, "compile": True}
    straight = timeless(train(state_of(**how)))
    eager = list(train(state_of(**{**how, "compile": False})))
    assert losses(straight) == pytest.approx(losses(eager), rel=1e-4)
    begun = state_of(**how)
    stream = train(begun)
    rows = timeless(next(stream) for _ in range(5))
    checkpoint.save(tmp_path, begun, corpus(MARKOV).sha256)
    again = state_of(**how)
    checkpoint.restore(tmp_path, again, corpus(MARKOV).sha256)
    assert rows + timeless(train(again)) == straight


def test_rows_name_the_same_places_at_level_full_and_the_kind_is_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    full = ("tiny.yaml", "-s", "measure.level=full", "-s", "measure.every=4")
    assert run_here(*full, "-s", "name=eager", cwd=tmp_path).code == 0
    said = lnexp("run", *full, "-s", "name=fast", "-s", "train.compile=true")
    assert said.code == 0, said.err
    eager, fast = (places(tmp_path / "results" / name) for name in ("eager", "fast"))
    assert eager == fast and len(eager) > 1
    (env,) = tmp_path.glob("results/fast/runs/*/env.json")
    assert json.loads(env.read_text(encoding="utf-8"))["compile"] == "each block"


def places(sweep: Path) -> list[list[str]]:
    """Header, then step, layer and part of each row of the one run's layers.csv."""
    (path,) = sweep.glob("runs/*/layers.csv")
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return [header, *(row[:3] for row in rows)]


@pytest.mark.slow
def test_every_block_is_compiled_where_all_of_them_differ():
    """Layernorm scaling: twelve constants, above torch's own limit of eight compilations."""
    model = state_of(model={"placement": "lns", "depth": 12}).model
    torch._dynamo.reset()
    counters["stats"].clear()
    ids_BT = torch.zeros(2, 12, dtype=torch.long)
    assert torch.allclose(model.through(ids_BT, compiled(model)), model(ids_BT), atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 12
