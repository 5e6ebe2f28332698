"""A5, A6: a skip is no failure and changes no bit; figures are unscaled and before clipping."""

import math

import pytest
import torch

from lnexp.measure.nonfinite import MOST_SKIPS
from lnexp.train.loop import train
from tests.cases.trained import (  # fmt: skip
    Told,
    config,
    events,
    hooked,
    nonfinite,
    origin,
    records,
    state_of,
    tensors,
    told,
)

# ------------------------------------------------------- A5: skips


def starts_at(scale: float):
    """A scale so large that the scaler has to come down to its level first."""

    def begin(state) -> None:
        state.scale.scaler = torch.amp.GradScaler("cpu", init_scale=scale)

    return begin


def one_inf(state, steps) -> None:
    """In these steps one gradient element is Inf."""
    weight = state.model.blocks[1].mlp.body.w1.weight

    def poison(gradient):
        if state.steps_done not in steps:
            return gradient
        gradient = gradient.clone()
        gradient[1, 2] = math.inf
        return gradient

    weight.register_hook(poison)


def skipped(run: Told) -> list[int]:
    return [int(row["step"]) for row in run.table("steps") if row["skipped"] == "1"]


@pytest.mark.parametrize("scale, few", [(2.0**16, 3), (2.0**30, 20)])
def test_a_scaler_that_finds_its_level_is_no_instability(tmp_path, scale, few):
    run = told(
        tmp_path / "run", config(precision="fp16-mixed", steps=30, lr=3e-3), starts_at(scale)
    )
    first = skipped(run)
    assert len(first) <= few and (scale == 2.0**16 or first[:9] == list(range(9)))
    kinds = {e["kind"] for e in run.table("events")}
    assert kinds == ({"scaler_skip"} if first else set())
    assert run.row["status"] == "finished" and len(run.table("steps")) == 30
    assert run.row["verdict"] not in ("nonfinite", "diverged")
    assert run.row["first_bad_step"] is None and not (run.folder / "autopsy.json").exists()
    words = run.explained
    assert "NaN" not in words.diagnosis and "Inf" not in words.diagnosis and not words.origin


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_a_skip_leaves_every_bit_of_weights_and_optimizer_as_it_was(optimizer):
    state = state_of(precision="fp16-mixed", optimizer=optimizer, steps=8, lr=1e-2)
    one_inf(state, {5})
    kept, rows = [], []
    for row in train(state):
        rows.append(row)
        kept.append(tensors(state))
    same = [all(map(torch.equal, a, b)) for a, b in zip(kept, kept[1:], strict=False)]
    assert same == [step == 5 for step in range(1, 8)]
    (event,) = events(rows)
    assert (event.step, event.kind, event.phase) == (5, "scaler_skip", "optimizer")
    assert "step skipped" in event.detail and state.first_bad_step is None


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp16-mixed"])
def test_a_step_skipped_under_continue_leaves_every_bit_too_but_is_a_failure(precision):
    state = state_of(precision=precision, loss_scale="none", on_nonfinite="continue", lr=1e-2)
    one_inf(state, {2})
    kept = [tensors(state) for _ in train(state)]
    assert all(map(torch.equal, kept[1], kept[2])) and state.steps_done == 4
    assert state.first_bad_step == 2 and state.skipped == 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("on_nonfinite", ["stop", "continue"])
def test_a_forward_that_is_bad_for_good_ends_the_run_at_its_op_and_never_at_scale_0(
    value, on_nonfinite
):
    state = state_of(precision="fp16-mixed", steps=300, on_nonfinite=on_nonfinite)
    body = state.model.blocks[1].mlp.body
    with hooked(body, lambda y: y * value, lambda: state.steps_done >= 10):
        rows = records(state)
    assert len(rows) == (11 if on_nonfinite == "stop" else 10 + MOST_SKIPS)
    assert all(row.step.loss_scale > 0 for row in rows)
    born = origin(rows)
    assert (born.step, born.phase, born.module) == (10, "forward", "blocks.1.mlp.body")
    assert state.first_bad_step == 10


def test_gradients_that_overflow_at_every_scale_end_the_run_and_name_their_origin(tmp_path):
    run = told(
        tmp_path / "run",
        config(precision="fp16-mixed", steps=100),
        lambda state: one_inf(state, range(100)),
    )
    assert len(run.table("steps")) == MOST_SKIPS and run.row["verdict"] == "nonfinite"
    assert min(run.numbers("loss_scale")) > 0
    kinds = [e["kind"] for e in run.table("events")]
    assert "skips_in_a_row" in kinds
    (born,) = (e for e in run.table("events") if e["role"] == "origin")
    assert born["phase"] == "backward" and born["module"].startswith("blocks.1.mlp.body.w1")


def test_skips_with_steps_between_them_never_end_a_run():
    state = state_of(precision="fp16-mixed", steps=3 * MOST_SKIPS, batch_size=2)
    one_inf(state, {s for s in range(3 * MOST_SKIPS) if s % (MOST_SKIPS) != MOST_SKIPS - 1})
    rows = records(state)
    assert len(rows) == 3 * MOST_SKIPS and state.first_bad_step is None
    assert min(row.step.loss_scale for row in rows) > 0


# ------------------------------------------------------- A6: what a norm in the CSV is

SCALED = [("fp16", 256.0), ("fp16-mixed", 4096.0), ("fp16-mixed", "dynamic"),
          ("fp16-mixed", "none")]  # fmt: skip
GRADIENTS = ("grad_norm", "stream_grad_rms")


@pytest.mark.parametrize("precision, scale", SCALED)
def test_every_gradient_figure_of_the_first_step_is_that_of_fp32(precision, scale):
    full = {"measure": {"level": "full"}, "steps": 1, "clip": 0.1}
    wide = records(state_of(**full))[0]
    narrow = records(state_of(precision=precision, loss_scale=scale, **full))[0]
    assert narrow.step.grad_norm == pytest.approx(wide.step.grad_norm, rel=0.05)
    assert narrow.step.grad_norm > 0.1  # before clipping
    for one, other in zip(narrow.layers, wide.layers, strict=True):
        assert (one.layer, one.part) == (other.layer, other.part)
        for name in GRADIENTS:
            a, b = getattr(one, name), getattr(other, name)
            assert (a is None) == (b is None)
            assert a is None or a == pytest.approx(b, rel=0.1), (one.layer, one.part, name)


def test_no_figure_steps_by_2_when_the_scale_grows():
    """Every second step here; two runs of the same losses, one of them with a scale at rest."""

    def run(growth: int):
        state = state_of(precision="fp16-mixed", steps=9, measure={"level": "full"})
        state.scale.scaler = torch.amp.GradScaler("cpu", 2.0**4, growth_interval=growth)
        return records(state)

    growing, resting = run(2), run(1000)
    assert [r.step.loss_scale for r in growing] == [2.0 ** (4 + s // 2) for s in range(9)]
    for one, other in zip(growing, resting, strict=True):
        assert one.step.grad_norm == pytest.approx(other.step.grad_norm, rel=0.02)
        for a, b in zip(one.layers, other.layers, strict=True):
            for name in GRADIENTS:
                if getattr(b, name) is not None:
                    assert getattr(a, name) == pytest.approx(getattr(b, name), rel=0.05)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp16-mixed", "bf16-mixed"])
def test_norms_above_the_clip_value_stand_in_the_csv(tmp_path, precision):
    run = told(tmp_path / "run", config(precision=precision, steps=20, clip=0.5, lr=1e-2))
    norms, factors = run.numbers("grad_norm"), run.numbers("clip_factor")
    assert max(norms) > 0.5 and len(set(norms)) > 10  # no flat line at the clip value
    for norm, factor in zip(norms, factors, strict=True):
        assert factor == pytest.approx(min(1, 0.5 / norm), rel=1e-3)


def test_a_skipped_steps_norm_is_inf_with_its_flag_and_nothing_divided(tmp_path):
    run = told(
        tmp_path / "run",
        config(precision="fp16-mixed", steps=6, clip=1.0),
        lambda state: one_inf(state, {2}),
    )
    row = run.table("steps")[2]
    assert (row["grad_norm"], row["skipped"], row["nonfinite_grads"]) == ("inf", "1", "1")
    assert row["update_norm"] == "" and skipped(run) == [2]
    bad = [r for r in run.table("layers") if r["step"] == "2" and r["grad_norm"] == "inf"]
    assert [(r["layer"], r["part"]) for r in bad] == [("1", "mlp")]
    assert not nonfinite_events(run)


def nonfinite_events(run: Told) -> list[dict[str, str]]:
    return [e for e in run.table("events") if e["kind"] in ("nan", "inf")]


def test_the_healthy_neighbours_of_an_overflow_keep_their_own_norms():
    state = state_of(precision="fp16-mixed", steps=3)
    one_inf(state, {1})
    rows = records(state)
    assert not nonfinite(rows)
    others = [r.grad_norm for r in rows[1].layers if (r.layer, r.part) != (1, "mlp")]
    assert all(norm is not None and math.isfinite(norm) for norm in others)
