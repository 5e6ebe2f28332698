from math import inf, isnan, nan

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lnexp.measure.nonfinite import StepReading, exact_norm, mended, norms, reading_events, total
from lnexp.measure.probes import fetch


def norms_of(tensors):
    return mended(fetch(norms(tensors))[0], tensors)


@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=20))
def test_a_norm_is_that_of_fp64_whatever_the_size_of_its_elements(values):
    tensor = torch.tensor(values, dtype=torch.float32)
    (ours,), _ = norms_of([tensor])
    wide = np.array(values, dtype=np.float32).astype(np.longdouble)
    assert ours == pytest.approx(float(np.sqrt((wide**2).sum())), rel=1e-5, abs=0)


def test_zero_means_that_every_element_is_zero():
    below_fp32_squares = torch.full((4,), 1e-30)
    (small, zero), _ = norms_of([below_fp32_squares, torch.zeros(4)])
    assert small == pytest.approx(2e-30) and zero == 0


def test_an_overflowing_norm_of_finite_elements_is_told_from_an_inf_element():
    finite, infinite = torch.full((4,), 1e30), torch.tensor([1.0, inf, 1.0])
    values, overflowed = norms_of([finite, infinite])
    assert values == [pytest.approx(2e30), inf] and overflowed == [0]


def test_nan_and_inf_are_told_apart():
    values, _ = norms_of([torch.tensor([1.0, nan]), torch.tensor([1.0, -inf])])
    assert isnan(values[0]) and values[1] == inf
    assert isnan(total([inf, nan, 1.0])) and total([inf, 1.0]) == inf
    assert isnan(exact_norm(torch.tensor([inf, nan])))


def test_a_total_is_the_root_of_summed_squares_even_beyond_the_squares_of_a_float():
    assert total([3.0, 4.0]) == 5.0
    assert total([3e200, 4e200]) == pytest.approx(5e200)


def test_events_name_what_happened_once_a_kind():
    gradients = StepReading(
        loss=nan, unigram_loss=1.0, norms=[nan, 0.0, inf, 1.0, nan], grad_norm=nan,
        overflowed=[3], nonfinite=5,
    )  # fmt: skip
    found = [
        (e.phase, e.kind, e.module, e.detail) for e in reading_events(2, list("abcde"), gradients)
    ]
    assert found == [
        ("backward", "norm_overflow", "d", "finite elements"),
        ("backward", "zero_gradient", "b", "every element is 0"),
        ("loss", "nan", "loss", ""),
        ("backward", "nan", "e", "in 2 of 5 tensors"),
        ("backward", "inf", "c", "in 1 of 5 tensors"),
    ]
