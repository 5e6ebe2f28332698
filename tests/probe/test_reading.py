"""Trends over depth and the depths they lead to, against closed forms."""

from math import ceil, inf, log, nan

import numpy as np
import pytest

from lnexp.claims.tests import spread
from lnexp.probe.reading import FORMATS, Trend, depths, trend


def test_the_formats_ends_are_those_of_the_types_themselves():
    assert FORMATS["fp16"] == (
        float(np.finfo(np.float16).max), float(np.finfo(np.float16).smallest_subnormal)
    )  # fmt: skip
    assert FORMATS["fp32"] == (
        float(np.finfo(np.float32).max), float(np.finfo(np.float32).smallest_normal)
    )  # fmt: skip
    torch = pytest.importorskip("torch")
    bf16 = torch.finfo(torch.bfloat16)
    assert FORMATS["bf16"] == (bf16.max, bf16.smallest_normal)


def test_a_stream_that_doubles_in_every_block_overflows_where_two_to_that_power_does():
    values = [2.0**block for block in range(1, 13)]
    found = trend(values)
    assert found.law == "exponential" and found.rate == pytest.approx(2)
    assert found.r2 == pytest.approx(1)
    assert depths(values, found) == {"fp16": 16, "bf16": 128, "fp32": 128}


def test_a_gradient_that_halves_underflows_where_the_last_number_of_the_format_is():
    values = [0.5**block for block in range(1, 13)]
    found = trend(values, backward=True)
    assert found.law == "exponential" and not found.grows
    assert depths(values, found) == {"fp16": 25, "bf16": 127, "fp32": 127}


def test_growth_as_a_root_is_a_power_law_and_reaches_no_end_below_a_million_blocks():
    values = [block**0.5 for block in range(1, 97)]
    found = trend(values)
    assert found.law == "power" and found.rate == pytest.approx(0.5)
    assert set(depths(values, found).values()) == {None}
    steep = [float(block**2) for block in range(1, 97)]
    assert depths(steep, trend(steep))["fp16"] == ceil(65504**0.5)


def test_a_backward_power_law_is_one_of_the_block_and_keeps_the_last_ones_value():
    """G_l = 0.01 (N / l): the first block's is 0.01 N."""
    values = [0.01 * 48 / block for block in range(48, 0, -1)]
    found = trend(values, backward=True)
    assert found.law == "power" and found.rate == pytest.approx(-1) and found.grows
    assert found.reaches(7.0) == pytest.approx(700)
    vanishing = [1e-3 * (block / 48) ** 2 for block in range(48, 0, -1)]
    down = trend(vanishing, backward=True)
    assert not down.grows and down.reaches(1e-9) == pytest.approx(1000)
    assert depths(vanishing, down)["fp16"] == ceil((1e-3 / 2**-24) ** 0.5)


def test_noise_is_flat_and_what_neither_law_fits_is_unclear():
    noise = 1 + 0.05 * np.sin(np.arange(1, 40.0) * 7)
    assert trend(list(noise)).law == "flat"
    bumpy = [1.0, 50.0, 1.0, 40.0, 2.0, 60.0, 1.0]
    assert trend(bumpy).law == "unclear"
    for values in (list(noise), bumpy):
        assert set(depths(values, trend(values)).values()) == {None}
    assert trend([1.0, 2.0]) == trend([]) == trend([None] * 9) == Trend("")


def test_a_slow_exponential_is_not_extrapolated_from_less_than_a_tenfold_change():
    assert trend([1.1**block for block in range(1, 10)]).law == "power"
    assert trend([1.1**block for block in range(1, 90)]).law == "exponential"


def test_what_was_measured_goes_before_what_is_predicted():
    values = [1e2, 1e4, 1e6, 1e8, inf, nan]
    found = trend(values)
    assert found.rate == pytest.approx(100)  # of the finite ones
    assert depths(values, found) == {"fp16": 3, "bf16": 5, "fp32": 5}
    assert depths([1.0, 0.0], Trend("")) == dict.fromkeys(FORMATS, 2)


def test_spread_is_the_t_interval_of_the_mean_and_of_ratios_that_of_the_logarithms():
    found = spread([1.0, 2.0, 3.0, None, nan])
    half = 4.302652729749 * 1 / 3**0.5  # t of 2 degrees of freedom
    assert (found.n, found.of, found.nonfinite) == (3, 5, 1)
    assert (found.mean, found.median, found.smallest, found.largest) == (2, 2, 1, 3)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half))
    ratios = spread([0.01, 1.0], ratios=True)
    half = 12.7062047361747 * (log(100) / 2)
    assert ratios.mean == pytest.approx(0.1)
    assert ratios.high == pytest.approx(0.1 * np.exp(half))
    assert spread([0.0, 1.0], ratios=True).mean == 0.5  # 0 has no logarithm
    assert spread([5.0]).low is None and spread([None]).mean is None
