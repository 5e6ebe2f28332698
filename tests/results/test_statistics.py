from fractions import Fraction
from math import inf, isnan, nan, prod, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lnexp.results.statistics import (
    end_value,
    mad,
    median,
    running_median,
    slope,
    spike_score,
    spikes,
    survival,
    wilson,
)
from lnexp.rows import end_window


@pytest.mark.parametrize(("n", "low"), [(3, 0.44), (4, 0.51), (10, 0.72)])
def test_wilson_lower_bounds_of_all_successes(n, low):
    assert wilson(n, n) == (pytest.approx(low, abs=0.005), 1.0)


def test_of_no_runs_nothing_is_known():
    assert wilson(0, 0) == (0.0, 1.0)


def test_without_early_ends_survival_is_the_share_still_finite_with_wilsons_interval():
    done, bad = [60] * 7 + [4, 4, 23], [None] * 7 + [3, 3, 22]
    points = survival(done, bad)
    assert [(p.step, p.at_risk) for p in points] == [(0, 10), (4, 8), (23, 7), (60, 7)]
    for p, finite in zip(points, (10, 8, 7, 7), strict=True):
        assert p.share == pytest.approx(finite / 10)
        assert (p.low, p.high) == pytest.approx(wilson(finite, 10))


def test_when_all_failed_nothing_is_left_and_the_interval_is_that_of_none():
    last = survival([1, 5], [0, 4])[-1]
    assert (last.step, last.share, last.at_risk) == (5, 0.0, 0)
    assert (last.low, last.high) == pytest.approx(wilson(0, 2))


def test_a_run_that_ended_early_counts_as_long_as_it_was_there():
    # 4 runs; one is interrupted after 10 steps; then one of three fails at step 20.
    points = survival([10, 21, 40, 40], [None, 20, None, None])
    assert [(p.step, p.share) for p in points] == [
        (0, 1.0), (21, pytest.approx(2 / 3)), (40, pytest.approx(2 / 3)),
    ]  # fmt: skip


def test_no_runs_have_no_survival_curve():
    assert survival([], []) == []


@given(st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=20))
def test_survival_is_the_product_of_the_shares_that_pass_each_step(runs):
    """Written again, step by step, from the definition."""
    points = survival([n for n, _ in runs], [n - 1 if failed else None for n, failed in runs])
    for point in points:
        factors = []
        for step in range(1, point.step + 1):
            there = [failed and n == step for n, failed in runs if n >= step]
            factors.append(1 - sum(there) / len(there))
        assert point.share == pytest.approx(prod(factors))
        assert 0 <= point.low <= point.share <= point.high <= 1


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_limits_solve_their_defining_equation(counts):
    k, n = counts
    z = 1.959963984540054
    low, high = wilson(k, n)
    assert 0 <= low <= k / n <= high <= 1

    def excess(p):
        return abs(k / n - p) - z * sqrt(p * (1 - p) / n)

    def root(inside, outside):
        for _ in range(200):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if excess(middle) <= 0 else (inside, middle)
        return inside

    if k > 0:
        assert low == pytest.approx(root(k / n, 0.0), abs=1e-9)
    if k < n:
        assert high == pytest.approx(root(k / n, 1.0), abs=1e-9)


def test_mad_is_the_median_distance_from_the_median():
    assert mad(np.array([1.0, 1, 2, 2, 4, 6, 9])) == 1.0
    assert isnan(mad(np.array([])))


def test_a_median_tells_nothing_measured_from_nothing_but_nan():
    assert median(np.array([])) is None
    assert isnan(median(np.array([nan, nan])))
    assert median(np.array([nan, 1, 3])) == 2.0
    assert median(np.array([1, inf, inf])) == inf


@pytest.mark.parametrize(("n", "window"), [(0, 0), (7, 7), (10, 10), (100, 10), (101, 11)])
def test_end_is_a_tenth_of_the_steps_but_ten_at_least(n, window):
    assert end_window(n) == window


def test_end_never_hides_a_nonfinite_value():
    assert end_value(np.r_[np.zeros(195), inf, np.zeros(4)]) == inf
    assert isnan(end_value(np.r_[np.zeros(199), nan]))
    assert end_value(np.r_[nan, np.ones(199)]) == 1.0


def test_running_median_is_that_of_a_loop():
    values = np.random.default_rng(0).normal(size=50)
    naive = [np.median(values[i : i + 7]) for i in range(44)]
    assert np.allclose(running_median(values, 7), naive)
    assert len(running_median(values, 51)) == 0


def test_slope_agrees_with_the_normal_equations():
    rng = np.random.default_rng(1)
    steps, level = np.arange(60.0), rng.normal(size=60)
    gap = 0.3 - 0.02 * steps + 0.7 * level + 0.1 * rng.normal(size=60)
    design = np.stack([np.ones(60), steps, level], axis=1)
    best, squares, *_ = np.linalg.lstsq(design, gap, rcond=None)
    error = sqrt(squares[0] / 57 * np.linalg.inv(design.T @ design)[1, 1])
    fit = slope(steps, gap, level)
    assert (fit.value, fit.error) == (pytest.approx(best[1]), pytest.approx(error))


def test_the_slope_of_too_few_points_is_not_known():
    assert isnan(slope(np.arange(3.0), np.zeros(3), np.zeros(3)).value)


def test_spike_score_is_that_of_a_loop():
    loss = 3 + 0.1 * np.random.default_rng(2).normal(size=300)
    loss[[50, 51, 200]] += [5.0, 9.0, 5.0]
    loss[120] = nan
    finite = loss[np.isfinite(loss)]
    window = max(20, min(1000, len(finite) // 5))
    hits = [
        finite[i] > np.mean(w := finite[i - window : i]) + 7 * np.std(w, ddof=1)
        for i in range(window, len(finite))
    ]
    assert sum(hits) > 0
    assert spike_score(loss) == pytest.approx(np.mean(hits))


def test_a_flat_curve_has_no_spikes_and_a_short_one_no_score():
    assert spike_score(np.full(100, 3.1)) == 0.0
    assert spike_score(np.full(20, 3.1)) is None


def test_spikes_are_those_of_a_loop():
    rng = np.random.default_rng(3)
    gap = -np.linspace(0, 1, 200) + 0.02 * rng.normal(size=200)
    gap[[80, 150]] += [0.6, 0.3]
    found = []
    for t in range(20, 200):
        seen = [gap[t - 20 : t], gap, *([gap[t - 60 : t]] if t >= 60 else [])]
        spread = max(np.median(np.abs(d - np.median(d))) for d in map(np.diff, seen))
        rise = gap[t] - np.median(gap[t - 10 : t])
        if rise > 6 * 1.4826 * spread / sqrt(2):
            found.append((t, rise))
    assert [t for t, _ in found] == [80, 150]
    assert spikes(gap[:20]) == []
    assert spikes(gap) == [(t, pytest.approx(rise)) for t, rise in found]


def test_noise_alone_is_rarely_a_spike_even_where_it_grows():
    steps = np.arange(400)
    fall = -0.6 / (1 + np.exp(-(steps - 200) / 30))
    noises = (
        0.02,
        np.linspace(0.006, 0.06, 400),
        0.008 + 0.045 / (1 + np.exp(-(steps - 240) / 20)),
    )
    for noise in noises:
        curves = [fall + noise * np.random.default_rng(s).normal(size=400) for s in range(100)]
        assert sum(map(bool, map(spikes, curves))) <= 5


@pytest.mark.parametrize("size", [1.0, 1e200, 1e308, -1.7e308])
@pytest.mark.parametrize("count", [1, 2, 11, 60, 300])
def test_no_statistic_overflows_into_a_warning_or_a_wrong_number(size, count):
    share = np.random.default_rng(count).uniform(0.5, 1, count)
    step = np.arange(count, dtype=float)
    for values in (share * size, share * size * np.where(step % 2, 1, -1)):
        exact = sorted(map(Fraction, values.tolist()))
        middle = (exact[(count - 1) // 2] + exact[count // 2]) / 2
        assert median(values) == pytest.approx(float(middle), rel=1e-12)
        assert abs(end_value(values) or 0) <= abs(size)
        assert mad(values) <= 2 * abs(size)
        slope(step, values, share), spikes(values), spike_score(values), running_median(values, 10)
    assert [i for i, _ in spikes(share * size)] == [i for i, _ in spikes(share * np.sign(size))]
