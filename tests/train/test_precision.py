"""Number formats and loss scaling: figures are unscaled, skips are no failures."""

import math

import pytest
import torch

from lnexp.config.schema import Data, Measure, Model, RunConfig, Train
from lnexp.data import load
from lnexp.measure.nonfinite import MOST_SKIPS
from lnexp.runs.environment import observe
from lnexp.train.loop import train
from lnexp.train.precision import FORMATS, precision_problem
from lnexp.train.state import State, set_up

CORPUS = load(Data(source="markov", length=5000))


def state_of(model=None, measure=None, **settings) -> State:
    config = RunConfig(
        data=Data(source="markov", length=5000),
        model=Model(**{"depth": 2, "width": 32, "heads": 2, "context": 16, **(model or {})}),
        train=Train(**{"steps": 5, "batch_size": 4, **settings}),
        measure=Measure(**(measure or {})),
    )
    return set_up(config, CORPUS, "cpu")


def records(**settings):
    return list(train(state_of(**settings)))


@pytest.mark.parametrize("precision", FORMATS)
def test_every_precision_trains_and_its_first_figures_are_those_of_fp64(precision):
    wide, narrow = records(precision="fp64")[0], records(precision=precision)[0]
    assert precision_problem(precision, "cpu") is None
    assert narrow.step.loss == pytest.approx(wide.step.loss, rel=0.01)
    assert narrow.step.grad_norm == pytest.approx(wide.step.grad_norm, rel=0.05)
    by_place = {(r.layer, r.part): r.grad_norm for r in wide.layers}
    for row in narrow.layers:
        assert row.grad_norm == pytest.approx(by_place[row.layer, row.part], rel=0.1)


@pytest.mark.parametrize("scale", ["none", 256.0, 4096.0])
@pytest.mark.parametrize("precision", ["fp16", "fp16-mixed"])
def test_figures_are_recorded_unscaled_and_before_clipping(precision, scale):
    rows = records(precision=precision, loss_scale=scale, clip=0.5)
    wide = records(precision="fp32", clip=0.5)
    assert rows[0].step.grad_norm == pytest.approx(wide[0].step.grad_norm, rel=0.05)
    assert rows[0].step.grad_norm > 0.5
    assert rows[0].step.clip_factor == pytest.approx(0.5 / rows[0].step.grad_norm, rel=1e-3)
    assert rows[0].step.loss_scale == (None if scale == "none" else scale)


def test_a_fixed_scale_lifts_fp16s_second_moments_out_of_underflow():
    def vanished(scale) -> int:
        state = state_of(precision="fp16", loss_scale=scale, model={"init": "gpt2"}, steps=2)
        list(train(state))
        moments = [s["exp_avg_sq"] for s in state.optimizer.state.values()]
        return sum(int((v == 0).sum()) for v in moments)

    assert vanished(4096.0) < 0.5 * vanished("none")


def test_a_scale_that_is_a_power_of_two_changes_nothing_in_fp32_master_weights_but_underflow():
    one = [r.step.loss for r in records(precision="bf16-mixed")]
    assert one == [r.step.loss for r in records(precision="bf16-mixed", loss_scale=1024.0)]


def overflowing(state: State, steps: set[int]) -> None:
    """In these steps one gradient element is Inf."""
    weight = state.model.blocks[0].mlp.body.w1.weight

    def poison(gradient):
        if state.steps_done in steps:
            gradient = gradient.clone()
            gradient[1, 2] = math.inf
        return gradient

    weight.register_hook(poison)


def test_a_step_that_dynamic_scaling_skips_changes_no_bit_and_is_no_failure():
    state = state_of(precision="fp16-mixed", steps=5, lr=0.01)
    overflowing(state, {2})
    stream = train(state)
    rows = [next(stream), next(stream)]

    def snapshot():
        tensors = [p.detach().clone() for p in state.model.parameters()]
        for entry in state.optimizer.state.values():
            tensors += [t.clone() for t in entry.values()]
        return tensors

    before = snapshot()
    rows.append(next(stream))
    assert all(map(torch.equal, before, snapshot()))
    rows += list(stream)
    assert [r.step.skipped for r in rows] == [0, 0, 1, 0, 0]
    assert [r.step.loss_scale for r in rows] == [65536.0] * 3 + [32768.0] * 2
    assert rows[2].step.grad_norm == math.inf and rows[2].step.nonfinite_grads > 0
    assert [(e.kind, e.phase) for r in rows for e in r.events] == [("scaler_skip", "optimizer")]
    assert state.first_bad_step is None and len(rows) == 5


def test_a_documented_number_of_skips_in_a_row_ends_the_run_and_never_with_a_scale_of_0():
    state = state_of(precision="fp16-mixed", steps=100)
    overflowing(state, set(range(100)))
    rows = list(train(state))
    assert len(rows) == MOST_SKIPS and state.first_bad_step == MOST_SKIPS - 1
    assert all(r.step.loss_scale > 0 for r in rows)
    kinds = [e.kind for r in rows for e in r.events]
    assert kinds.count("skips_in_a_row") == 1
    (origin,) = [e for r in rows for e in r.events if e.role == "origin"]
    assert origin.phase == "backward" and origin.module.startswith("blocks.0.mlp.body.w1")


def test_a_nan_in_the_forward_is_not_what_dynamic_scaling_searches_for():
    state = state_of(precision="fp16-mixed", steps=20)
    state.model.blocks[1].mlp.body.register_forward_hook(
        lambda m, i, y: y * math.nan if state.steps_done == 10 else y
    )
    rows = list(train(state))
    (origin,) = [e for r in rows for e in r.events if e.role == "origin"]
    assert len(rows) == 11 and state.first_bad_step == 10
    assert (origin.phase, origin.module) == ("forward", "blocks.1.mlp.body")


def test_bf16_norm_gains_do_not_move_at_a_small_lr_and_fp32_master_weights_do():
    def moved(precision: str) -> set[float]:
        state = state_of(precision=precision, lr=1e-3, steps=20)
        list(train(state))
        return set(state.model.blocks[0].attn.before.weight.detach().float().tolist())

    assert moved("bf16") == {1.0} and len(moved("bf16-mixed")) > 1


@pytest.mark.parametrize(
    "precision, norm, matmul",
    [
        ("fp32", "float32", "float32"),
        ("fp16", "float16", "float16"),
        # CPU autocast does not lift LayerNorm to fp32: a norm of a branch stays narrow, and only
        # what reads the fp32 stream is wide.
        ("bf16-mixed", "bfloat16, float32", "bfloat16"),
        ("fp16-mixed", "float16, float32", "float16"),
    ],
)
def test_the_types_in_fact_used_are_read_off_a_forward(precision, norm, matmul):
    state = state_of(precision=precision, model={"placement": "output"})
    x, y = state.batches.draw()
    found = observe(state.model, x, y, state.format.forward(x.device))
    assert (found["norm"], found["matmul"]) == (norm, matmul)
    assert found["loss"] == ("float16" if precision == "fp16" else "float32")


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp16-mixed"])
def test_measuring_does_not_change_training_in_half_precision(precision):
    runs = [
        [r.step.loss for r in records(precision=precision, measure={"level": level})]
        for level in ("off", "light", "full")
    ]
    assert runs[0] == runs[1] == runs[2]


def large(module, inputs, y):
    return y * 0 + torch.linspace(-600, 600, 32).to(y)


def test_a_norm_that_turns_large_inputs_into_zeros_is_an_event():
    state = state_of(
        precision="fp16", model={"norm": "layernorm_plain"}, measure={"level": "full"}, steps=1
    )
    state.model.embed.register_forward_hook(large)
    events = [e for r in train(state) for e in r.events if e.kind == "zero_norm_output"]
    assert events and events[0].phase == "forward" and events[0].module == "blocks.0.attn.before"
    wide = state_of(model={"norm": "layernorm_plain"}, measure={"level": "full"}, steps=1)
    wide.model.embed.register_forward_hook(large)
    assert not [e for r in train(wide) for e in r.events if e.kind == "zero_norm_output"]


def test_fp16_blocks_whose_second_moments_underflow_are_named_with_their_share():
    state = state_of(precision="fp16", loss_scale=2.0**-8, steps=2, lr=1e-6)
    events = [e for r in train(state) for e in r.events if e.kind == "adam_underflow"]
    assert events and all(e.phase == "optimizer" for e in events)
    assert "blocks.0" in {e.module for e in events}
    assert "v = 0 and m != 0 in " in events[0].detail
