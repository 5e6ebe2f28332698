"""A10: whatever the module and the phase, one origin; where anomaly mode errs or says nothing."""

import math

import pytest
import torch
from torch import Tensor, nn

from tests.cases.trained import events, hooked, nonfinite, origin, records, state_of

PLACES = [
    "embed", "blocks.0.attn.before", "blocks.1.attn.body.wqkv", "blocks.1.attn.body",
    "blocks.1.mlp.body.w1", "blocks.1.mlp.body", "blocks.2.mlp", "norm", "head",
]  # fmt: skip


def one_element(value: float):
    """The value is made here: by an operation, out of clean numbers."""

    def change(y: Tensor) -> Tensor:
        return y.index_fill(1, torch.tensor([3]), value)

    return change


@pytest.mark.parametrize("kind", ["inf", "nan"])
@pytest.mark.parametrize("place", PLACES)
def test_what_a_module_puts_out_has_one_origin_there_and_keeps_its_kind(place, kind):
    state = state_of()
    target = state.model.get_submodule(place)
    with hooked(target, one_element(float(kind)), lambda: state.steps_done == 1):
        rows = records(state)
    born = origin(rows)
    assert (born.step, born.phase, born.kind, born.module) == (1, "forward", kind, place)
    assert all(e.role in ("origin", "propagated") for e in nonfinite(rows))
    assert not nonfinite(records(state_of()))  # again in this process, without the fault


class Backward(torch.autograd.Function):
    """Nothing in forward; in backward the gradient times a factor."""

    @staticmethod
    def forward(ctx, y, factor):
        ctx.factor = factor
        return y.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


@pytest.mark.parametrize("kind", ["inf", "nan"])
@pytest.mark.parametrize("place", PLACES)
def test_a_gradient_that_goes_bad_has_one_origin_there_and_a_finite_loss(place, kind):
    state = state_of()
    target = state.model.get_submodule(place)
    with hooked(target, lambda y: Backward.apply(y, float(kind)), lambda: state.steps_done == 1):
        rows = records(state)
    born = origin(rows)
    assert (born.step, born.phase, born.kind, born.module) == (1, "backward", kind, place)
    assert math.isfinite(rows[1].step.loss) and len(nonfinite(rows)) == 1


class Pair(nn.Module):
    """Two outputs, as an LSTM has them."""

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        return h, h.log()


class Second(nn.Module):
    """Goes on with the second of two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    def forward(self, h: Tensor) -> Tensor:
        return self.pair(h)[1]


class Written(nn.Module):
    """An equation in one line."""

    def __init__(self, equation) -> None:
        super().__init__()
        self.equation = equation

    def forward(self, h: Tensor) -> Tensor:
        return self.equation(h)


SILENT = [
    # Anomaly mode says nothing: a NaN out of forward, an Inf out of backward.
    (Written(lambda h: (h * 0 - 1).log()), "forward", "nan", "blocks.1.mlp.body", "aten.log"),
    (Second(), "forward", "nan", "blocks.1.mlp.body.pair", "aten.log"),
    (Written(lambda h: (h * 0).sqrt()), "backward", "", "blocks.1.mlp.body", "SqrtBackward0"),
    # It names "SqrtBackward0", one of two.
    (
        Written(lambda h: ((h * 0 + 2) - 2).sqrt().sqrt()),
        "backward",
        "",
        "blocks.1.mlp.body",
        "SqrtBackward0",
    ),
    # An Inf that becomes finite again: the loss never shows it, the gradient does.
    (
        Written(lambda h: 1 / (1 / (h * 0)).tanh()),
        "forward",
        "inf",
        "blocks.1.mlp.body",
        "aten.reciprocal",
    ),
]


@pytest.mark.parametrize("body, phase, kind, module, op", SILENT)
def test_where_anomaly_mode_says_nothing_or_half_of_it(body, phase, kind, module, op):
    state = state_of()
    if kind != "nan":  # of a positive number, so that only the root's own derivative is at fault
        state.model.blocks[1].mlp.before = nn.Identity()
    state.model.blocks[1].mlp.body = body
    born = origin(records(state))
    assert (born.phase, born.module) == (phase, module)
    assert born.op.startswith(op) and born.kind == (kind or born.kind)


def test_an_exception_in_a_step_leaves_no_hook_and_the_next_run_is_clean():
    state = state_of(measure={"level": "full"})

    def fail(y: Tensor) -> Tensor:
        raise KeyError("no such letter")

    with hooked(state.model.blocks[1].mlp.body, fail, lambda: state.steps_done == 1):
        with pytest.raises(KeyError):
            records(state)
    assert not any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in state.model.modules()
    )
    assert not nonfinite(records(state_of(measure={"level": "full"})))


@pytest.mark.parametrize("level", ["off", "light", "full"])
@pytest.mark.parametrize("every", [1, 3])
def test_the_same_origin_is_found_whatever_is_measured(level, every):
    state = state_of(measure={"level": level, "every": every})
    with hooked(
        state.model.blocks[1].mlp.body, one_element(math.inf), lambda: state.steps_done == 2
    ):
        born = origin(rows := records(state))
    assert (born.step, born.module, born.kind) == (2, "blocks.1.mlp.body", "inf")
    assert len(events(rows, role="origin")) == 1
