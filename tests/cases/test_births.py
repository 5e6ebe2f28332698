"""A1, A9, A10: a bad value is found where it was born: not later, not next door, not by alarm."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lnexp.model.catalog import NORMS
from lnexp.model.norms import build_norm
from tests.cases.trained import (
    BEFORE,
    PLACED,
    ROOTED,
    config,
    events,
    hooked,
    nonfinite,
    origin,
    records,
    state_of,
    told,
)

# ------------------------------------------------------- A1: the root of a zero variance


class EpsOutside(nn.Module):
    """x / (root(x) + eps) * g + b: what lnexp does not offer."""

    def __init__(self, root, width: int = 16) -> None:
        super().__init__()
        self.root, self.eps = root, 1e-5
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x / (self.root(x) + self.eps) * self.weight + self.bias


def of_variance(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True).sqrt()


def of_mean_square(x: Tensor) -> Tensor:
    return x.square().mean(-1, keepdim=True).sqrt()


def power(x: Tensor) -> Tensor:
    return x.square().mean(-1, keepdim=True) ** 0.5


# Root, the constant row at which its derivative is infinite, and the name of its gradient.
OUTSIDE = [
    (of_variance, 1.0, "SqrtBackward0"),
    (of_mean_square, 0.0, "SqrtBackward0"),
    (power, 0.0, "PowBackward0"),
]


def ones_and_upstream(norm: nn.Module, value: float = 1.0) -> Tensor:
    """The gradient of a 2 x 8 constant input under the upstream gradient 0 .. 7."""
    x = torch.full((2, 8), value, requires_grad=True)
    y = norm(x)
    assert bool(y.isfinite().all())
    y.backward(torch.arange(8.0).expand(2, 8))
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("norm", ROOTED)
@pytest.mark.parametrize("value", [1.0, 0.0, -3.0])
@pytest.mark.parametrize("affine", [True, False])
def test_every_norm_on_offer_has_a_finite_gradient_on_constant_rows(norm, value, affine):
    gradient = ones_and_upstream(build_norm(norm, 8, 1e-5, affine), value)
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("root, value, _", OUTSIDE)
def test_eps_outside_the_root_has_none(root, value, _):
    assert bool(ones_and_upstream(EpsOutside(root, 8), value).isnan().any())


@pytest.mark.parametrize("placement", BEFORE)
@pytest.mark.parametrize("root, value, op", OUTSIDE)
def test_a_root_at_zero_is_born_in_backward_in_its_own_norm(placement, root, value, op):
    state = state_of(model={"placement": placement})
    state.model.blocks[1].mlp.before = EpsOutside(root)
    with hooked(state.model.blocks[1].attn, lambda h: h * 0 + value, lambda: state.steps_done == 2):
        rows = records(state)
    born = origin(rows)
    assert (born.step, born.phase, born.module) == (2, "backward", "blocks.1.mlp.before")
    assert born.op.startswith(op) and len(nonfinite(rows)) == 1
    assert math.isfinite(rows[-1].step.loss) and rows[-1].step.skipped == 1


@pytest.mark.parametrize("norm", [n for n in NORMS if n not in ("layernorm_std", "scalenorm")])
@pytest.mark.parametrize("placement", PLACED)
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_eps_inside_the_root_has_no_event_wherever_the_norm_stands(norm, placement, value):
    state = state_of(model={"norm": norm, "placement": placement}, steps=2)
    with hooked(state.model.embed, lambda h: h * 0 + value):
        assert not nonfinite(records(state))


def test_a_zero_variance_is_explained_by_the_root(tmp_path):
    def constant_rows(state):
        state.model.blocks[1].mlp.before = EpsOutside(of_variance)
        state.model.blocks[1].attn.register_forward_hook(lambda m, i, h: h * 0 + 1)

    run = told(tmp_path / "run", config(), constant_rows)
    assert run.row["verdict"] == "nonfinite" and "nonfinite_origin" in run.causes
    assert "square root at 0" in run.explained.diagnosis


def test_a_norm_that_is_not_on_offer_is_refused_with_those_that_are(refused):
    (line,) = refused("model: {norm: layernorm_eps_outside}\n")
    assert all(norm in line for norm in NORMS)


# ------------------------------------------------------- A9: masks and scores


class Masked(nn.Module):
    """Causal attention whose mask is written in one of the ways that people do."""

    def __init__(self, attention: nn.Module, mask) -> None:
        super().__init__()
        self.wqkv, self.wo, self.heads = attention.wqkv, attention.wo, attention.heads
        self.split, self.mask, self.diagonal = attention.split, mask, 1

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.wqkv(x))
        T = x.shape[1]
        hidden = torch.ones(T, T, dtype=torch.bool).triu(self.diagonal)
        y = self.mask(q, k, v, hidden)
        return self.wo(y.transpose(1, 2).flatten(2))


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def filled(q, k, v, hidden):
    return scores(q, k).masked_fill(hidden, -math.inf).softmax(-1) @ v


def chosen(q, k, v, hidden):
    return torch.where(hidden, -math.inf, scores(q, k)).softmax(-1) @ v


def added(q, k, v, hidden):
    return (scores(q, k) + torch.full(hidden.shape, -math.inf).triu(1).to(q)).softmax(-1) @ v


def added_zero_or_inf(q, k, v, hidden):
    mask = torch.zeros(hidden.shape).masked_fill(hidden, -math.inf).to(q)
    return (mask + scores(q, k)).softmax(-1) @ v


def least_number(q, k, v, hidden):
    return (scores(q, k) + hidden.to(q) * torch.finfo(q.dtype).min).softmax(-1) @ v


def least_number_and_a_low_score(q, k, v, hidden):
    """In fp16 -65504 and a score below -16 are -Inf together."""
    return (scores(q, k) - 40 + hidden.to(q) * torch.finfo(q.dtype).min).softmax(-1) @ v


def written_out(q, k, v, hidden):
    weights = scores(q, k).masked_fill(hidden, -math.inf).exp()
    return weights / weights.sum(-1, keepdim=True) @ v


def fused_bool(q, k, v, hidden):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden)


def fused_float(q, k, v, hidden):
    mask = torch.zeros(hidden.shape).masked_fill(hidden, -math.inf).to(q)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


MASKS = [filled, chosen, added, added_zero_or_inf, least_number, least_number_and_a_low_score,
         written_out, fused_bool, fused_float]  # fmt: skip


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp16-mixed"])
def test_a_mask_put_there_on_purpose_makes_no_event_and_takes_no_blame(mask, precision):
    state = state_of(precision=precision)
    for block in state.model.blocks:
        block.attn.body = Masked(block.attn.body, mask)
    late = state.model.blocks[2].mlp.body
    with hooked(late, lambda y: y * math.inf, lambda: state.steps_done == 2):
        rows = records(state)
    assert not nonfinite(rows[:2])
    assert (origin(rows).module, origin(rows).step) == ("blocks.2.mlp.body", 2)


@pytest.mark.parametrize(
    "mask, op",
    [(filled, "_softmax"), (chosen, "_softmax"), (added_zero_or_inf, "_softmax"),
     (written_out, "div"), (fused_bool, None)],
)  # fmt: skip
def test_a_row_that_sees_nothing_is_born_in_its_attention_though_the_loss_is_finite(mask, op):
    """Row 0 is masked out in block 1 and left out of the loss; fused attention makes it 0."""
    state = state_of()
    attention = Masked(state.model.blocks[1].attn.body, mask)
    attention.diagonal = 0
    state.model.blocks[1].attn.body = attention
    state.model.blocks[2] = Unread()

    def without_first_row(model, x, y):
        loss = F.cross_entropy(model(x)[:, 1:].flatten(0, 1), y[:, 1:].flatten())
        return loss, loss

    state.objective = without_first_row  # type: ignore[method-assign]
    rows = records(state)
    if op is None:
        assert not nonfinite(rows) and len(rows) == 4
        return
    born = origin(rows)
    assert (born.phase, born.kind, born.module) == ("forward", "nan", "blocks.1.attn.body")
    assert op in born.op and math.isfinite(rows[0].step.loss)
    assert [e.phase for e in events(rows, role="propagated")] == ["backward"]


class Unread(nn.Module):
    """The first row goes no further."""

    def forward(self, h: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(h[:, :1]), h[:, 1:]], 1)


def scaled_last(q, k, v, hidden):
    return filled(q, k, v, hidden)


def scaled_first(q, k, v, hidden):
    scores = (q / 8) @ k.transpose(-2, -1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


@pytest.mark.parametrize("attend, fails", [(scaled_last, True), (scaled_first, False),
                                           (fused_bool, False)])  # fmt: skip
def test_a_product_of_q_and_k_beyond_fp16_is_inf_there_and_none_where_it_is_scaled_first(
    attend, fails
):
    """q = k = 40 at head width 64: 102400 is beyond 65504, its eighth is not."""
    state = state_of(model={"width": 64, "heads": 1}, precision="fp16", steps=1)

    def forty(q, k, v, hidden):
        return attend(q * 0 + 40, k * 0 + 40, v, hidden)

    state.model.blocks[1].attn.body = Masked(state.model.blocks[1].attn.body, forty)
    rows = records(state)
    if not fails:
        assert not nonfinite(rows)
        return
    born = origin(rows)
    assert (born.kind, born.module, born.op) == ("inf", "blocks.1.attn.body", "aten.bmm.default")
