"""The network against its equations.

Shapes: B batch, T time, D width, V vocabulary.
"""

from itertools import product
from math import log

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lnexp.config.schema import Model
from lnexp.measure.forward import ForwardProbe
from lnexp.model.branches import Branch
from lnexp.model.catalog import NORMS, PLACEMENTS, Terms
from lnexp.model.check import on_meta
from lnexp.model.gpt import GPT
from lnexp.model.init import build
from tests.measure.readings import readings
from tests.model.equations import EQUATIONS, NO_SKIP, network_np

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
    [
        *product(NO_SKIP, [True, False], ["sdpa", "plain"], [0.0, 0.2]),
        *product([p for p in PLACEMENTS if p not in NO_SKIP], [True], ["sdpa"], [0.2]),
    ],
)
def test_a_later_letter_never_changes_an_earlier_logit(placement, residual, attention, dropout):
    config = Model(
        **SMALL, placement=placement, residual=residual, attention=attention, dropout=dropout
    )
    model = moved(build(config, VOCABULARY, 0)).train()
    x_BT = ids()
    changed_BT = x_BT.clone()
    changed_BT[:, 7:] = (changed_BT[:, 7:] + 1) % VOCABULARY

    def logits(batch_BT):
        torch.manual_seed(5)  # the same dropout masks
        return model(batch_BT)

    before, after = logits(x_BT), logits(changed_BT)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("placement, norm", list(product(PLACEMENTS, NORMS)))
def test_no_norm_but_batchnorm_lets_a_later_letter_reach_an_earlier_logit(placement, norm):
    config = Model(**SMALL, placement=placement, norm=norm, qk_norm=True, init="xavier")
    x_BT = ids()
    changed_BT = x_BT.clone()
    changed_BT[:, 7:] = (changed_BT[:, 7:] + 1) % VOCABULARY

    def logits(batch_BT: torch.Tensor, training: bool) -> torch.Tensor:
        model = moved(build(config, VOCABULARY, 0))  # anew: a forward moves running statistics
        return model.train(training)(batch_BT)

    for training in (True, False):
        before, after = logits(x_BT, training), logits(changed_BT, training)
        same = torch.equal(before[:, :7], after[:, :7])
        assert same == (NORMS[norm].causal or not training)
    assert NORMS[norm].causal == (norm != "batchnorm")


def moved(model: GPT) -> GPT:
    """Off the start: rezero's gains leave 0."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(".gain"):
                p.fill_(0.7)
    return model


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_causality_by_gradient(placement):
    model = moved(build(Model(**SMALL, placement=placement), VOCABULARY, 0))
    h_BTD = model.embed(ids()).detach().requires_grad_()
    out = model.network(h_BTD, model.blocks, model.norm)
    g = torch.Generator().manual_seed(1)  # a plain sum of a normalised vector is always 0
    (out[:, 4] * torch.randn(16, generator=g)).sum().backward()
    assert h_BTD.grad is not None
    assert not h_BTD.grad[:, 5:].any() and h_BTD.grad[:, 4].any()


@pytest.mark.parametrize(
    "placement, residual, attention, norm",
    [
        *product(NO_SKIP, [True, False], ["sdpa", "plain"], ["layernorm", "rmsnorm"]),
        *product([p for p in PLACEMENTS if p not in NO_SKIP], [True], ["sdpa"], ["layernorm"]),
        *product(["pre", "post", "residual_dual"], [True], ["sdpa"], [n for n in NORMS]),
    ],
)
def test_the_forward_is_the_placements_equation(placement, residual, attention, norm):
    depth = 2 if placement in NO_SKIP else 5  # so that mix has two blocks of its first kind
    config = Model(
        **{**SMALL, "depth": depth},
        placement=placement,
        residual=residual,
        attention=attention,
        norm=norm,
        init="torch",
        eps=1e-3,
    )
    model = moved(build(config, VOCABULARY, 0)).double().requires_grad_(False)
    logits, _ = network_np(model, config, ids().numpy())
    np.testing.assert_allclose(model(ids()).numpy(), logits, rtol=1e-9, atol=1e-11)


def test_every_placement_has_its_equation():
    assert set(EQUATIONS) == set(PLACEMENTS)


@pytest.mark.parametrize("placement", [p for p in PLACEMENTS if p not in NO_SKIP])
def test_readings_are_those_of_the_equation(placement):
    config = Model(**{**SMALL, "depth": 5}, placement=placement, init="torch", eps=1e-3)
    model = moved(build(config, VOCABULARY, 0)).double()
    probe = ForwardProbe(model, config.norm, config.eps, sample=2)
    with probe.listening():
        model(ids()).sum().backward()
    _, steps = network_np(model.requires_grad_(False), config, ids().numpy())
    h = model.embed(ids()).numpy()

    def rms(x: np.ndarray) -> float:
        return float(np.sqrt((x[:2] ** 2).mean()))

    for i, (entering, added, out) in enumerate(steps):
        read = readings(probe)[(i // 2, ("attn", "mlp")[i % 2])]
        assert float(read["act_rms"]) == pytest.approx(rms(out))
        assert float(read["branch_to_stream"]) == pytest.approx(rms(added) / rms(h))
        assert ("norm_input_rms" in read) == (entering is not None)
        if entering is not None:
            assert float(read["norm_input_rms"]) == pytest.approx(rms(entering))
        h = out


def test_an_absent_skip_is_left_out_so_an_infinite_input_stays_out_of_the_sum():
    class Zero(torch.nn.Module):
        def forward(self, x):
            return torch.zeros_like(x)

    branch = Branch(Zero(), Terms(), residual=False, new_norm=torch.nn.Identity)
    assert not branch(torch.full((1, 1, 4), float("inf"))).isnan().any()


# Norms of a network of N blocks.
COUNTS = {
    "pre": lambda N: 2 * N + 1,
    "post": lambda N: 2 * N,
    "none": lambda N: 0,
    "sandwich": lambda N: 4 * N + 1,
    "output": lambda N: 2 * N + 1,
    "deepnorm": lambda N: 2 * N,
    "admin": lambda N: 2 * N,
    "keel": lambda N: 4 * N - 1,
    "rezero": lambda N: 0,
    "tfixup": lambda N: 0,
    "lns": lambda N: 2 * N + 1,
    "mix": lambda N: 2 * N + 1,
    "b2t": lambda N: 2 * N,
    "residual_dual": lambda N: 2 * N + 1,
}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("N", [1, 2, 9])
def test_eps_reaches_every_norm_the_final_one_and_qk_norm_included(placement, N):
    config = Model(**{**SMALL, "depth": N}, placement=placement, eps=0.123, qk_norm=True)
    norms = [m for m in on_meta(config, VOCABULARY).modules() if hasattr(m, "eps")]
    assert len(norms) == COUNTS[placement](N) + 2 * N
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
