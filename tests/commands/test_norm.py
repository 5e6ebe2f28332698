"""The lesson's worked examples, and that each last step is what the model's norm computes."""

import json

import numpy as np
import pytest
import torch

from lnexp.model.norms import build_norm
from lnexp.model.worked import WORKED, rms_over_eps, work_out
from tests.cli import lnexp


def last(norm: str, rows, **how) -> list[float]:
    return work_out(norm, rows, **how)[-1].values.flatten().tolist()


def test_the_lessons_examples_come_out():
    assert last("layernorm", [[2, 4, 1, 3]]) == pytest.approx(
        [-0.447, 1.342, -1.342, 0.447], abs=5e-4
    )
    assert last("layernorm", [[3, 5, 2, 6]]) == pytest.approx(
        [-0.632, 0.632, -1.265, 1.265], abs=5e-4
    )
    # The lesson prints -1.898: it rounded before multiplying.
    assert last("layernorm", [[3, 5, 2, 6]], gain=[0.5, 1, 1.5, 2]) == pytest.approx(
        [-0.316, 0.632, -1.897, 2.530], abs=5e-4
    )


@pytest.mark.parametrize("norm", [n for n in WORKED if n not in ("batchnorm", "scalenorm")])
def test_the_last_step_is_what_the_models_norm_computes(norm):
    x = [[3.0, -5.0, 2.0, 6.0], [1.0, 0.5, -2.0, 8.0]]
    eps = 1e-3
    module = build_norm(norm, 4, eps, True).double()
    with torch.no_grad():
        expected = module(torch.tensor(x, dtype=torch.float64))
    ours = work_out(norm, x, eps=eps)[-1].values
    torch.testing.assert_close(ours, expected)


def test_batchnorm_uses_the_other_axis():
    x = np.array([[3.0, 5.0, 2.0], [2.0, 4.0, 1.0], [9.0, 4.0, 7.0]])
    expected = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    np.testing.assert_allclose(work_out("batchnorm", x.tolist())[-1].values.numpy(), expected)


def test_the_rms_over_eps_is_sigma_over_root_of_variance_plus_eps():
    x, eps = [[2.0, 4.0, 1.0, 3.0]], [1e-5, 1e-2, 1.0]
    sigma = np.std(x)
    expected = [sigma / np.sqrt(sigma**2 + e) for e in eps]
    assert rms_over_eps("layernorm", x, eps, "fp64") == pytest.approx(expected)


def test_an_eps_that_the_type_cannot_hold_is_0_there():
    steps = {s.name: s.values for s in work_out("layernorm", [[1, 1, 1]], eps=1e-8, dtype="fp16")}
    assert steps["variance + eps"].item() == 0 and steps["normalised"].isnan().all()


@pytest.mark.parametrize(
    "words, shown",
    [
        (["2", "4", "1", "3"], ["-0.447212", "1.34164"]),
        (["-1", "-2.5", "3"], ["-0.358979", "1.36412"]),
        (["3 5 2 6; -2 4 1 3", "--norm", "layernorm,batchnorm"], ["Side by side", "-1.5275"]),
        (["3,5,2,6", "--gain", "0.5,1,1.5,2"], ["-1.89736", "2.52982"]),
    ],
)
def test_the_command_shows_the_steps(words, shown):
    said = lnexp("norm", *words)
    assert said.code == 0 and all(word in said.out for word in shown)
    assert "What eps does" in said.out


@pytest.mark.parametrize(
    "words, what",
    [
        (["a", "b"], "write numbers"),
        (["1"], "two numbers"),
        (["1 2; 3"], "same length"),
        (["1", "2", "--norm", "x"], "layernorm"),
        (["1", "2", "--gain", "1,2,3"], "--gain"),
        (["1", "2", "--eps", "-1"], "0 or more"),
        (["1", "2", "--dtype", "int8"], "fp64"),
    ],
)
def test_wrong_words_end_in_a_line(words, what):
    said = lnexp("norm", *words)
    assert said.code == 2 and what in said.err and len(said.err.splitlines()) == 1


def test_the_eps_that_was_used_is_marked():
    said = lnexp("norm", "2", "4", "1", "3", "--eps", "0.5").out
    (marked,) = [line.split() for line in said.splitlines() if "<- used" in line]
    assert marked[0] == "0.5"
    both = lnexp("norm", "2 4 1 3", "--norm", "layernorm,layernorm_std").out
    assert "<- used by layernorm_std" in both and "<- used by layernorm" in both


def test_the_formula_of_layernorm_stands_only_where_it_holds():
    assert "sigma^2 + eps" in lnexp("norm", "2 4 1 3").out
    assert "sigma^2 + eps" not in lnexp("norm", "2 4 1 3", "--norm", "rmsnorm").out


def test_what_a_variance_divides_by_is_said():
    assert "divides by N = 4." in lnexp("norm", "2 4 1 3").out
    assert "divides by N - 1 = 3." in lnexp("norm", "2 4 1 3", "--norm", "layernorm_std").out
    assert "divides by N = 2." in lnexp("norm", "2 4 1; 1 2 5", "--norm", "batchnorm").out


def test_batchnorm_of_one_row_is_told_to_need_two():
    assert "needs two rows or more" in lnexp("norm", "2 4 1 3", "--norm", "batchnorm").out
    assert "needs two" not in lnexp("norm", "2 4 1; 1 2 5", "--norm", "batchnorm").out


@pytest.mark.parametrize(
    "words, why",
    [
        (["60000 1", "--norm", "rmsnorm", "--dtype", "fp16"], "mean square: 60000^2 > 65504"),
        (["60000 1 2 3", "--dtype", "fp16"], "variance: 44992^2 > 65504"),
        (["200 200 200 200", "--norm", "scalenorm", "--dtype", "fp16"], "squares up to 200^2"),
        (["70000 1", "--dtype", "fp16"], "x: a number that is none, or is beyond 65504"),
        (["1 1 1", "--dtype", "fp16", "--eps", "1e-8"], "normalised: 0/0"),
        (["1e-30 0", "--norm", "rmsnorm", "--dtype", "fp32", "--eps", "0"], "normalised: 1e-30/0"),
    ],
)
def test_a_step_that_is_not_finite_says_why(words, why):
    assert why in " ".join(lnexp("norm", *words).out.split())


def test_finite_steps_need_no_reason():
    said = lnexp("norm", "2 4 1 3", "--norm", "layernorm,rmsnorm,scalenorm,dyt").out
    assert "0/0" not in said and "largest number" not in said


def test_as_json_the_steps_are_data():
    said = lnexp("norm", "2", "4", "1", "3", "--norm", "layernorm,dyt", "--json")
    found = json.loads(said.out, parse_constant=lambda word: pytest.fail(word))
    steps = {step["name"]: step["values"] for step in found["layernorm"]["steps"]}
    assert steps["mean"] == [[2.5]] and steps["variance"] == [[1.25]]
    assert steps["normalised"][0] == pytest.approx([-0.4472, 1.3416, -1.3416, 0.4472], abs=1e-4)
    assert found["layernorm"]["eps"] == 1e-5 and found["dyt"]["eps"] is None
    bad = json.loads(lnexp("norm", *"1 1 1 1 --eps 1e-8 --dtype fp16 --json".split()).out)
    assert bad["layernorm"]["steps"][-1]["values"][0][0] == "nan"
