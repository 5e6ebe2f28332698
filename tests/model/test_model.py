"""The network against its equations.

Shapes: B batch, T time, D width, V vocabulary.
"""

from itertools import product
from math import log, sqrt

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lnexp.config import Model
from lnexp.model.gpt import GPT, Attention
from lnexp.model.init import build
from lnexp.model.norms import NORMS, build_norm
from lnexp.model.placements import PLACEMENTS, Branch

VOCABULARY = 23
SMALL = {"depth": 2, "width": 16, "heads": 2, "context": 12}


def ids(seed: int = 0, batch: int = 3, length: int = 12) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (batch, length), generator=g)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("depth", [2, 24])
def test_the_first_loss_at_gpt2_init_is_ln_v(placement, depth):
    model = build(Model(depth=depth, width=32, placement=placement), 103, seed=0)
    g = torch.Generator().manual_seed(0)
    x_BT, y_BT = torch.randint(103, (2, 8, 64), generator=g)
    loss = F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
    assert loss.item() == pytest.approx(log(103), abs=0.1)


@pytest.mark.parametrize(
    "placement, residual, attention, dropout",
    list(product(PLACEMENTS, [True, False], ["sdpa", "plain"], [0.0, 0.2])),
)
def test_a_later_letter_never_changes_an_earlier_logit(placement, residual, attention, dropout):
    config = Model(
        **SMALL, placement=placement, residual=residual, attention=attention, dropout=dropout
    )
    model = build(config, VOCABULARY, 0).train()
    x_BT = ids()
    changed_BT = x_BT.clone()
    changed_BT[:, 7:] = (changed_BT[:, 7:] + 1) % VOCABULARY

    def logits(batch_BT):
        torch.manual_seed(5)  # the same dropout masks
        return model(batch_BT)

    before, after = logits(x_BT), logits(changed_BT)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_causality_by_gradient(placement):
    model = build(Model(**SMALL, placement=placement), VOCABULARY, 0)
    h_BTD = model.embed(ids()).detach().requires_grad_()
    out = h_BTD
    for block in model.blocks:
        out = block(out)
    out[:, 4].sum().backward()
    assert h_BTD.grad is not None
    assert not h_BTD.grad[:, 5:].any() and h_BTD.grad[:, 4].any()


def softmax_np(s: np.ndarray) -> np.ndarray:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def norm_np(kind: str, x: np.ndarray, eps: float) -> np.ndarray:
    if kind == "rmsnorm":
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def attention_np(a: Attention, x: np.ndarray, heads: int) -> np.ndarray:
    w, b = a.wqkv.weight.numpy(), a.wqkv.bias.numpy()
    D = x.shape[-1]
    q, k, v = (x @ w[i * D : (i + 1) * D].T + b[i * D : (i + 1) * D] for i in range(3))
    y = np.zeros_like(x)
    K = D // heads
    for batch in range(x.shape[0]):
        for h in range(heads):
            s = slice(h * K, (h + 1) * K)
            for t in range(x.shape[1]):  # written as the definition: position by position
                scores = k[batch, : t + 1, s] @ q[batch, t, s] / sqrt(K)
                y[batch, t, s] = softmax_np(scores) @ v[batch, : t + 1, s]
    return y @ a.wo.weight.numpy().T + a.wo.bias.numpy()


def gelu_np(x: np.ndarray) -> np.ndarray:
    from math import erf

    return 0.5 * x * (1 + np.vectorize(erf)(x / sqrt(2)))


def mlp_np(m, x: np.ndarray) -> np.ndarray:
    hidden = gelu_np(x @ m.w1.weight.numpy().T + m.w1.bias.numpy())
    return hidden @ m.w2.weight.numpy().T + m.w2.bias.numpy()


EQUATIONS = {  # placement -> (h, F, norm) -> next h, written from science 3
    "pre": lambda h, F, n: h + F(n(h)),
    "post": lambda h, F, n: n(h + F(h)),
    "none": lambda h, F, n: h + F(h),
    "sandwich": lambda h, F, n: h + n(F(n(h))),
    "output": lambda h, F, n: h + n(F(h)),
}
NO_SKIP = {
    "pre": lambda h, F, n: F(n(h)),
    "post": lambda h, F, n: n(F(h)),
    "none": lambda h, F, n: F(h),
    "sandwich": lambda h, F, n: n(F(n(h))),
    "output": lambda h, F, n: n(F(h)),
}
FINAL = {"pre", "sandwich", "output"}


@pytest.mark.parametrize(
    "placement, residual, attention, norm",
    list(product(PLACEMENTS, [True, False], ["sdpa", "plain"], ["layernorm", "rmsnorm"])),
)
def test_the_forward_is_the_placements_equation(placement, residual, attention, norm):
    config = Model(
        **SMALL,
        placement=placement,
        residual=residual,
        attention=attention,
        norm=norm,
        init="torch",
        eps=1e-3,
    )
    model = build(config, VOCABULARY, 0).double().requires_grad_(False)
    x_BT = ids()
    equation = (EQUATIONS if residual else NO_SKIP)[placement]

    def n(x):
        return norm_np(norm, x, 1e-3)

    h = model.embed.token.weight.numpy()[x_BT.numpy()] + model.embed.position.weight.numpy()[:12]
    for block in model.blocks:
        h = equation(h, lambda x, b=block: attention_np(b.attn.body, x, 2), n)
        h = equation(h, lambda x, b=block: mlp_np(b.mlp.body, x), n)
    logits = (n(h) if placement in FINAL else h) @ model.head.weight.numpy().T
    np.testing.assert_allclose(model(x_BT).numpy(), logits, rtol=1e-9, atol=1e-11)


def test_an_absent_skip_is_left_out_so_an_infinite_input_stays_out_of_the_sum():
    class Zero(torch.nn.Module):
        def forward(self, x):
            return torch.zeros_like(x)

    branch = Branch(Zero(), PLACEMENTS["none"], residual=False, new_norm=torch.nn.Identity)
    assert not branch(torch.full((1, 1, 4), float("inf"))).isnan().any()


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("eps", [1e-5, 1e-1])
def test_a_norm_is_its_equation_with_gain_and_bias(name, eps):
    norm = build_norm(name, 8, eps, affine=True).double()
    g = torch.Generator().manual_seed(0)
    x = torch.randn(5, 8, generator=g, dtype=torch.float64) * 3 + 1
    gain, shift = torch.randn(2, 8, generator=g, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.copy_(gain)
        if getattr(norm, "bias", None) is not None:
            norm.bias.copy_(shift)
    expected = norm_np(name, x.numpy(), eps) * gain.numpy()
    if name != "rmsnorm":
        expected = expected + shift.numpy()
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", NORMS)
def test_without_affine_a_norm_has_no_parameters(name):
    norm = build_norm(name, 8, 1e-5, affine=False)
    assert not list(norm.parameters()) and norm(torch.randn(2, 8)).shape == (2, 8)


@pytest.mark.parametrize("placement", [p for p in PLACEMENTS if p != "none"])
def test_eps_reaches_every_norm_the_final_one_and_qk_norm_included(placement):
    model = GPT(Model(**SMALL, placement=placement, eps=0.123, qk_norm=True), VOCABULARY)
    norms = [m for m in model.modules() if hasattr(m, "eps")]
    per_block = (2 if placement == "sandwich" else 1) * 2 + 2
    assert len(norms) == 2 * per_block + (placement in FINAL)
    assert {m.eps for m in norms} == {0.123}


def test_sdpa_and_plain_attention_agree():
    a = build(Model(**SMALL, attention="sdpa", init="torch"), VOCABULARY, 0).double()
    b = build(Model(**SMALL, attention="plain", init="torch"), VOCABULARY, 0).double()
    torch.testing.assert_close(a(ids()), b(ids()))


def test_the_lessons_softmax_overflows_once_a_score_passes_88():
    from lnexp.model.gpt import softmax_plain, softmax_stable

    fine, beyond = torch.tensor([1.0, 87.0]), torch.tensor([1.0, 89.0])
    torch.testing.assert_close(softmax_plain(fine), softmax_stable(fine))
    assert softmax_plain(beyond).isnan().any() and softmax_stable(beyond).isfinite().all()


def test_sequences_shorter_than_the_context_are_read():
    model = build(Model(**SMALL), VOCABULARY, 0)
    torch.testing.assert_close(model(ids())[:, :5], model(ids()[:, :5]))
