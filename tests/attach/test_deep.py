"""48 blocks of torch's own TransformerEncoder: the readings tell what becomes of them."""

import json

import pytest
import torch
from torch import nn

import lnexp
from lnexp.config.schema import Data
from lnexp.data import Batches, load, unigram_nll
from lnexp.explain.explain import explain

pytestmark = pytest.mark.slow

DEPTH, WIDTH, CONTEXT, STEPS = 48, 32, 32, 200
TEXT = load(Data())


class Text(nn.Module):
    """Causal, with Xavier's matrices."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=norm_first
        )
        final = nn.LayerNorm(WIDTH) if norm_first else None
        self.embed = nn.Embedding(len(TEXT.vocabulary), WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.encoder = nn.TransformerEncoder(layer, DEPTH, final, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, len(TEXT.vocabulary), bias=False)
        self.mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        for name, weight in self.named_parameters():
            if weight.dim() > 1 and name not in ("embed.weight", "position.weight"):
                nn.init.xavier_uniform_(weight)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, ids):
        h = self.embed(ids) + self.position.weight
        return self.head(self.encoder(h, mask=self.mask, is_causal=True))


def case(norm_first: bool, out):
    model, cpu = Text(norm_first), torch.device("cpu")
    text, guess = Batches(TEXT, 8, CONTEXT, 0, cpu), unigram_nll(TEXT, cpu)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    y = torch.zeros(1, dtype=torch.long)
    with lnexp.watch(
        model, optimizer, out, level="full", every=5, baseline=lambda: guess[y].mean()
    ) as w:
        for _ in range(STEPS):
            x, y = text.draw()
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            w.step(loss)
            optimizer.step()
            optimizer.zero_grad()
    return explain(out).case


def test_post_norm_stalls_as_its_gradients_vanish_and_pre_norm_learns(tmp_path):
    post, pre = case(False, tmp_path / "post"), case(True, tmp_path / "pre")
    assert post.judgement.verdict == "stalled" and pre.judgement.verdict == "learned"
    assert {"vanishing", "rank_collapse"} <= set(post.causes)
    assert "vanishing" not in pre.causes
    assert post.figures["grad_ratio_step0"] > 0.1 and post.figures["grad_ratio_end"] < 1e-4
    assert pre.figures["grad_ratio_end"] > 0.1
    assert json.loads((tmp_path / "post" / "status.json").read_text())["first_bad_step"] is None
