"""Lightning's Trainer (extra `lightning`)."""

import logging

import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
lightning = pytest.importorskip("lightning.pytorch")
adapter = pytest.importorskip("lnexp.adapters.lightning")

from tests.attach.loops import VOCABULARY, cross_entropy, encoder, hooks_of, origin, rows  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    def __init__(self, bad: bool = False) -> None:
        super().__init__()
        self.model, self.bad = encoder(3), bad

    def training_step(self, batch, index):
        loss = cross_entropy(self.model, batch)
        return loss * float("inf") if self.bad and self.global_step == 3 else loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def fit(out=None, bad=False, accumulate=1, clip=0.5) -> nn.Module:
    module = Module(bad)
    ids = torch.randint(VOCABULARY, (40, 8), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(5)
    lightning.Trainer(
        max_steps=5, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=clip,
        accumulate_grad_batches=accumulate,
        callbacks=[adapter.WatchCallback(out=out, level="full")] if out else [],
    ).fit(module, torch.utils.data.DataLoader(ids, batch_size=4))  # fmt: skip
    return module


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_callback_changes_nothing_and_lets_go(accumulate, tmp_path):
    plain, module = fit(accumulate=accumulate), fit(tmp_path / "run", accumulate=accumulate)
    assert all(map(torch.equal, plain.parameters(), module.parameters()))
    assert hooks_of(module) == 0
    found = rows(tmp_path / "run", "steps")
    assert len(found) == 5 and float(found[0]["grad_norm"]) > 0.5  # before clipping


def test_a_bad_loss_is_found(tmp_path):
    fit(tmp_path / "run", bad=True)
    found = origin(tmp_path / "run")
    assert (found["phase"], found["kind"]) == ("loss", "inf")
