"""Each instrument against a closed form, NumPy, or a run whose answer is known beforehand."""

from dataclasses import asdict
from math import isclose, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch

from lnexp.config.schema import Model, RunConfig
from lnexp.lab.instruments import batch, change, distance, drift, norms, undo_r2
from lnexp.lab.instruments import figures as norm_figures
from lnexp.lab.profile import figures, power, profile
from lnexp.lab.skip import depth, skip
from lnexp.lab.subject import Subject
from lnexp.model.init import build
from tests.cases.trained import config, corpus, told

EXACT = 1e-9  # of figures taken in fp64


def subject(folder: Path, measure=None, **model) -> Subject:
    run: RunConfig = config(model=model, measure=measure, steps=25, lr=3e-3)
    told(folder / "run", run)
    return Subject(folder / "run", 25, run, corpus(run.data), "cpu")


def with_model(run: Subject, **model) -> Subject:
    """The same subject with fresh weights that a test may change."""
    settings = Model(**{**run.config.model.model_dump(), **model})
    changed = Subject(run.folder, 0, run.config.model_copy(update={"model": settings}), run.corpus,
                      "cpu")  # fmt: skip
    changed.__dict__["model"] = build(settings, len(run.corpus.vocabulary), 0).double().eval()
    return changed


@pytest.fixture(scope="module")
def layernorm(tmp_path_factory) -> Subject:
    return subject(tmp_path_factory.mktemp("layernorm"), {"level": "full"}, placement="post")


@pytest.fixture(scope="module")
def batchnorm(tmp_path_factory) -> Subject:
    return subject(tmp_path_factory.mktemp("batchnorm"), norm="batchnorm")


def test_a_layernorm_model_sees_one_sequence_and_only_the_past(layernorm):
    (row,) = batch(layernorm)
    for name, value in asdict(row).items():
        if name not in ("run", "steps_done"):
            assert value < EXACT, name


def test_a_batchnorm_model_sees_the_batch_and_the_future_while_it_trains(batchnorm):
    (row,) = batch(batchnorm)
    for name in ("alone", "padded", "train_eval", "future"):
        assert getattr(row, name) > 1e-3, name
    # Statistics do not know an order, and at evaluation they are fixed.
    for name in ("permuted", "alone_eval", "future_eval"):
        assert getattr(row, name) < EXACT, name


def test_looking_at_a_batchnorm_model_leaves_its_running_statistics(batchnorm):
    before = [b.clone() for b in batchnorm.model.buffers()]
    list(batch(batchnorm)), list(norms(batchnorm))
    assert all(torch.equal(a, b) for a, b in zip(before, batchnorm.model.buffers(), strict=True))


def test_a_norms_output_is_sigma_over_the_root_of_variance_and_eps(layernorm):
    for eps in (1e-5, 1e-1, 1.0):
        rows = list(norms(with_model(layernorm, eps=eps)))
        assert [(r.layer, r.part) for r in rows] == [
            (layer, part) for layer in range(3) for part in ("attn", "mlp")
        ]
        for row in rows:
            assert isclose(row.output_rms, row.expected_rms or 0, rel_tol=1e-9)
        # Sigma of the tokens differs little, so the formula of one token is near.
        first = rows[0].token_sigma
        assert isclose(rows[0].output_rms, first / sqrt(first**2 + eps), rel_tol=0.05)


def test_the_std_form_is_layernorm_up_to_the_root_of_d_minus_one_over_d(layernorm):
    width = layernorm.config.model.width
    row = next(iter(norms(with_model(layernorm, norm="layernorm_std", eps=1e-9))))
    assert isclose(row.output_rms, sqrt((width - 1) / width), rel_tol=1e-6)


def test_gain_and_bias_can_undo_batchnorm_but_not_layernorm(layernorm, batchnorm):
    assert all(isclose(row.undo_r2 or 0, 1, abs_tol=EXACT) for row in norms(batchnorm))
    assert all((row.undo_r2 or 0) < 0.999 for row in norms(layernorm))


def test_scale_and_offset_of_a_token_are_lost_in_layernorm_but_not_in_others(layernorm):
    changes = {
        norm: next(iter(norms(with_model(layernorm, norm=norm, eps=1e-12)))).scale_change
        for norm in ("layernorm", "rmsnorm", "dyt")
    }
    assert changes["layernorm"] < 1e-6
    assert changes["rmsnorm"] > 0.1 and changes["dyt"] > 0.1


def test_the_best_gain_and_bias_are_those_of_least_squares():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 5)), rng.normal(size=(40, 5))
    left = 0.0
    for d in range(5):
        design = np.stack([y[:, d], np.ones(40)], 1)
        left += np.linalg.lstsq(design, x[:, d], rcond=None)[1][0]
    expected = 1 - left / ((x - x.mean(0)) ** 2).sum()
    assert undo_r2(torch.tensor(x), torch.tensor(y)) == pytest.approx(expected)
    assert undo_r2(torch.tensor(x), torch.tensor(3 * x - 7)) == pytest.approx(1)


def test_a_block_that_adds_nothing_is_worth_nothing(layernorm):
    run = with_model(layernorm, placement="pre")
    with torch.no_grad():
        for body in (run.model.blocks[1].attn.body.wo, run.model.blocks[1].mlp.body.w2):
            body.weight.zero_()
            body.bias.zero_()
    rows = list(skip(run))
    assert rows[1].change == 0 and abs(rows[0].change) > 1e-3
    (counted,) = depth(run)
    beyond = sum(abs(row.change) > 0.01 for row in rows)
    assert counted.effective_depth == beyond > 0 and counted.share == beyond / 3
    assert abs(counted.largest_change) == max(abs(row.change) for row in rows)


def test_skipping_every_block_but_none_is_the_models_own_loss(layernorm):
    x_BT, y_BT = zip(*layernorm.windows(), strict=True)
    with torch.no_grad():
        logits = layernorm.model(torch.cat(x_BT)).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, torch.cat(y_BT).flatten())
    assert next(iter(skip(layernorm))).loss == pytest.approx(float(loss))


def test_drift_trains_the_same_run_again(layernorm):
    (row,) = drift(layernorm)
    lines = (layernorm.folder / "steps.csv").read_text().splitlines()
    at = lines[0].split(",").index("loss")
    losses = [float(line.split(",")[at]) for line in lines[1:]]
    assert row.end_loss == np.median(losses[-10:])
    assert row.cost == row.end_loss_injected - row.end_loss
    assert [row] == list(drift(layernorm))
    # The noise alone moves a mean by about 0.5 sqrt(2) and a std by as much.
    assert row.mean_drift is not None and row.mean_drift_injected is not None
    assert row.mean_drift_injected > max(0.3, row.mean_drift)
    assert (row.std_drift_injected or 0) > max(0.3, row.std_drift or 1)


def test_the_distance_of_two_readings():
    one, two = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 2.0]])
    shift, spread = distance((one, two), (one + 1, 2 * two))
    assert shift == pytest.approx((1 / 1 + 1 / 2) / 2)
    assert spread == pytest.approx(np.log(2))
    still = torch.tensor([[0.0, 2.0]])  # a feature that does not vary has no unit
    assert distance((one, still), (one + 1, still)) == (0.5, 0.0)


def reading(depth: int, square) -> dict:
    """Stream variance `square(l)` after block l; gradients halve from sublayer to sublayer."""
    found = {(-1, "embed"): {"act_rms": sqrt(square(0))}}
    for layer in range(depth):
        for i, part in enumerate(("attn", "mlp")):
            found[layer, part] = {
                "act_rms": sqrt(square(layer + (i + 1) / 2)),
                "norm_input_rms": 1.25,
                "stream_grad_rms": 0.5 ** (2 * layer + i),
                "grad_norm": 3.0 if layer == 0 else 4.0,
                "token_cosine": 0.1 * layer,
            }
        found[layer, "w2"] = {"grad_norm": 2.0 + layer}
    return found


def test_figures_of_a_stream_whose_variance_grows_by_one_a_block():
    f = figures(reading(6, lambda block: 1 + block), 6, sums=False)
    assert f["variance_exponent"] == pytest.approx(1) and f["variance_r2"] == pytest.approx(1)
    assert f["variance_per_block"] == pytest.approx(1)
    assert f["growth_per_block"] == pytest.approx(7 ** (1 / 12))
    assert f["stream_rms_per_sublayer"] == pytest.approx(7 ** (1 / 24))
    assert (f["rms_min"], f["rms_max"]) == pytest.approx((sqrt(1.5), sqrt(7)))
    assert f["stream_grad_ratio"] == pytest.approx(2**11)
    assert f["stream_grad_per_sublayer"] == pytest.approx(2)
    assert f["grad_ratio"] == pytest.approx(3 / 4) and f["w2_ratio"] == pytest.approx(2 / 7)
    assert f["wq_ratio"] is None and f["identity_path"] is None
    assert f["token_cosine_last"] == pytest.approx(0.5)


def test_the_ratio_of_two_blocks_counts_their_norms_as_runs_csv_does():
    read = reading(6, lambda block: 1 + block)
    read[0, "norm"], read[6, "norm"] = {"grad_norm": sqrt(14)}, {"grad_norm": 99.0}
    f = figures(read, 6, sums=False)  # sqrt(3^2 + 3^2 + 14) over sqrt(4^2 + 4^2)
    assert f["grad_ratio"] == pytest.approx(1)


def test_the_path_by_the_identity_is_one_over_what_each_norm_reads():
    f = figures(reading(4, lambda block: 1.0), 4, sums=True)
    assert f["identity_path"] == pytest.approx(1.25**-8)


def test_a_power_law_needs_three_positive_points():
    assert power([1, 2, 4], [3, 12, 48]) == (pytest.approx(2), pytest.approx(1))
    assert power([1, 2], [1, 2]) == power([1, 2, 3], [1, -1, 1]) == (None, None)
    assert power([1, 2, 3], [1, None, 1]) == (None, None)


def test_a_profile_is_of_the_first_and_last_reading(layernorm):
    first, last = profile(layernorm)
    assert (first.when, first.step, last.when, last.step) == ("first", 0, "last", 24)
    assert first.rms_min == pytest.approx(1, abs=1e-3)  # Post-LN, before gain and bias have moved
    assert 0 < (first.identity_path or 0) < 1


def test_the_path_by_the_skips_is_told_only_where_nothing_else_is_in_the_sum(layernorm):
    paths = {}
    for placement in ("post", "b2t", "residual_dual", "deepnorm", "keel", "pre", "mix"):
        run = with_model(layernorm, placement=placement)
        paths[placement] = next(iter(profile(run))).identity_path is not None
    assert [name for name, told in paths.items() if told] == ["post"]


def test_what_has_no_figure_is_empty_and_never_nan(layernorm):
    one = torch.tensor([[1.0, 2.0, 4.0]])  # a single token: no spread over tokens
    found = norm_figures("layernorm", 1e-5, one, one)
    assert found["sigma_spread"] is None and found["undo_r2"] is None
    still = torch.ones(2, 3)
    assert distance((still, 0 * still), (still, 0 * still)) is None
    assert change(0 * still, still) is None


def test_a_run_that_went_on_is_trained_again_to_where_it_is(layernorm):
    longer = Subject(layernorm.folder, 30, layernorm.config, layernorm.corpus, "cpu")
    longer_row, row = next(drift(longer)), next(drift(layernorm))
    assert longer_row.end_loss != row.end_loss
    settings = layernorm.config.train.model_copy(update={"steps": 30})
    asked = layernorm.config.model_copy(update={"train": settings})
    straight = next(drift(Subject(layernorm.folder, 30, asked, layernorm.corpus, "cpu")))
    assert longer_row == straight
