"""The search for the edge of stability, against an oracle that knows where it is."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lnexp.boundary.search import (
    Knob,
    Tally,
    bracket,
    crossings,
    edge,
    other_crossings,
    seeds_wanted,
    slow_values,
    wanted,
)

Oracle = Callable[[float, int], str]  # value, seed -> unstable, stable or undecided


def search(knob: Knob, oracle: Oracle) -> dict[float, Tally]:
    tallies: dict[float, Tally] = {}
    while todo := wanted(knob, tallies):
        for value, more in todo.items():
            for _ in range(more):
                tally = tallies.get(value, Tally())
                word = oracle(value, tally.ran)
                tallies[value] = replace(tally, **{word: getattr(tally, word) + 1})
    return tallies


def above(limit: float) -> Oracle:
    return lambda value, seed: "unstable" if value > limit else "stable"


LR = Knob(1e-5, 1.0)


@given(st.floats(-4.9, -0.1).map(lambda power: 10**power))
def test_the_edge_lies_in_a_bracket_as_narrow_as_asked(limit):
    found = search(LR, above(limit))
    low, high = bracket(LR, found)
    assert edge(LR, found) == (low, high)
    assert low <= limit < high and high / low <= LR.resolution
    assert other_crossings(LR, found) == []


@given(st.floats(-4.9, -0.1).map(lambda power: 10**power))
def test_it_costs_less_than_a_third_of_the_full_grid(limit):
    runs = sum(tally.ran for tally in search(LR, above(limit)).values())
    assert 3 * runs <= LR.full_grid * LR.seeds


def test_a_knob_that_helps_has_its_edge_found_from_the_other_side():
    found = search(LR, lambda value, seed: "stable" if value > 3e-3 else "unstable")
    low, high = bracket(LR, found)
    assert low <= 3e-3 < high and found[low].is_unstable and not found[high].is_unstable


def test_none_in_range_is_no_bracket():
    for limit in (1e-9, 1e9):
        found = search(LR, above(limit))
        assert bracket(LR, found) is None and set(found) == set(LR.scan())


def test_a_hole_is_reported_beside_the_lowest_edge_which_alone_is_narrowed():
    hole = Knob(1.0, 1e5, points=6)
    found = search(hole, lambda v, seed: "unstable" if 5 < v < 500 or v > 5e4 else "stable")
    low, high = bracket(hole, found)
    assert 5 / 1.25 <= low <= 5 <= high <= 5 * 1.25
    assert other_crossings(hole, found) == [(100.0, 1000.0), (1e4, 1e5)]


def test_whole_numbers_are_found_exactly_where_the_resolution_allows():
    depth = Knob(4, 200, whole=True, resolution=1.02)
    low, high = bracket(depth, search(depth, above(37)))
    assert low <= 37 < high and high / low <= 1.03 and low == int(low)
    fine = Knob(2, 64, whole=True, resolution=1.001)
    assert bracket(fine, search(fine, above(37))) == (37, 38)


@pytest.mark.parametrize("seeds", [1, 2, 3, 4, 5, 8])
def test_a_value_is_settled_exactly_when_no_further_seed_can_change_it(seeds):
    for u, s, x in product(range(seeds + 1), repeat=3):
        if u + s + x > seeds:
            continue
        tally, left = Tally(u, s, x), seeds - u - s - x
        ends = {
            replace(tally, unstable=u + a, stable=s + b).is_unstable
            for a, b in product(range(left + 1), repeat=2)
            if a + b <= left
        }
        more = seeds_wanted(tally, seeds)
        assert (more == 0) == (len(ends) == 1 or left == 0), tally
        assert 0 <= more <= left


def test_three_seeds_that_agree_cost_two():
    assert seeds_wanted(Tally(), 3) == 2
    assert seeds_wanted(Tally(unstable=2), 3) == seeds_wanted(Tally(stable=2), 3) == 0
    assert seeds_wanted(Tally(unstable=1, stable=1), 3) == 1


def test_slow_runs_are_never_unstable_and_those_at_the_edge_are_named():
    found = search(LR, lambda v, seed: "unstable" if v > 1e-2 else "undecided")
    low, high = bracket(LR, found)
    assert low <= 1e-2 < high and slow_values(LR, found) == [low]
    found = search(LR, lambda v, seed: "undecided")
    assert bracket(LR, found) is None and slow_values(LR, found) == LR.scan()
    decided = search(LR, above(1e-2))
    assert slow_values(LR, decided) == []


def test_slow_runs_above_the_largest_stable_value_are_named_where_nothing_is_unstable():
    known = {1e-4: Tally(undecided=3), 1e-3: Tally(stable=2), 1e-2: Tally(undecided=3)}
    assert slow_values(Knob(1e-4, 1e-2, points=3, resolution=20), known) == [1e-2]


def test_the_edge_is_a_decided_value_though_slow_ones_lie_nearer():
    known = {1e-3: Tally(stable=2), 1e-2: Tally(undecided=3), 1e-1: Tally(unstable=2)}
    assert edge(Knob(1e-3, 1e-1, points=3, resolution=20), known) == (1e-3, 1e-1)
    assert other_crossings(Knob(1e-3, 1e-1, points=3, resolution=20), known) == []
    helps = {1e-3: Tally(unstable=2), 1e-2: Tally(undecided=3), 1e-1: Tally(stable=2)}
    assert edge(Knob(1e-3, 1e-1, points=3, resolution=20), helps) == (1e-1, 1e-3)
    slow = {1e-3: Tally(undecided=3), 1e-2: Tally(unstable=2)}
    assert edge(Knob(1e-3, 1e-2, points=2, resolution=20), slow) == (None, 1e-2)


def test_crossings_pass_over_values_that_have_not_run():
    assert crossings({1.0: Tally(stable=2), 2.0: Tally(), 4.0: Tally(unstable=2)}) == [(1.0, 4.0)]


def test_what_is_known_already_is_not_asked_for_again():
    found = search(LR, above(2e-3))
    assert wanted(LR, found) == {}
    some = {value: tally for value, tally in found.items() if value in LR.scan()}
    (value,) = wanted(LR, some)
    assert value in found
