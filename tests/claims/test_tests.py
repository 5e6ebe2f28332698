"""Intervals and tests under claims, against naive computations and by simulation."""

from itertools import product
from math import comb, exp, gamma, inf, log, pi, sqrt
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lnexp.claims.claims import Bound
from lnexp.claims.tests import (
    between,
    every,
    holm,
    log_slope,
    median_interval,
    share,
    sign_tail,
    sign_test,
    t_quantile,
    t_tail,
    within,
)

HALF = Bound(op=">", value=0.5)


@pytest.mark.parametrize(
    "hits, total, outcome",
    [(3, 3, "undecided"), (4, 4, "holds"), (0, 3, "undecided"), (0, 4, "refuted"),
     (0, 0, "undecided"), (9, 10, "holds"), (8, 10, "undecided"), (1, 10, "refuted")],
)  # fmt: skip
def test_a_share_is_judged_by_wilsons_bounds(hits, total, outcome):
    assert share(hits, 0, total, HALF).outcome == outcome
    if total:
        mirrored = {"holds": "refuted", "refuted": "holds"}.get(outcome, outcome)
        assert share(hits, 0, total, Bound(op="<", value=0.5)).outcome == mirrored
        assert share(total - hits, 0, total, HALF).outcome == mirrored


def test_three_of_three_has_a_lower_bound_of_44_percent_and_four_of_four_of_51():
    assert share(3, 0, 3, HALF).low == pytest.approx(0.4385, abs=1e-4)
    assert share(4, 0, 4, HALF).low == pytest.approx(0.5101, abs=1e-4)


@given(st.integers(1, 40), st.integers(0, 40), st.sampled_from([0.1, 0.5, 0.9, 0.99]))
def test_the_p_value_of_a_share_decides_as_its_interval(total, hits, value):
    found = share(min(hits, total), 0, total, Bound(op=">", value=value))
    assert (found.outcome == "holds") == (found.p_holds <= 0.025)
    assert (found.outcome == "refuted") == (found.p_refuted <= 0.025)


def test_an_open_run_counts_against_holding_and_against_refuting():
    assert share(6, 0, 6, HALF).outcome == "holds"
    assert share(6, 6, 12, HALF).outcome == "undecided"
    assert share(0, 12, 12, HALF).outcome == "undecided"
    assert share(0, 1, 12, HALF).outcome == "refuted"


def test_some_and_not_all_need_one_run_only():
    assert share(1, 0, 10, Bound(op=">", value=0.0)).outcome == "holds"
    assert share(9, 0, 10, Bound(op="<", value=1.0)).outcome == "holds"
    assert share(9, 0, 10, Bound(op=">=", value=1.0)).outcome == "refuted"
    # No share of seen runs shows that none will ever differ; `every` is the form for that.
    assert share(10, 0, 10, Bound(op=">=", value=1.0)).outcome == "undecided"


def test_every_is_refuted_by_one_and_holds_only_when_all_are_in():
    assert every(9, 0, 10, missing=0).outcome == "refuted"
    assert every(9, 1, 10, missing=0).outcome == "undecided"
    assert every(10, 0, 10, missing=1).outcome == "undecided"
    assert every(10, 0, 10, missing=0).outcome == "holds"
    assert every(0, 0, 0, missing=0).outcome == "undecided"
    assert every(9, 0, 10, missing=3).outcome == "refuted"


@pytest.mark.parametrize("total", range(9))
def test_the_sign_test_counts_the_ways_of_tossing_coins(total):
    tosses = list(product((0, 1), repeat=total))
    for hits in range(total + 1):
        share = sum(sum(t) >= hits for t in tosses) / len(tosses)
        assert sign_tail(hits, total) == pytest.approx(share, rel=1e-13)


@pytest.mark.parametrize(
    "differences, value, outcome",
    [
        ([-1.0] * 5, 0.0, "undecided"),  # 1/32
        ([-1.0] * 6, 0.0, "holds"),  # 1/64
        ([1.0] * 6, 0.0, "refuted"),
        ([-1.0] * 6, -1.0, "undecided"),  # all tie
        ([-1.0] * 6 + [0.0] * 50, 0.0, "holds"),  # ties say nothing
        ([-inf] * 3 + [-1.0] * 3, 0.0, "holds"),
        ([-1.0] * 8 + [1.0], 0.0, "holds"),  # 10/512
        ([-1.0] * 7 + [inf], 0.0, "undecided"),  # 9/256
        ([], 0.0, "undecided"),
    ],
)
def test_a_median_difference_is_judged_by_the_exact_sign_test(differences, value, outcome):
    assert sign_test(differences, value).outcome == outcome


@pytest.mark.parametrize("n", range(1, 40))
def test_the_median_interval_is_the_shortest_pair_of_ranks_with_its_confidence(n):
    low, high = median_interval([float(i) for i in range(1, n + 1)])
    if n < 6:
        assert (low, high) == (-inf, inf)
        return
    k = int(low)
    assert high == n + 1 - k
    assert sum(comb(n, i) for i in range(k)) / 2**n <= 0.025
    assert sum(comb(n, i) for i in range(k + 1)) / 2**n > 0.025


@pytest.mark.parametrize(
    "differences, outcome",
    [
        ([0.001, -0.002, 0.003, 0.0, 0.005, -0.01], "holds"),
        ([0.001, -0.002, 0.003, 0.0, 0.005], "undecided"),
        ([0.001, -0.002, 0.003, 0.0, 0.005, 0.02], "undecided"),  # on the margin is not inside
        ([0.1, 0.2, 0.3, 0.1, 0.05, 0.021], "refuted"),
        ([-0.1, -0.2, -inf, -0.1, -0.05, -0.021], "refuted"),
        ([0.1, -0.1, 0.1, -0.1, 0.1, -0.1], "undecided"),
        ([0.0] * 6, "holds"),
        ([0.0] * 5 + [inf], "undecided"),
        ([0.0] * 8 + [inf], "holds"),  # one seed in nine is no median
    ],
)
def test_sameness_needs_the_interval_inside_the_margin(differences, outcome):
    assert within(differences, 0.02).outcome == outcome


@given(st.lists(st.floats(-0.1, 0.1), max_size=30))
def test_the_p_values_of_sameness_decide_as_its_interval(differences):
    found = within(differences, 0.02)
    assert (found.outcome == "holds") == (found.p_holds <= 0.025)
    assert (found.outcome == "refuted") == (found.p_refuted <= 0.025)


def test_students_t_is_the_integral_of_its_density():
    for dof in (1, 2, 3, 4, 5, 10, 29):
        scale = gamma((dof + 1) / 2) / (sqrt(dof * pi) * gamma(dof / 2))
        x = np.linspace(0, 1.7, 20_001)
        density = scale * (1 + x**2 / dof) ** (-(dof + 1) / 2)
        inside = float(np.sum((density[1:] + density[:-1]) / 2) * (x[1] - x[0]))
        assert t_tail(1.7, dof) == pytest.approx(0.5 - inside, abs=1e-8)
        assert t_tail(-1.7, dof) == pytest.approx(0.5 + inside, abs=1e-8)


@pytest.mark.parametrize(
    "dof, table", [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042)]
)
def test_the_quantiles_of_students_t_are_those_of_the_tables(dof, table):
    assert t_quantile(dof) == pytest.approx(table, abs=5e-4)


@given(st.lists(st.floats(-1, 0), min_size=2, max_size=8))
def test_the_p_values_of_a_slope_decide_as_its_interval(slopes):
    found = between(slopes, -0.6, -0.4)
    near = min(abs(found.low + 0.6), abs(found.high + 0.4), abs(found.high + 0.6),
               abs(found.low + 0.4))  # fmt: skip
    if near > 1e-9:
        assert (found.outcome == "holds") == (found.p_holds <= 0.025)
        assert (found.outcome == "refuted") == (found.p_refuted <= 0.025)


def test_one_seed_gives_no_interval():
    assert between([-0.5], -0.6, -0.4).outcome == "undecided"
    assert between([-0.5, -0.5], -0.6, -0.4).outcome == "holds"
    assert between([-0.1, -0.1], -0.6, -0.4).outcome == "refuted"


def test_a_power_law_has_its_exponent_as_slope():
    x = [6.0, 12.0, 24.0, 48.0]
    assert log_slope(x, [3 * v**-0.5 for v in x]) == pytest.approx(-0.5)
    y = [1.0, 3.0, 2.0, 7.0]
    naive = np.polyfit(np.log(x), np.log(y), 1)[0]
    assert log_slope(x, y) == pytest.approx(naive)
    for bad in ([1.0, 0.0, 1.0, 1.0], [1.0, inf, 1.0, 1.0], [1.0, -1.0, 1.0, 1.0]):
        assert log_slope(x, bad) is None
    assert log_slope([2.0, 2.0], [1.0, 2.0]) is None


def test_holm_steps_down():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_rejects_what_its_procedure_rejects(ps):
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    naive: set[int] = set()
    for rank, i in enumerate(order):
        if (len(ps) - rank) * ps[i] > 0.05:
            break
        naive.add(i)
    adjusted = holm(ps)
    assert {i for i, p in enumerate(adjusted) if p <= 0.05} == naive
    assert all(a >= p for a, p in zip(adjusted, ps, strict=True))


# Coverage: how often the interval holds the truth, and how often a wrong claim passes.


@pytest.mark.parametrize("n", [4, 5, 10, 20])
@pytest.mark.parametrize("truth", [0.2, 0.5, 0.8])
def test_wilsons_interval_covers_the_truth_exactly_computed(n, truth):
    chance = [comb(n, k) * truth**k * (1 - truth) ** (n - k) for k in range(n + 1)]
    bounds = [share(k, 0, n, HALF) for k in range(n + 1)]
    covered = sum(c for c, b in zip(chance, bounds, strict=True) if b.low <= truth <= b.high)
    assert covered >= (0.875 if n == 4 else 0.93)  # near 0.95, but for 4 of 4
    if truth == 0.5:
        wrong = sum(c for c, b in zip(chance, bounds, strict=True) if b.outcome == "holds")
        assert wrong <= 0.0625  # 4 of 4: the smallest number of seeds that can decide


@pytest.mark.parametrize("n", [6, 7, 10, 20])
def test_the_median_interval_covers_the_median_of_a_skewed_distribution(n):
    rng = np.random.default_rng(0)
    draws = np.exp(rng.normal(size=(4000, n))).tolist()  # median 1, mean exp(1/2)
    covered = fmean(low <= 1 <= high for low, high in map(median_interval, draws))
    k = next(k for k in range(n) if sign_tail(n - k, n) > 0.025)
    exact = 1 - 2 * sign_tail(n - k + 1, n)
    assert covered == pytest.approx(exact, abs=0.012)
    assert exact >= 0.95


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_interval_of_a_slope_covers_the_true_exponent(n):
    rng = np.random.default_rng(1)
    x = [6.0, 12.0, 24.0, 48.0, 96.0]
    inside = 0
    for _ in range(1500):
        noise = rng.normal(scale=0.1, size=(n, len(x)))
        slopes = [
            log_slope(x, [exp(-0.5 * log(v) + e) for v, e in zip(x, row, strict=True)])
            for row in noise.tolist()
        ]
        found = between([s for s in slopes if s is not None], -0.6, -0.4)
        inside += found.low <= -0.5 <= found.high
    assert inside / 1500 == pytest.approx(0.95, abs=0.018)


def test_a_difference_at_the_margin_passes_as_same_in_at_most_2_5_percent():
    rng = np.random.default_rng(2)
    draws = (0.02 + rng.normal(scale=0.005, size=(4000, 8))).tolist()
    passed = fmean(within(d, 0.02).outcome == "holds" for d in draws)
    assert passed <= 0.025
