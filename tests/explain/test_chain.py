from math import inf, nan

import numpy as np
import pytest

from lnexp.explain.chain import ABOVE, BELOW, FEWEST_READINGS, beyond, chain, departure
from lnexp.results.tables import read_table
from lnexp.rows import EventRow, LayerRow, StepRow
from tests.results.folders import csv_text

DEPTH = 4


def naive_departure(values, above=ABOVE, below=BELOW):
    """The first reading out of range of the plain median before it, with its follower."""
    for i in range(FEWEST_READINGS, len(values)):
        usual = np.median(values[:i])
        pair = values[i : i + 2]
        if usual > 0 and (all(pair > above * usual) or all(pair < below * usual)):
            return i, values[i], usual
    return None


def run(tmp_path, n=40, lr=None, events=(), until=None, skipped=None, by_layer=None, **whole):
    """The chain of a run; `whole`: columns of steps.csv; `by_layer`: of layers.csv, [step, layer],
    split over attn and mlp as 3 : 4 : 5."""
    steps, layers = [], []
    parts = by_layer or {}
    for s in range(n):
        more = {k: float(v[s]) for k, v in whole.items()}
        rate = 1e-3 if lr is None else float(lr[s])
        skip = None if skipped is None else int(skipped[s])
        steps.append(StepRow(s, s, s, rate, 3.0, 3.2, skipped=skip, **more))
        for layer in range(DEPTH):
            for part, share in (("attn", 0.6), ("mlp", 0.8)):
                given = {k: float(share * v[s][layer]) for k, v in parts.items()}
                layers.append(LayerRow(s, layer, part, **given))
    frames = []
    for name, kind, rows in (
        ("steps", StepRow, steps), ("layers", LayerRow, layers), ("events", EventRow, events),
    ):  # fmt: skip
        path = tmp_path / f"{name}.csv"
        path.write_text(csv_text(kind, rows))
        frames.append(read_table(path, kind)[0])
    return chain(*frames, DEPTH, n - 1 if until is None else until)


def order(table):
    return [(row["step"], row["series"]) for row in table.to_dict("records")]


def noisy(curve, seed, sigma=0.3):
    """Multiplied by the noise of real batches: a factor of 1.3 up or down, at times 2."""
    return np.asarray(curve) * np.exp(sigma * np.random.default_rng(seed).normal(size=len(curve)))


@pytest.mark.parametrize("seed", range(20))
def test_leaving_the_usual_range_is_what_a_plain_loop_finds(seed):
    rng = np.random.default_rng(seed)
    values = np.exp(np.cumsum(rng.normal(scale=0.8, size=60) + rng.choice([-0.4, 0.4])))
    values = np.r_[values, values[-1] * np.exp(np.sign(rng.normal()) * np.arange(40))]
    found, expected = departure(values), naive_departure(values)
    if found is None:
        assert expected is None
    elif expected[0] == found.at:
        assert (found.value, found.usual) == pytest.approx(expected[1:])
    else:  # it had come back from an earlier excursion
        assert expected[0] < found.at


def test_one_reading_alone_has_not_left_but_the_last_one_may():
    quiet = np.ones(20)
    spike = quiet.copy()
    spike[10] = 1000
    assert departure(spike) is None
    last = quiet.copy()
    last[-1] = 1000
    assert departure(last).at == 19


def test_what_comes_back_for_ten_readings_has_not_left():
    values = np.ones(40)
    values[10:14] = 1000
    assert departure(values) is None
    assert departure(values[:20]).at == 10


def test_three_readings_make_a_usual_range_and_two_do_not():
    assert departure(np.array([1.0, 1.0, 1000.0])) is None
    assert departure(np.array([1.0, 1.0, 1.0, 1000.0])).at == 3
    assert departure(np.empty(0)) is None


def test_of_a_series_at_zero_no_multiple_is_told():
    assert departure(np.r_[np.zeros(10), np.ones(10)]) is None
    assert departure(np.r_[np.ones(10), np.zeros(10)]).at == 10


def test_fixed_limits_hold_from_the_first_reading_on():
    assert beyond(np.array([0.005, 0.005]), low=1e-2).at == 0
    assert beyond(np.full(9, 0.5), low=1e-2) is None
    assert beyond(np.array([0.5, 0.999, 0.999]), high=0.99).usual == 0.99


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("warmup", [0, 30])
def test_a_healthy_run_is_silent(tmp_path, seed, warmup):
    """Gradients fall tenfold in the first steps, weights grow, lr warms up and goes to zero."""
    n, t = 100, np.arange(100)
    lr = 1e-3 * np.minimum(1, (t + 1) / max(warmup, 1)) * (1 + np.cos(np.pi * t / n)) / 2
    grads = 0.1 + 0.9 * np.exp(-t / 4)
    layers = np.stack([noisy(grads * (1 + i), seed + i) for i in range(DEPTH)], axis=1)
    each = np.ones(DEPTH)
    by_layer = {
        "grad_norm": layers,
        "update_norm": layers * lr[:, None],
        "weight_norm": np.outer(1 + t / 10, each),
        "act_absmax": np.outer(noisy(1 + t / 5, seed, 0.1), each),
        "attn_logit_max": np.outer(0.01 + t**2 / 200, each),
        "token_cosine": np.outer(noisy(np.full(n, 0.5), seed, 0.1), each),
    }
    table = run(
        tmp_path, n, lr=lr, by_layer=by_layer, grad_norm=noisy(grads * 3, seed),
        weight_norm=1 + t / 10, update_norm=noisy(lr * 50, seed + 50, 0.1),
    )  # fmt: skip
    assert order(table) == []


def test_events_come_in_the_order_in_which_they_happened(tmp_path):
    """Gradients shrink, moments underflow, updates explode, weights explode."""
    t = np.arange(40)
    layers = np.where(t < 10, 1.0, 1e-3)[:, None] * np.ones(DEPTH)
    layers[8:, 0] = 1e-6
    events = [EventRow(14, "optimizer", "adam_underflow", module="blocks.0", detail="41 %")]
    table = run(
        tmp_path, events=events, until=30, by_layer={"grad_norm": layers},
        grad_norm=np.where(t < 12, 1.0, 1e-3), update_norm=np.where(t < 20, 1e-3, 1.0),
        weight_norm=np.where(t < 21, 5.0, 5e4),
    )  # fmt: skip
    assert order(table) == [
        (8, "grad_norm"), (8, "gradient_ratio"), (12, "grad_norm"), (14, "adam_underflow"),
        (20, "update_norm"), (21, "weight_norm"),
    ]  # fmt: skip
    assert (table["layer"][0], table["places"][0]) == (0, 4)


def test_nothing_after_the_failure_is_told(tmp_path):
    t = np.arange(40)
    weights = np.where(t < 21, 5.0, 5e4)
    assert order(run(tmp_path, weight_norm=weights, until=20)) == []


def test_the_part_that_carries_an_exploding_norm_is_named(tmp_path):
    layers = np.ones((40, DEPTH))
    layers[30:, 2] = 1e4
    whole = np.sqrt((layers**2).sum(axis=1))
    (row,) = run(tmp_path, by_layer={"grad_norm": layers}, grad_norm=whole).to_dict("records")
    assert (row["step"], row["series"], row["layer"], row["part"]) == (30, "grad_norm", 2, "mlp")
    assert row["value"] == pytest.approx(1e4, rel=1e-3) and row["usual"] == pytest.approx(2.0)


def test_a_layer_that_wakes_up_is_no_event(tmp_path):
    layers = np.ones((40, DEPTH))
    layers[:20, 2] = 1e-3
    assert order(run(tmp_path, by_layer={"grad_norm": layers})) == []


def test_forward_readings_are_told_when_they_grow_and_not_when_they_shrink(tmp_path):
    up = np.ones((40, DEPTH))
    up[25:, 3] = 500
    down = np.ones((40, DEPTH))
    down[25:] = 1e-5
    table = run(tmp_path, by_layer={"norm_input_rms": up, "act_absmax": down})
    assert order(table) == [(25, "norm_input_rms")]
    cosine = np.full((40, DEPTH), 0.3)
    cosine[12:] = 1.249  # times 0.8: 0.9992
    (row,) = run(tmp_path, by_layer={"token_cosine": cosine}).to_dict("records")
    assert (row["step"], row["layer"], row["part"], row["usual"]) == (12, 0, "mlp", 0.99)


def test_an_attention_score_counts_from_where_its_exponential_overflows(tmp_path):
    scores = np.full((40, DEPTH), 0.01)
    scores[20:] = 80
    assert order(run(tmp_path, by_layer={"attn_logit_max": scores})) == []
    scores[30:] = 200
    assert order(run(tmp_path, by_layer={"attn_logit_max": scores})) == [(30, "attn_logit_max")]


def test_an_update_is_told_per_unit_of_learning_rate(tmp_path):
    lr = np.r_[np.full(20, 1e-5), np.full(20, 1e-2)]
    assert order(run(tmp_path, lr=lr, update_norm=lr * 7)) == []
    assert order(run(tmp_path, update_norm=lr * 7)) == [(20, "update_norm")]


def test_steps_skipped_in_a_row_count_only_where_they_last_to_the_end(tmp_path):
    early = np.arange(40) < 6
    assert order(run(tmp_path, skipped=early)) == []
    (row,) = run(tmp_path, skipped=np.arange(40) > 34).to_dict("records")
    assert (row["step"], row["series"], row["value"]) == (35, "skips", 5)


def test_nonfinite_readings_are_the_failure_and_not_what_led_to_it(tmp_path):
    norms = np.ones(40)
    norms[39] = nan
    norms[38] = inf
    assert order(run(tmp_path, grad_norm=norms)) == []
    assert order(run(tmp_path, n=0)) == []
