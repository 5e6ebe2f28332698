"""The examples of docs/api.md run as they stand."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import lnexp
from tests.attach.loops import VOCABULARY, batches, encoder

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)


def names() -> dict:
    model = encoder(2)
    pairs = [(ids, ids) for ids in batches(3)]
    return {
        "lnexp": lnexp,
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "batches": pairs,
        "x": pairs[0][0],
        "y": pairs[0][1],
        "loss_function": lambda out, y: nn.functional.cross_entropy(out.flatten(0, 1), y.flatten()),
    }


def test_the_examples_of_the_library_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    own = [example for example in EXAMPLES if "adapters" not in example]
    assert len(own) == 3
    known = names()
    for example in own:
        exec(example, known)
    assert capsys.readouterr().out.startswith("Every value is finite")
    assert len(known["steps"]) == 3 and list(known["runs"]["verdict"]) == ["too_short"]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_example_of_transformers(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    from tests.attach.test_hf import Data, gpt2

    monkeypatch.chdir(tmp_path)
    args = transformers.TrainingArguments(
        output_dir="trainer", max_steps=2, use_cpu=True, report_to=[], save_strategy="no"
    )
    known = {"Trainer": transformers.Trainer, "model": gpt2(), "args": args, "data": Data()}
    exec(next(e for e in EXAMPLES if "adapters.hf" in e), known)
    assert len((tmp_path / "results/mine/steps.csv").read_text().splitlines()) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_example_of_lightning(tmp_path, monkeypatch):
    lightning = pytest.importorskip("lightning.pytorch")
    from tests.attach.test_lightning import Module

    monkeypatch.chdir(tmp_path)
    ids = torch.randint(VOCABULARY, (16, 8))
    loader = torch.utils.data.DataLoader(ids, batch_size=4)
    known = {"Trainer": lightning.Trainer, "module": Module(), "loader": loader}
    exec(next(e for e in EXAMPLES if "adapters.lightning" in e), known)
    assert (tmp_path / "results/mine/status.json").is_file()
