"""A2, A7, A8: numbers that half precision does not hold, and who is to blame."""

import math

import pytest
import torch
from torch import Tensor, nn

from lnexp.model.catalog import NORMS
from tests.cases.trained import config, nonfinite, origin, records, state_of, told

# ------------------------------------------------------- A2: eps of a norm


class Pad(nn.Module):
    """The first token is zero, as padding is."""

    def forward(self, h: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(h[:, :1]), h[:, 1:]], 1)


def reads_a_zero_token(state) -> None:
    """One norm alone: through a stack the factor 1/sqrt(eps) of each norm at a zero row multiplies
    up, and gradients of fp16 overflow for that reason."""
    branch = state.model.blocks[1].mlp
    branch.before = nn.Sequential(Pad(), branch.before)


# Where a norm's eps of 1e-12 is lost in fp16: in its own sum, or in the 1/sqrt(var + eps) = 1e6
# that torch's fused LayerNorm keeps for backward. Its own output stays 0.
LOST = {
    **dict.fromkeys(
        ("layernorm_plain", "layernorm_std", "rmsnorm_plain", "scalenorm"),
        ("nan", "aten.div.Tensor", 0.0),
    ),
    "layernorm": ("inf", "aten.native_layer_norm.default", 1e-12),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("eps", [1e-12, 1e-7, 1e-5])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed", "fp16"])
def test_an_eps_below_what_fp16_holds_is_found_at_the_norm_and_no_other_claimed(
    norm, eps, precision
):
    state = state_of(model={"norm": norm, "eps": eps}, precision=precision, steps=2)
    reads_a_zero_token(state)
    rows = records(state)
    if (eps, precision) != (1e-12, "fp16") or norm not in LOST:
        assert not nonfinite(rows)
        return
    kind, op, held = LOST[norm]
    born = origin(rows)
    assert (born.step, born.phase, born.module) == (0, "forward", "blocks.1.mlp.before.1")
    assert (born.kind, born.op) == (kind, op)
    facts = rows[0].autopsy["origin"]["norm"]
    assert (facts["eps"], facts["smallest_variance"]) == (1e-12, 0)
    assert facts["eps_held"] == pytest.approx(held)
    assert math.isfinite(rows[0].step.loss) == (norm == "layernorm")


@pytest.mark.parametrize("norm", NORMS)
def test_the_limit_of_fp16_is_told_of_a_norm_written_out_and_of_no_fused_one(tmp_path, norm):
    run = told(
        tmp_path / "run",
        config(model={"norm": norm, "eps": 1e-12}, precision="fp16"),
        reads_a_zero_token,
    )
    words = " ".join([run.explained.diagnosis, *run.explained.origin])
    assert (run.row["verdict"] == "nonfinite") == (norm in LOST)
    assert (run.folder / "autopsy.json").exists() == (norm in LOST)
    limit = "not representable in float16" in words and "6e-08" in words
    assert limit == (norm in LOST and norm != "layernorm")
    assert run.env["eps"] == ([] if norm == "dyt" else [1e-12])


# ------------------------------------------------------- A7: eps of Adam


def rare_letters(state) -> None:
    """Letters 0 .. 7 alone are drawn: the embedding rows of the others have gradient 0."""
    draw = state.batches.draw
    state.batches.draw = lambda: tuple(part % 8 for part in draw())


def per_tensor(kind):
    """The optimizer as it is without the fused kernel."""

    def swap(state) -> None:
        rare_letters(state)
        old = state.optimizer.defaults
        state.optimizer = kind(
            state.model.parameters(), lr=old["lr"], eps=old["eps"], betas=old["betas"],
            weight_decay=0.0, foreach=False,
        )  # fmt: skip

    return swap


@pytest.mark.parametrize("optimizer", ["adamw", "adam"])
@pytest.mark.parametrize("eps", [1e-8, 1e-12])
def test_the_fused_kernel_holds_eps_in_fp16_and_no_step_fails(optimizer, eps):
    state = state_of(optimizer=optimizer, adam_eps=eps, precision="fp16", steps=2, lr=1e-4)
    rare_letters(state)
    assert not nonfinite(records(state))


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adam])
@pytest.mark.parametrize(
    "precision, eps, fails",
    [("fp16", 1e-8, True), ("fp16", 1e-6, False), ("fp32", 1e-8, False), ("bf16", 1e-8, False),
     ("fp16-mixed", 1e-8, False)],
)  # fmt: skip
def test_an_eps_that_rounds_to_0_is_the_optimizers_fault_and_no_others(
    tmp_path, optimizer, precision, eps, fails
):
    settings = {"precision": precision, "adam_eps": eps, "lr": 1e-4, "steps": 3}
    run = told(tmp_path / "run", config(**settings), per_tensor(optimizer))
    assert run.env["optimizer_kernel"] == "per tensor"
    bad = [e for e in run.table("events") if e["kind"] in ("nan", "inf")]
    if not fails:
        assert not bad
        return
    (born,) = (e for e in bad if e["role"] == "origin")
    assert (born["step"], born["phase"]) == ("0", "optimizer")
    assert born["op"] == f"{optimizer.__name__} (per tensor)"
    assert {e["phase"] for e in bad} == {"optimizer"} and len(run.table("steps")) == 1
    assert math.isfinite(float(run.table("steps")[0]["loss"]))
    words = run.explained.diagnosis
    assert "optimizer" in words and "1e-08 is held as 0" in words and "embed" in words


@pytest.mark.parametrize("gradient, comes_out", [(0.0, "nan"), (1e-4, "inf")])
def test_an_unused_row_is_0_over_0_and_a_small_gradient_is_divided_by_0(gradient, comes_out):
    state = state_of(precision="fp16", steps=1)
    per_tensor(torch.optim.AdamW)(state)
    for weight in state.model.parameters():
        weight.register_hook(lambda g: torch.full_like(g, gradient))
    rows = records(state)
    assert origin(rows).kind == comes_out and origin(rows).phase == "optimizer"
    facts = rows[0].autopsy["optimizer"]
    assert facts["gradient"] == pytest.approx(gradient, rel=1e-2) and facts["eps_held"] == 0


# ------------------------------------------------------- A8: weights that never move


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_in_bf16_no_norm_learns_and_that_is_said_beside_the_verdict(tmp_path, placement):
    model = {"depth": 2, "placement": placement}
    settings = {"steps": 100, "lr": 1e-3, "batch_size": 2}
    narrow = told(tmp_path / "bf16", config(model=model, precision="bf16", **settings))
    mixed = told(tmp_path / "mixed", config(model=model, precision="bf16-mixed", **settings))
    assert "frozen" in narrow.causes and "all norm gains" in narrow.row["evidence"]
    assert "frozen" not in mixed.causes
    assert any("norm gains" in says for _, says, _ in narrow.explained.evidence)


@pytest.mark.parametrize("level", ["off", "light", "full"])
def test_the_gains_that_stand_still_are_told_from_the_weights_whatever_is_measured(tmp_path, level):
    run = told(
        tmp_path / "run",
        config(precision="bf16", steps=20, measure={"level": level}, batch_size=2),
    )
    assert "frozen" in run.causes and "bit-identical" in run.row["evidence"]


def test_gains_that_move_in_bf16_are_not_said_to_stand_still(tmp_path):
    """At a larger lr one step is beyond half of 1/256."""
    run = told(tmp_path / "run", config(precision="bf16", steps=30, lr=1e-2, batch_size=2))
    assert "norm gains" not in run.row["evidence"]


def test_an_underflow_of_adams_moments_is_a_cause_with_its_share(tmp_path):
    run = told(
        tmp_path / "run",
        config(model={"init": "gpt2"}, precision="fp16", steps=20, lr=1e-6),
    )
    assert "adam_underflow" in run.causes and "v = 0" in run.row["evidence"]
    wide = told(tmp_path / "wide", config(model={"init": "gpt2"}, steps=20, lr=1e-6))
    assert "adam_underflow" not in wide.causes
