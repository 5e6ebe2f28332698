"""The lessons' blocks, rebuilt from lnexp's options and compared with code of their own.

Shapes: B batch, T time, D width.
"""

from math import sqrt

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lnexp.config.schema import Model
from lnexp.model.gpt import Attention, new_block


class SeesAll(Attention):
    """Lesson 1's: no position is hidden."""

    def scores(self, q_BHTK: Tensor, k_BHTK: Tensor) -> Tensor:
        return q_BHTK @ k_BHTK.transpose(-2, -1) / sqrt(q_BHTK.shape[-1])


def layer_norm(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def test_lesson_1s_block_gives_its_token_norms():
    """Pre-LN, one head, ReLU, weights normal 0.1, no biases, exp over sum; NumPy's seed 42."""
    np.random.seed(42)
    D, T = 64, 10
    shapes = ((D, D), (D, D), (D, D), (D, D), (D, 4 * D), (4 * D, D))
    q, k, v, o, w1, w2 = (np.random.randn(*shape) * 0.1 for shape in shapes)
    x = np.random.randn(T, D)

    h = layer_norm(x)
    weights = np.exp((h @ q) @ (h @ k).T / sqrt(D))
    y = x + weights / weights.sum(-1, keepdims=True) @ (h @ v) @ o
    y = y + np.maximum(layer_norm(y) @ w1, 0) @ w2

    config = Model(
        depth=1,
        width=D,
        heads=1,
        norm="layernorm_plain",
        activation="relu",
        bias=False,
        attention="plain",
        softmax="plain",
        init="lesson",
    )
    block = new_block(config, 0)
    block.attn.body = SeesAll(config)
    block.double()
    with torch.no_grad():
        block.attn.body.wqkv.weight.copy_(torch.tensor(np.concatenate([q.T, k.T, v.T])))
        block.attn.body.wo.weight.copy_(torch.tensor(o.T))
        block.mlp.body.w1.weight.copy_(torch.tensor(w1.T))
        block.mlp.body.w2.weight.copy_(torch.tensor(w2.T))
        ours = block(torch.tensor(x)[None])[0].numpy()

    np.testing.assert_allclose(ours, y, rtol=1e-10)
    assert np.linalg.norm(x, axis=-1).mean() == pytest.approx(7.9262, abs=5e-5)
    assert np.linalg.norm(ours, axis=-1).mean() == pytest.approx(10.4628, abs=5e-5)


class LessonNorm(nn.Module):
    """Lesson 2's class: g (x - mean) / (std + eps) + b, eps 1e-6."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.gamma * (x - mean) / (std + 1e-6) + self.beta


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_lesson_2s_block_is_that_of_torchs_own_parts(placement):
    """Its norm in a Pre-LN and a Post-LN block of nn.MultiheadAttention and two nn.Linear."""
    torch.manual_seed(0)
    config = Model(
        depth=1,
        width=16,
        heads=4,
        norm="layernorm_std",
        eps=1e-6,
        activation="relu",
        placement=placement,
        init="lesson",
    )
    block = new_block(config, 0).double()
    theirs = nn.MultiheadAttention(16, 4, batch_first=True).double()
    n1, n2 = LessonNorm(16).double(), LessonNorm(16).double()
    body, mlp = block.attn.body, block.mlp.body
    with torch.no_grad():
        for p in block.parameters():
            p.copy_(torch.randn_like(p) * 0.1)
        theirs.in_proj_weight.copy_(body.wqkv.weight), theirs.in_proj_bias.copy_(body.wqkv.bias)
        theirs.out_proj.load_state_dict(body.wo.state_dict())
        where = "before" if placement == "pre" else "after"
        for norm, half in ((n1, block.attn), (n2, block.mlp)):
            ours = getattr(half, where)
            norm.gamma.copy_(ours.weight), norm.beta.copy_(ours.bias)
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)

    def attention(h: Tensor) -> Tensor:
        return theirs(h, h, h, attn_mask=later, need_weights=False)[0]

    def feed_forward(h: Tensor) -> Tensor:
        return mlp.w2(torch.relu(mlp.w1(h)))

    if placement == "pre":
        y = x + attention(n1(x))
        y = y + feed_forward(n2(y))
    else:
        y = n1(x + attention(x))
        y = n2(y + feed_forward(y))
    torch.testing.assert_close(block(x), y)
