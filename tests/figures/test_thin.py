"""What is left out of a chart, and what never is."""

import base64
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lnexp.figures import thin

ANY = st.sampled_from([0.0, math.nan, math.inf, 1e-300, 1e-5, 0.5, 3.0, 1e300])


@given(st.lists(ANY, min_size=1, max_size=400), st.integers(3, 40))
def test_a_thinned_curve_keeps_its_ends_its_extremes_and_what_is_not_finite(values, most):
    curve = np.array(values)
    kept = thin.curve(curve, most)
    assert kept[0] == 0 and kept[-1] == len(curve) - 1
    assert (np.diff(kept) > 0).all() and len(kept) <= max(4 * most, 2 * most + 2)
    finite = curve[np.isfinite(curve)]
    if len(finite):
        assert {finite.min(), finite.max()} <= set(curve[kept])
    for special in (np.isnan, np.isinf):
        bad = np.flatnonzero(special(curve))
        assert not len(bad) or bad[0] in kept


def test_a_short_curve_is_drawn_whole():
    assert thin.curve(np.arange(2 * thin.CURVE)).tolist() == list(range(2 * thin.CURVE))


@given(st.integers(1, 500), st.integers(3, 50))
def test_stretches_cover_everything_once_with_both_ends_alone(count, most):
    parts = thin.stretches(count, most)
    assert [i for a, b in parts for i in range(a, b)] == list(range(count))
    assert len(parts) <= most or count <= most
    assert parts[0] == (0, 1) and parts[-1] == (count - 1, count)


def naive(values: list[float | None]) -> float | None:
    """What one cell must show of these readings."""
    there = [v for v in values if v is not None]
    for special in (math.isnan, math.isinf, lambda v: v == 0):
        found = [v for v in there if special(v)]
        if found:
            return found[0]
    return max(there, default=None)


@given(st.data())
def test_each_cell_of_a_map_is_what_a_plain_loop_finds(data):
    rows, steps = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 60))
    cell = st.one_of(st.none(), ANY)
    table = data.draw(
        st.lists(st.lists(cell, min_size=steps, max_size=steps), min_size=rows, max_size=rows)
    )
    measured = np.array([[v is not None for v in row] for row in table])
    values = np.array([[0.0 if v is None else v for v in row] for row in table])
    drawn = thin.thin_map(np.arange(rows) - 1, 5 * np.arange(steps), values, measured, 40)
    for r in range(rows):
        for c, (first, last) in enumerate(drawn.steps):
            want = naive(table[r][first // 5 : last // 5 + 1])
            assert drawn.measured[r, c] == (want is not None)
            if want is not None:
                assert drawn.values[r, c] == want or (
                    math.isnan(want) and math.isnan(drawn.values[r, c])
                )


def decoded(told: dict) -> np.ndarray:
    """Codes back to numbers: NaN, Inf, 0, and -1 where nothing was measured."""
    codes = np.frombuffer(base64.b64decode(told["codes"]), dtype="<u2").astype(float)
    values = 10 ** (told["low"] + codes / thin.LEVELS * (told["high"] - told["low"]))
    for code, value in ((thin.NAN, np.nan), (thin.INF, np.inf), (thin.ZERO, 0), (thin.ABSENT, -1)):
        values[codes == code] = value
    return values.reshape(len(told["layers"]), len(told["steps"]))


def test_a_map_survives_its_two_bytes_a_cell():
    values = np.array([[1e-12, 3.7, np.nan], [0.0, np.inf, 2e5]])
    measured = np.array([[True, True, True], [True, True, True]])
    drawn = thin.thin_map(np.arange(2), np.arange(3), values, measured, 100)
    assert np.allclose(decoded(thin.encode(drawn)), values, rtol=1e-3, atol=0, equal_nan=True)
    assert not drawn.thinned


def test_a_map_without_one_finite_value_and_one_of_a_single_value_can_be_encoded():
    for values in (np.full((2, 3), np.nan), np.zeros((1, 1)), np.full((2, 2), 0.25)):
        drawn = thin.thin_map(
            np.arange(len(values)),
            np.arange(values.shape[1]),
            values,
            np.ones(values.shape, bool),
            100,
        )
        assert np.allclose(decoded(thin.encode(drawn)), values, equal_nan=True)


def test_all_maps_of_a_page_share_one_budget():
    assert thin.cells_each(1) == thin.cells_each(36) == 6000
    assert 100 * thin.cells_each(100) <= thin.CELLS
