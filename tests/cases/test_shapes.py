"""C9: width and heads that do not fit together, all of them, before anything is built."""

import pytest

from lnexp.config.schema import Model
from lnexp.config.sweep import load_sweep
from lnexp.messages import UserError
from lnexp.model.check import architecture
from tests.runs.small import write_config

REMEDY = "width must be a multiple of heads; list the pairs that fit under cases:"


def test_all_bad_pairs_of_a_grid_are_one_line_and_nothing_trains(refused):
    (line,) = refused("sweep:\n  model.width: [64, 96, 100]\n  model.heads: [3, 4]\n")
    assert line == f"small.yaml:2: model.width x model.heads: 64 x 3, 100 x 3: {REMEDY}"


@pytest.mark.parametrize(
    "text, words, place",
    [
        ("model: {heads: 3}\n", [], "small.yaml:1"),
        ("model: {width: 63}\n", [], "small.yaml:1"),
        ("model: {heads: 3}\nsweep:\n  model.width: [63, 64]\n", [], "small.yaml:3"),
        ("model: {width: 64}\ncases:\n- {}\n- {model.heads: 3}\n", [], "small.yaml:1"),
        ("seeds: [0]\n", ["-s", "model.heads=[3,4]"], "-s model.heads=[3,4]"),
        ("seeds: [0]\n", ["-s", "model.width=4", "-s", "model.heads=8"], "-s model.width=4"),
    ],
)
def test_wherever_the_two_are_written(refused, text, words, place):
    (line,) = refused(text, *words)
    assert line.startswith(f"{place}: model.width x model.heads: ")
    assert "width must be a multiple of heads" in line


def test_pairs_that_fit_are_chosen_under_cases_and_never_silently(names):
    pairs = [(64, 4), (96, 3), (96, 4), (100, 4)]
    cases = ", ".join(f"{{model.width: {w}, model.heads: {h}}}" for w, h in pairs)
    found = names(f"data: {{source: markov}}\ncases: [{cases}]\n")
    assert len(found) == 4 and sum("-w96-" in name for name in found) == 2


def test_what_is_accepted_is_what_can_be_built_and_nothing_is_rounded(tmp_path):
    numbers = list(range(1, 13))
    with pytest.raises(UserError) as caught:
        load_sweep(
            write_config(tmp_path, f"sweep: {{model.width: {numbers}, model.heads: {numbers}}}")
        )
    (line,) = caught.value.problems
    bad = [(w, h) for w in numbers for h in numbers if w % h]
    assert f"{bad[0][0]} x {bad[0][1]}" in line and line.count(" x ") == 40 + 1
    assert f"and {len(bad) - 40} more" in line
    for width in numbers:
        for heads in (h for h in numbers if width % h == 0):
            config = Model(depth=1, width=width, heads=heads, context=4, bias=False, affine=False)
            load_sweep(write_config(tmp_path, f"model: {{width: {width}, heads: {heads}}}"))
            assert architecture(config, 5).parameters == 12 * width**2 + (5 + 4 + 5) * width
