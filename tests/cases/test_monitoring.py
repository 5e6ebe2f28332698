"""A11: monitoring never crashes on an op, and never changes what is trained."""

from functools import cache
from itertools import product
from typing import get_args

import pytest
import torch
from torch import Tensor

from lnexp.config.schema import Data, Measure, Model, RunConfig, Train
from lnexp.data import Corpus, load
from lnexp.measure.forward import ForwardProbe
from lnexp.model import gpt
from lnexp.model.branches import Branch
from lnexp.model.catalog import PLACEMENTS
from lnexp.train.loop import train
from lnexp.train.state import set_up

LEVELS = get_args(Measure.model_fields["level"].annotation)
TEXT = Data(source="markov", length=3000)


@cache
def corpus() -> Corpus:
    return load(TEXT)


def trained(level: str, model: dict, steps: int = 5) -> tuple[list[float], list[Tensor]]:
    """Losses and end weights; whatever was attached to the model is gone again."""
    size = {"depth": 2, "width": 16, "heads": 2, "context": 12}
    state = set_up(
        RunConfig(
            data=TEXT,
            model=Model(**size | model),
            train=Train(steps=steps, batch_size=4, lr=1e-2),
            measure=Measure(level=level, eval_every=2),
        ),
        corpus(),
        "cpu",
    )
    rows = list(train(state))
    assert (level != "full") or all(r.stream_grad_rms is not None for r in rows[0].layers[1:2])
    assert not any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
        for m in state.model.modules()
    )
    return [row.step.loss for row in rows], [p.detach() for p in state.model.parameters()]


def same_at_every_level(**model) -> None:
    (losses, weights), *others = (trained(level, model) for level in LEVELS)
    for other_losses, other_weights in others:
        assert other_losses == losses  # bit for bit
        assert all(map(torch.equal, other_weights, weights))


def on_offer() -> list[tuple[str, object]]:
    """Each choice and each switch of the model."""
    found: list[tuple[str, object]] = []
    for key, field in Model.model_fields.items():
        choices = (True, False) if field.annotation is bool else get_args(field.annotation)
        found += [(key, choice) for choice in choices if isinstance(choice, str | bool)]
    return found


@pytest.mark.parametrize("key, choice", on_offer())
def test_each_choice_of_the_model_trains_alike_watched_or_not(key, choice):
    needs = {"attention": "plain"} if key == "softmax" else {}
    same_at_every_level(**{key: choice}, **needs)


def test_the_choices_are_all_that_the_model_has():
    for key, known in (
        ("placement", PLACEMENTS),
        ("activation", gpt.ACTIVATION_FUNCTIONS),
        ("softmax", gpt.SOFTMAXES),
    ):
        assert {choice for name, choice in on_offer() if name == key} == set(known)


@pytest.mark.parametrize("placement, residual", list(product(PLACEMENTS, [True, False])))
def test_ops_that_work_in_place_may_be_watched(placement, residual, monkeypatch):
    """What full backward hooks crash on: an output that is changed after the hook saw it."""

    def forward(self: Branch, h_BTD: Tensor) -> Tensor:
        y_BTD = self.inside(self.body(self.before(h_BTD)))
        return self.after(y_BTD.add_(h_BTD) if self.residual else y_BTD.mul_(1))

    monkeypatch.setitem(gpt.ACTIVATION_FUNCTIONS, "relu", torch.relu_)
    monkeypatch.setattr(Branch, "forward", forward)
    same_at_every_level(placement=placement, residual=residual, activation="relu")


def test_a_step_that_raises_leaves_no_hook_behind(monkeypatch):
    model = gpt.GPT(Model(depth=2, width=16, heads=2, context=12), 5)
    probe = ForwardProbe(model, "layernorm", 1e-5, sample=1)
    monkeypatch.setattr(gpt.MLP, "forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), probe.listening():
        model(torch.zeros(1, 4, dtype=torch.long))
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())
    assert not any("forward" in vars(m) for m in model.modules())
