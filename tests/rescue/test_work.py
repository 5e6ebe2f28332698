"""lnexp rescue: the control repeats the run to the bit, and one change at a time tells why."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch

from lnexp.config.rules import DEFAULTS
from lnexp.rescue.reading import rescue_evidence
from lnexp.rescue.work import Change, Failure, changes
from lnexp.runs import local
from lnexp.train import loop
from tests.cases.conftest import NoPool
from tests.cli import Said, lnexp
from tests.runs.small import rows, write_config

# Without norms, fp16, a large rate: the logits leave fp16 within a few dozen steps.
FRAGILE = """
data: {source: markov, length: 4000}
model: {depth: 3, width: 16, heads: 2, context: 16, placement: none, init: xavier, dropout: 0.1}
train: {steps: 40, batch_size: 4, lr: 0.15, precision: fp16}
measure: {snapshot_every: 1}
seeds: [0]
"""

SPIKE = """
data: {source: markov, length: 20000}
model: {depth: 1, width: 32, heads: 2, context: 16, placement: pre, init: xavier}
train: {steps: 70, batch_size: 32, lr: 3e-3}
seeds: [0]
"""


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """A results folder with one run that went non-finite, and its bad step."""
    folder = tmp_path_factory.mktemp("failed")
    write_config(folder, FRAGILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "ProcessPool", NoPool)
        assert lnexp("run", "small.yaml", cwd=folder).code == 0
    (run,) = (folder / "results" / "small" / "runs").iterdir()
    step = json.loads((run / "status.json").read_text())["first_bad_step"]
    assert step is not None and step > 2
    return folder, run.name, step


class Rescue:
    """`lnexp rescue` of a copy of that run, trained in this process."""

    def __init__(self, folder: Path, run: str, step: int):
        self.folder, self.run, self.step = folder / "results", run, step

    def __call__(self, *words: object) -> Said:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local, "ProcessPool", NoPool)
            return lnexp("rescue", f"results/small/runs/{self.run}", *words, cwd=self.folder.parent)


@pytest.fixture
def rescue(failed, tmp_path) -> Rescue:
    folder, name, step = failed
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return Rescue(tmp_path, name, step)


@pytest.fixture(scope="module")
def rescued(failed, tmp_path_factory) -> tuple[Rescue, Said]:
    """With every change that is tried unasked, and what was said; not to be changed."""
    folder, name, step = failed
    here = tmp_path_factory.mktemp("rescued")
    shutil.copytree(folder, here, dirs_exist_ok=True)
    said = Rescue(here, name, step)()
    assert said.code == 0, said.err
    return Rescue(here, name, step), said


@pytest.fixture
def again(rescued, tmp_path) -> Rescue:
    """A copy of it, to go on with."""
    first, _ = rescued
    shutil.copytree(first.folder.parent, tmp_path, dirs_exist_ok=True)
    return Rescue(tmp_path, first.run, first.step)


def table(results) -> dict[str, dict[str, str]]:
    path = results / "small-rescue" / "lab" / "rescue.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return {row["change"]: row for row in csv.DictReader(file)}


def test_the_control_fails_at_the_same_step_with_the_same_rows_and_fp32_tells_why(rescued):
    rescue, said = rescued
    found = table(rescue.folder)
    control = found["control"]
    assert control["identical"] == "1" and int(control["from_step"]) == rescue.step
    assert control["failed_at"] == control["bad_step"] == str(rescue.step)
    assert "the same rows to the bit, and the same end" in " ".join(said.out.split())
    assert {"half the learning rate", "adam_eps", "fp32", "mixed precision", "loss scaling",
            "z-loss", "without that batch", "other data order"} <= set(found)  # fmt: skip
    assert "eps" not in found  # placement none has no norm to put it in
    explained = lnexp("explain", rescue.folder / "small" / "runs" / rescue.run).out
    assert f"the control: fails at step {rescue.step} again" in " ".join(explained.split())
    (evidence,) = rescue_evidence(rescue.folder / "small" / "runs" / rescue.run)
    assert evidence[0] == "rescue" and "had a part in it" in evidence[2]


def test_from_the_beginning_too_the_control_is_the_run_to_the_bit(rescue):
    (rescue.folder / "small" / "runs" / rescue.run / "checkpoint.pt").unlink()
    assert rescue().code == 0
    found = table(rescue.folder)
    assert {row["from_step"] for row in found.values()} == {"0"}
    assert found["control"]["identical"] == "1"
    assert found["control"]["failed_at"] == str(rescue.step)


def test_rows_before_the_snapshot_are_the_runs_own_whatever_is_changed(rescued):
    rescue, _ = rescued
    own = rows(rescue.folder)[f"{rescue.run}/steps.csv"]
    found = table(rescue.folder)
    for row in found.values():
        if row["from_step"] == "0":
            continue
        steps = rows(rescue.folder, "small-rescue")[f"{row['trial']}/steps.csv"]
        assert steps[1 : rescue.step + 1] == own[1 : rescue.step + 1], row["change"]
    other = rows(rescue.folder, "small-rescue")[f"{found['other data order']['trial']}/steps.csv"]
    at = own[0].index("unigram_loss")
    assert other[rescue.step + 1][at] != own[rescue.step + 1][at]  # other letters


def test_without_that_batch_the_next_one_comes_in_its_place(again):
    assert again("--try", "train.on_nonfinite=continue").code == 0
    tables, found = rows(again.folder, "small-rescue"), table(again.folder)
    own = tables[f"{found['train.on_nonfinite=continue']['trial']}/steps.csv"]
    at = own[0].index("unigram_loss")
    skipped = tables[f"{found['without that batch']['trial']}/steps.csv"]
    assert skipped[again.step + 1][at] == own[again.step + 2][at]
    assert skipped[again.step + 1][0] == str(again.step)


def test_what_changes_the_function_starts_at_step_0_and_says_so(again):
    said = again("--try", "model.placement=pre", "--try", "train.lr=1e-4")
    assert said.code == 0, said.err
    found = table(again.folder)
    assert found["model.placement=pre"]["from_step"] == "0"
    assert int(found["train.lr=1e-4"]["from_step"]) == again.step
    assert "From step 0" in said.out and "model.placement=pre" in said.out


def test_a_second_call_trains_nothing_and_an_interrupted_one_goes_on(rescue, rescued, monkeypatch):
    train, calls = local.train_run, []

    def stops(*work):
        calls.append(work)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return train(*work)

    monkeypatch.setattr(local, "train_run", stops)
    assert rescue().code == 130
    assert rescue().code == 0
    first = table(rescue.folder)
    assert first == table(rescued[0].folder)
    monkeypatch.setattr(local, "train_run", None)
    assert rescue().code == 0 and table(rescue.folder) == first
    assert first["control"]["identical"] == "1"


def test_a_spike_made_by_one_large_step_is_prevented_by_what_tames_that_step(tmp_path, monkeypatch):
    """The learning rate of step 40 times 30. Adam's step is as large as its rate, whatever clipping
    or the loss's gradient do; a tenth of the rate is a tenth of the jump."""
    monkeypatch.setattr(local, "ProcessPool", NoPool)
    lr_at = loop.lr_at
    monkeypatch.setattr(loop, "lr_at", lambda step, t: lr_at(step, t) * (30 if step == 40 else 1))
    write_config(tmp_path, SPIKE)
    assert lnexp("run", "small.yaml", cwd=tmp_path).code == 0
    (run,) = (tmp_path / "results" / "small" / "runs").iterdir()
    said = lnexp("rescue", run, "--try", "train.lr=3e-4", cwd=tmp_path)
    assert said.code == 0, said.err
    found = {change: row["outcome"] for change, row in table(tmp_path / "results").items()}
    jump = "spiked again: gap jumped by"
    assert found["control"].startswith(jump) and "at step 41" in found["control"]
    assert all(found[change].startswith(jump) for change in ("clipping", "adam_eps", "z-loss"))
    assert found["train.lr=3e-4"] in ("learned instead", "too_short instead")


def test_each_change_is_one_and_applies_where_it_means_something():
    base = {**DEFAULTS, "train.precision": "fp16", "model.placement": "post"}
    names = [c.name for c in changes(Failure(base, 0, 5))]
    assert names[0] == "control" and {"fp32", "loss scaling", "mixed precision", "eps"} <= set(
        names
    )
    single = [c for c in changes(Failure(base, 0, 5)) if len(c.settings) > 1]
    assert single == []
    plain = {c.name for c in changes(Failure({**DEFAULTS, "train.optimizer": "sgd"}, 0, None))}
    assert not plain & {"adam_eps", "fp32", "loss scaling", "mixed precision"}
    assert "without that batch" not in plain
    assert Change("", {"model.norm": "rmsnorm"}).from_zero
    assert not Change("", {"model.eps": 1e-3, "train.lr": 1.0}).from_zero


@pytest.mark.parametrize(
    "words, says",
    [
        (("--try", "train.lr"), "write a setting"),
        (("--try", "train.lrr=1"), "lrr"),
        (("--try", "train.lr=fast"), "fast"),
        (("--try", "train.steps=99"), "write one value"),
        (("--try", "seeds=[1]"), "write a setting"),
        (("--try", "measure.level=full"), "write a setting"),
    ],
)
def test_a_wrong_try_is_told_in_a_line_and_nothing_is_written(rescue, words, says):
    said = rescue(*words)
    assert said.code == 2 and says in said.err and "Traceback" not in said.err
    assert not (rescue.folder / "small-rescue").exists()


def test_a_run_that_learned_or_a_sweep_is_nothing_to_rescue(rescue, tmp_path):
    said = lnexp("rescue", rescue.folder / "small")
    assert said.code == 2 and "one run folder" in said.err
    said = lnexp("rescue", tmp_path / "nowhere")
    assert said.code == 2


def test_moments_of_scaled_gradients_are_divided_when_the_scale_goes(tmp_path):
    from lnexp.rescue.work import _scaled

    moment = torch.tensor([512.0, 1e-3])
    assert torch.equal(_scaled("exp_avg", moment, 1 / 256), moment / 256)
    assert torch.equal(_scaled("exp_avg_sq", moment, 1 / 256), moment / 65536)
    assert _scaled("step", moment, 1 / 256) is moment
