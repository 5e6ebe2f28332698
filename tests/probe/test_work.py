"""lnexp probe end to end on runs of a fraction of a second, and the sampled skips."""

import csv
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lnexp.commands import probe as command
from lnexp.config.sweep import load_sweep
from lnexp.lab.schemas import ProbeRow
from lnexp.lab.skip import sampled_skip, skip, spread_blocks
from lnexp.lab.subject import Subject
from lnexp.probe.work import probe_plan
from lnexp.rows import header
from lnexp.runs import local
from tests.cases.conftest import NoPool
from tests.cases.trained import config, corpus, told
from tests.cli import Said, lnexp
from tests.runs.small import rows, write_config

DRAW = command._draw
TINY = """
data: {source: markov, length: 2000}
model: {width: 8, heads: 2, context: 8, init: xavier}
train: {steps: 300, batch_size: 16, lr: 1e-2}
sweep: {model.placement: [pre, none], model.depth: [3, 4, 5]}
seeds: [0, 1]
claims:
  - {id: a, says: x, expect: {verdict: learned}}
"""


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """`lnexp probe`, trained in this process, and without its pictures."""
    monkeypatch.setattr(local, "ProcessPool", NoPool)
    monkeypatch.setattr(command, "_draw", lambda *_: ([], []))
    write_config(tmp_path, TINY)

    def probe(*words: object) -> Said:
        return lnexp("probe", "small.yaml", *words, cwd=tmp_path)

    return probe


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> tuple[Path, Said]:
    """What `--steps 0,2 --json` left and said; not to be changed."""
    folder = tmp_path_factory.mktemp("first")
    write_config(folder, TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "ProcessPool", NoPool)
        patch.setattr(command, "_draw", lambda *_: ([], []))
        said = lnexp("probe", "small.yaml", "--steps", "0,2", "--json", cwd=folder)
    assert said.code == 0, said.err
    return folder / "results", said


@pytest.fixture
def probed(first, tmp_path) -> Path:
    """A copy of it, where `probe` goes on."""
    return shutil.copytree(first[0], tmp_path / "results")


def table(folder, name="probe"):
    path = folder / "small-probe" / "lab" / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_cell_has_its_profile_at_the_steps_asked_for(probe, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_draw", DRAW)
    said = probe("--steps", "0,2,4", "-s", "model.placement=[pre]")
    assert said.code == 0, said.err
    assert "6 runs of 5 steps, 6 to train" in said.err
    found = table(tmp_path / "results")
    assert [row["step"] for row in found] == ["0", "2", "4"] * 6
    assert list(found[0]) == header(ProbeRow)
    for words in ("small-probe: pre, depth 5 (2 runs)", "step 4", "W_Q", "effective depth",
                  "expected", "-0.5 (Xiong", "probe.csv"):  # fmt: skip
        assert words in said.out, words
    pictures = {path.stem for path in (tmp_path / "results" / "small-probe" / "plots").iterdir()}
    assert pictures == {"gradient_by_layer", "stream_by_layer", "matrix_by_layer",
                        "branch_by_layer", "laws"}  # fmt: skip


def test_a_row_says_what_the_runs_own_readings_say(first):
    results, _ = first
    row = next(r for r in table(results) if r["step"] == "2" and r["blocks"] == "5")
    path = results / "small-probe" / "runs" / row["run"] / "layers.csv"
    with path.open(encoding="utf-8", newline="") as file:
        read = {(int(r["layer"]), r["part"]): r for r in csv.DictReader(file) if r["step"] == "2"}

    def at(layer: int, part: str, column: str) -> float:
        return float(read[layer, part][column])

    ratio = at(0, "wv", "grad_norm") / at(4, "wv", "grad_norm")
    assert float(row["wv_ratio"]) == pytest.approx(ratio)
    assert float(row["w2_last"]) == at(4, "w2", "grad_norm")
    scores = [at(layer, "attn", "attn_logit_max") for layer in range(5)]
    assert float(row["attn_logit_max"]) == max(scores)
    blocks = np.log([at(layer, "mlp", "act_rms") for layer in range(5)])
    slope = np.polyfit(np.log(np.arange(1, 6)), blocks, 1)[0]
    assert float(row["rms_exponent"]) == pytest.approx(slope)
    assert float(row["branch_last"]) == at(4, "mlp", "branch_to_stream")


def test_a_second_call_trains_and_measures_nothing_and_says_the_same(
    probe, first, probed, monkeypatch
):
    said = json.loads(first[1].out)
    assert [cell["moments"][0]["step"] for cell in said["cells"]] == [0] * 6
    monkeypatch.setattr(local, "train_run", None)
    again = probe("--steps", "0,2", "--json")
    assert "0 to train" in again.err and "measuring" not in again.err
    assert json.loads(again.out) == said
    assert {law["outcome"] for law in said["laws"]} <= {"met", "not met", "undecided"}
    assert {law["cell"]["model.placement"] for law in said["laws"]} == {"pre"}


def test_interrupted_it_goes_on_to_the_same_rows(probe, first, tmp_path, monkeypatch):
    calm, _ = first
    train, calls = local.train_run, []

    def stops(*work):
        calls.append(work)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return train(*work)

    monkeypatch.setattr(local, "train_run", stops)
    broken = probe("--steps", "0,2")
    assert broken.code == 130 and "the same command goes on" in broken.err
    assert probe("--steps", "0,2").code == 0
    assert table(tmp_path / "results") == table(calm)
    assert rows(tmp_path / "results", "small-probe") == rows(calm, "small-probe")


def test_more_steps_of_the_same_distance_go_on_with_the_same_runs(probe, probed):
    runs = probed / "small-probe" / "runs"
    before = {path.name for path in runs.iterdir()}
    assert probe("--steps", "0,2,6").code == 0
    assert {path.name for path in runs.iterdir()} == before
    # Asked about fewer again, the weights at the end are no longer those of step 2.
    assert probe("--steps", "0,2").code == 0
    found = table(probed)
    assert {row["effective_depth"] for row in found if row["step"] == "2"} == {""}
    assert all(row["effective_depth"] for row in found if row["step"] == "0")


def test_its_sweep_keeps_cells_and_seeds_and_nothing_of_claims_or_schedule(tmp_path):
    text = TINY.replace("lr: 1e-2", "lr: 1e-2, schedule: cosine")
    sweep = load_sweep(write_config(tmp_path, text, "small.yaml"))
    plan = probe_plan(sweep, [0, 5, 20])
    assert plan.sweep.name == "small-probe" and len(plan.runs) == 12 and not plan.sweep.claims
    for run in plan.runs:
        settings = run.config.settings()
        assert settings["train.steps"] == 21 and settings["measure.every"] == 5
        assert settings["measure.level"] == "full" and settings["measure.sample"] == 16
        assert settings["train.schedule"] == "constant"
    assert probe_plan(sweep, [0]).runs[0].config.measure.every == 1


def test_settings_that_the_steps_decide_may_be_swept_and_a_lone_run_be_probed(tmp_path):
    text = TINY.replace("model.depth: [3, 4, 5]", "train.steps: [10, 20], model.depth: [3]")
    text = text.replace("lr: 1e-2", "lr: 1e-2, schedule: cosine")
    sweep = load_sweep(write_config(tmp_path, text, "a.yaml"))
    assert len(probe_plan(sweep, [0]).runs) == 4
    lone = "data: {source: markov, length: 2000}\nmodel: {depth: 2, width: 8, heads: 1}\n"
    assert len(probe_plan(load_sweep(write_config(tmp_path, lone, "b.yaml")), [0]).runs) == 1


@pytest.mark.parametrize("steps", ["", "a", "0,-1", "0,,5", "1.5"])
def test_a_wrong_step_is_one_line_and_nothing_is_written(probe, tmp_path, steps):
    said = probe("--steps", steps)
    assert said.code == 2 and "0,5,20" in said.err and len(said.err.splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_a_run_that_is_not_finite_keeps_its_rows_and_is_counted(probe, tmp_path):
    said = probe("--steps", "0,4", "-s", "train.lr=1e30", "-s", "model.placement=[none]")
    assert said.code == 0, said.err
    found = table(tmp_path / "results")
    assert {row["step"] for row in found} == {"0"}
    assert "step 4 (0/2)" in said.out


def subject(folder, **model) -> Subject:
    run = config(model=model, steps=3, lr=1e-2)
    told(folder / "run", run)
    return Subject(folder / "run", 3, run, corpus(run.data), "cpu")


@pytest.mark.parametrize("placement", ["pre", "residual_dual"])
def test_a_sampled_skip_is_the_loss_of_the_model_without_the_block(tmp_path, placement):
    run = subject(tmp_path, placement=placement)
    x_BT, y_BT = (torch.cat(parts) for parts in zip(*run.windows()[:3], strict=True))
    assert x_BT.numel() >= 128 > run.windows()[0][0].numel() * 2
    found = list(sampled_skip(run))
    assert [(row.at, row.block) for row in found] == [
        (at, block) for at in ("start", "end") for block in range(3)
    ]
    for row in found:
        model = run.fresh() if row.at == "start" else run.model
        rest = [block for i, block in enumerate(model.blocks) if i != row.block]
        with torch.no_grad():
            loss = F.cross_entropy(model.through(x_BT, rest).flatten(0, 1), y_BT.flatten())
        assert row.loss_without == pytest.approx(float(loss), rel=1e-12)
        assert row.change == row.loss_without - row.loss
    assert len(asdict(found[0])) == 7 and len(list(skip(run))) == 3


def test_a_run_that_learned_nothing_still_has_the_weights_that_it_began_with(tmp_path):
    run = config(steps=2, lr=0.0)
    told(tmp_path / "run", run)
    still = Subject(tmp_path / "run", 2, run, corpus(run.data), "cpu")
    start, end = still.fresh().state_dict(), still.model.state_dict()
    assert all(torch.equal(start[name], end[name]) for name in end)


def test_of_many_blocks_sixteen_from_the_first_to_the_last_are_looked_at():
    assert spread_blocks(16) == list(range(16)) and spread_blocks(1) == [0]
    many = spread_blocks(1000)
    assert len(set(many)) == 16 and (many[0], many[-1]) == (0, 999)
