"""lnexp.autopsy: one saved batch, one call."""

import copy
import json
import math

import pytest
import torch
from torch import nn

import lnexp
from lnexp.messages import UserError
from tests.attach.loops import (
    batches,
    cross_entropy,
    encoder,
    hooks_of,
    origin,
    rows,
    separate,
    trained,
)


def state(model: nn.Module) -> list[torch.Tensor]:
    return [t.clone() for t in model.state_dict().values()]


def test_it_prints_where_the_first_bad_value_is_born_and_leaves_all_as_it_was(capsys):
    model, (ids,) = separate(4), batches(1)
    cross_entropy(model, ids).backward()
    before, grads = state(model), [p.grad for p in model.parameters()]
    values, stream = [g.clone() for g in grads], torch.get_rng_state()
    model.encoder[2].attn["v"].weight.register_hook(lambda g: g)  # a hook of the user's stays
    with torch.no_grad():
        kept = model.encoder[2].norm2.weight.clone()
        model.encoder[2].norm2.weight.fill_(3e38)
    found = lnexp.autopsy(model, lambda: cross_entropy(model, ids))
    with torch.no_grad():
        model.encoder[2].norm2.weight.copy_(kept)
    text = capsys.readouterr().out
    assert found.origin is not None and found.origin.phase == "forward"
    assert found.origin.module.startswith("encoder.2.")
    assert text.splitlines()[0] == (
        f"Inf was born in the forward pass, in {found.origin.module} "
        f"({found.origin.module_kind}), by {found.origin.op}."
    )
    assert "finite in fp64: the number format failed" in text and found.nature == "numerical"
    assert all(map(torch.equal, state(model), before))
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
    assert all(map(torch.equal, grads, values)) and torch.equal(torch.get_rng_state(), stream)
    assert hooks_of(model) == 1


def test_a_healthy_batch_is_said_to_be_one(capsys):
    model, (ids,) = encoder(2), batches(1)
    found = lnexp.autopsy(model, lambda: cross_entropy(model, ids))
    assert found.origin is None
    assert capsys.readouterr().out.startswith("Every value is finite: loss ")


def test_with_an_optimizer_its_update_is_examined_on_a_copy(capsys):
    model, (ids,) = encoder(2, dropout=0.0), batches(1)
    optimizer = torch.optim.AdamW(model.parameters(), eps=0.0)
    before, moments = state(model), copy.deepcopy(optimizer.state_dict())
    found = lnexp.autopsy(model, lambda: cross_entropy(model, ids), optimizer)
    assert found.origin is not None and found.origin.phase == "optimizer"
    assert "in the optimizer's update, in embed.weight" in capsys.readouterr().out
    assert all(map(torch.equal, state(model), before))
    assert optimizer.state_dict() == moments
    assert all(p.grad is None for p in model.parameters())


def test_a_division_by_zero_is_mathematical_and_an_input_that_was_bad_is_said_to_be():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    x = torch.ones(1, 2)
    found = lnexp.autopsy(model, lambda: (model(x).sum() * 0 - 1).log())
    assert found.nature == "mathematical" and found.origin.phase == "loss"
    found = lnexp.autopsy(model, lambda: model(x * math.nan).sum())
    assert found.origin.op in ("aten.mul.Tensor", "(given)")


def test_autocast_is_left_for_the_fp64_replay():
    model, (ids,) = separate(2), batches(1)
    with torch.no_grad():
        model.encoder[1].norm1.weight.fill_(1e30)

    def loss():
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model, ids)

    found = lnexp.autopsy(model, loss)
    assert found.origin is not None and found.shadow["float64"].finite
    assert not torch.is_autocast_enabled("cpu")


def test_what_the_model_itself_casts_to_fp32_is_fp64_in_the_replay():
    """As transformers' models write the softmax of their scores."""

    class Scores(nn.Module):
        def forward(self, x):
            return (x @ x.T).softmax(-1, dtype=torch.float32).to(x.dtype)

    model = nn.Sequential(nn.Linear(2, 2), Scores())
    found = lnexp.autopsy(model, lambda: model(torch.ones(3, 2) * 1e25).float().sum())
    assert found.origin is not None and (found.origin.module, found.origin.kind) == ("1", "inf")
    assert found.nature == "numerical" and found.shadow["float64"].finite


def test_a_loss_that_insists_on_fp32_leaves_the_format_question_open():
    model = nn.Linear(2, 2)
    other = torch.ones(2, 2)
    found = lnexp.autopsy(model, lambda: (model(torch.ones(1, 2)) @ other).sum() * math.inf)
    assert found.nature == "not known" and found.shadow == {}


@pytest.mark.parametrize("level", ["light", "full"])
def test_a_nan_inside_a_compiled_model_is_located(level, tmp_path):
    class Sick(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("share", torch.zeros(()))

        def forward(self, x):
            return x + (1 - 2 * self.share).log()

    model = separate(3)
    model.encoder[1].mlp.append(sick := Sick())
    compiled = torch.compile(model, backend="aot_eager")
    trained(
        compiled, tmp_path / "run", level=level, at=lambda step: sick.share.fill_(float(step == 2))
    )
    found = origin(tmp_path / "run")
    assert (found["module"], found["op"]) == ("encoder.1.mlp.3", "aten.log.default")
    layers = rows(tmp_path / "run", "layers")  # hooks would cut what is compiled into other pieces
    assert layers and not any(row["act_rms"] for row in layers)
    assert json.loads((tmp_path / "run" / "status.json").read_text())["first_bad_step"] == 2


def test_a_closure_that_returns_no_loss_is_told_what_to_write():
    model = nn.Linear(2, 2)
    with pytest.raises(UserError, match="the replay gave NoneType; write one that computes"):
        lnexp.autopsy(model, lambda: None)
    assert hooks_of(model) == 0
