"""How long runs stay finite."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lnexp.figures.over_time import survival
from lnexp.results.statistics import wilson


def test_without_early_ends_it_is_the_share_still_finite_with_wilsons_interval():
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


def test_no_runs_have_no_curve():
    assert survival([], []) == []


@given(st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=20))
def test_it_is_the_product_of_the_shares_that_pass_each_step(runs):
    """Written again, step by step, from the definition."""
    points = survival([n for n, _ in runs], [n - 1 if failed else None for n, failed in runs])
    for point in points:
        factors = []
        for step in range(1, point.step + 1):
            there = [failed and n == step for n, failed in runs if n >= step]
            factors.append(1 - sum(there) / len(there))
        assert point.share == pytest.approx(prod(factors))
        assert 0 <= point.low <= point.share <= point.high <= 1
