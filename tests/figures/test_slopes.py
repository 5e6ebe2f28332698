"""The expected slope is drawn beside what was measured, and nowhere else; the table's words."""

from io import StringIO

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from lnexp.claims.tests import Spread, spread
from lnexp.figures import slopes
from lnexp.figures.canvas import house_style
from lnexp.figures.drawing import SweepFrames
from lnexp.figures.layerframes import sublayer
from lnexp.probe.reading import Reach
from lnexp.probe.show import cell_sheet, depth_text, spread_text, trend_text
from tests.figures.plot_frames import SETTINGS

AXES = ["model.placement", "model.depth"]


def sweep(**other) -> SweepFrames:
    """Pre-LN as the theory has it: variance 1 + l, last gradient N^(-1/2); two seeds alike."""
    runs, layers = [], []
    for depth in (4, 8, 16):
        for seed in (0, 1):
            run = f"d{depth}s{seed}"
            settings = {**SETTINGS, "model.depth": depth, **other}
            runs.append({"sweep": "made", "run": run, "folder": run, "seed_init": seed,
                         "seed_data": seed, "status": "finished", **settings})  # fmt: skip
            layers.append((run, 0, -1, "embed", 1.0, 1.0))
            for layer in range(depth):
                layers.append((run, 0, layer, "mlp", 1.0, np.sqrt(2 + layer)))
                layers.append((run, 0, layer, "w2", depth**-0.5, np.nan))
    names = ["run", "step", "layer", "part", "grad_norm", "act_rms"]
    frame = pd.DataFrame(layers, columns=names).assign(sweep="made")
    return SweepFrames(
        pd.DataFrame(runs), pd.DataFrame(columns=["run", "step"]), frame, AXES, "made"
    )


def lines(ax) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        " ".join(line.get_label().split()): (line.get_xdata(), line.get_ydata())
        for line in ax.get_lines()
    }


def test_the_expected_slope_lies_on_what_follows_the_law():
    with house_style():
        figure = slopes.picture(sweep())
    over_depth, over_blocks = figure.axes
    drawn = lines(over_depth)
    slope = next(label for label in drawn if "slope -0.500" in label)
    x, y = drawn["expected slope -0.5 (Xiong 2020, theorem 1)"]
    assert list(x) == [4, 8, 16]
    np.testing.assert_allclose(y, drawn[slope][1], rtol=1e-9)
    drawn = lines(over_blocks)
    x, y = drawn["expected slope 1 (Xiong 2020, lemma 2)"]
    assert list(x) == list(range(1, 17))  # beside the deepest
    np.testing.assert_allclose(y, x, rtol=1e-9)


@pytest.mark.parametrize(
    "other", [{"model.init": "gpt2"}, {"model.norm": "rmsnorm"}, {"model.placement": "sandwich"}]
)
def test_no_slope_is_drawn_for_settings_without_a_law(other):
    assert slopes.lacks_laws(sweep(**other)) and not slopes.lacks_laws(sweep())
    with house_style():
        figure = slopes.picture(sweep(**other))
    assert not figure.axes[0].get_lines() and "no law" not in figure.axes[0].get_title()


def reach(law: str, rate: float, depths: list[int | None], others: dict | None = None) -> Reach:
    counts = {law: len(depths) - sum((others or {}).values()), **(others or {})}
    return Reach(counts, spread([rate]), spread([0.99]), {"fp16": depths})


def test_a_depth_is_told_only_where_most_seeds_agree_on_the_law():
    grows = reach("exponential", 2.31, [21, 22, 21])
    assert trend_text(grows) == "2.31-fold a block, R2 0.99"
    assert depth_text(grows, "fp16") == "21 .. 22"
    assert depth_text(reach("power", 0.5, [None, None]), "fp16") == "none below 10^6"
    assert depth_text(reach("power", 2, [9, None, 9]), "fp16") == "9 in 2 of 3"
    assert depth_text(reach("flat", 1, [None]), "fp16") == "-"
    split = reach("exponential", 1.3, [80, None], {"flat": 1})
    assert depth_text(split, "fp16") == "-"
    assert trend_text(split) == "seeds disagree: 1 exponential, 1 flat"


def test_what_is_missing_or_not_finite_is_counted_beside_the_mean():
    assert spread_text(spread([1.0, 1.0])) == "1"
    assert spread_text(spread([1.0, 3.0, None])) == "2 [-10.7, 14.7] 2/3"
    assert spread_text(spread([float("nan"), None])) == "not finite (1/2)"
    assert spread_text(Spread(0, 2)) == "-"


def test_a_cell_without_a_reading_says_so():
    from lnexp.probe.reading import Profile

    empty = Profile({"model.placement": "none"}, 2, 100, None, [])
    out = StringIO()
    Console(file=out, width=80).print(cell_sheet("s", empty, [0], []))
    assert "s: none (2 runs)" in out.getvalue() and "no reading" in out.getvalue()


def test_a_matrix_has_its_own_gradient_and_not_that_of_its_blocks_norms():
    rows = [("r", 0, -1, "embed", 9.0), ("r", 0, 0, "norm", 5.0), ("r", 0, 0, "wq", 1.0),
            ("r", 0, 0, "w2", 2.0), ("r", 0, 1, "norm", 7.0), ("r", 0, 1, "head", 8.0)]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["run", "step", "layer", "part", "grad_norm"])
    frame["part"] = frame["part"].astype("category")  # as tables from disk have it
    for part, own in (("wq", 1.0), ("w2", 2.0)):
        found = sublayer("grad_norm", part)(frame).set_index("layer")["value"]
        assert found.to_dict() == {-1: 9.0, 0: own, 1: 7.0}
