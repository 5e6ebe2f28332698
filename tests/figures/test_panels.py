"""Frames and panels one by one: a statistic against a naive loop, an artist against its value."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from lnexp.figures import frames, layerframes, style
from lnexp.figures.overview import over_axis, places
from lnexp.figures.panels import by_layer, over_steps
from lnexp.figures.scale import scale_for
from lnexp.results import axes as grid
from lnexp.results.axes import Look, choose_look, in_order, value_text
from tests.figures import plot_frames


def fresh_axes():
    return Figure(figsize=(6, 4)).subplots()


def test_not_measured_and_nan_are_never_mixed_up():
    values, known = frames.split(plot_frames.nullable([1.0, None, np.nan, np.inf]))
    assert known.tolist() == [True, False, True, True]
    assert np.isnan(values[2]) and np.isinf(values[3])
    values, known = frames.split(pd.Series([None, "", "nan", "inf", 2.5], dtype=object))
    assert known.tolist() == [False, False, True, True, True] and np.isnan(values[2])
    assert frames.split(pd.Series([np.nan, 1.0]))[1].tolist() == [True, True]
    assert frames.split(pd.Series([1, None], dtype="Int64"))[1].tolist() == [True, False]


def test_median_and_range_are_of_the_finite_runs_and_say_how_many():
    table = {0: [3.0, 1.0, 2.0], 1: [np.nan, 5.0, 1.0], 2: [np.nan, np.inf, np.nan]}
    rows = [("a", step, value) for step, values in table.items() for value in values]
    out = frames.over_seeds(pd.DataFrame(rows, columns=["s", "step", "value"]), ["s", "step"])
    for row in out.itertuples():
        finite = [v for v in table[row.step] if np.isfinite(v)]
        assert (row.n, row.m) == (len(finite), 3)
        if finite:
            naive = (np.median(finite), min(finite), max(finite))
            assert (row.median, row.low, row.high) == naive
        else:
            assert np.isnan(row.median)


def test_a_layer_total_is_the_root_of_the_summed_squares_without_counting_a_matrix_twice():
    made = plot_frames.Made([])
    made.run({"model.depth": 3}, loss=[1.0], grads=np.array([[2.0, 1e-200, np.nan]]))
    totals = layerframes.layer_totals(made.frames()[2]).set_index("layer")["value"]
    assert totals[0] == pytest.approx(2.0) and totals[1] == pytest.approx(1e-200)
    assert np.isnan(totals[2]) and np.isnan(totals[3])
    layers = pd.DataFrame(
        [("r", 0, 0, "attn", np.inf), ("r", 0, 0, "mlp", np.nan)],
        columns=["run", "step", "layer", "part", "grad_norm"],
    )
    assert np.isnan(layerframes.layer_totals(layers)["value"][0])


def test_every_early_end_is_found_and_its_kind_read_from_the_numbers():
    runs, steps, _, _ = plot_frames.mixed().frames()
    found = frames.endings(runs, steps).set_index("run")
    naive = {"run5": ("NaN", 20), "run6": ("non-finite", 9), "run7": ("failed", 29)}
    assert {run: (row.kind, row.step) for run, row in found.iterrows()} == naive


def test_an_infinite_gradient_that_loss_scaling_skipped_ends_no_run():
    runs, steps, _, _ = plot_frames.one_run(steps=3).frames()
    steps["grad_norm"] = plot_frames.nullable([1.0, np.inf, 1.0])
    assert frames.endings(runs, steps)["kind"].tolist() == ["Inf"]
    steps["skipped"] = plot_frames.nullable([0, 1, 0])
    assert frames.endings(runs, steps).empty


def test_a_loss_that_is_nan_once_and_finite_again_is_still_marked():
    made = plot_frames.one_run(steps=20)
    made.steps[14] = (*made.steps[14][:2], np.nan, *made.steps[14][3:])
    runs, steps, _, _ = made.frames()
    found = frames.endings(runs, steps)
    assert found[["kind", "step"]].values.tolist() == [["NaN", 14.0]]
    values = frames.measured(steps, "loss", ["run", "step"])
    mark = frames.marks(values, found).iloc[0]
    assert (mark["step"], mark["value"]) == (13, 4.6)


def curves(rows) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["series", "step", "low", "median", "high"])
    return frame.assign(hue=frame["series"], dash="", n=2, m=2)


def test_an_exact_zero_is_drawn_on_a_named_floor_below_every_other_value():
    frame = curves([("a", 0, 0.0, 0.0, 1e-9), ("a", 1, 1e-9, 1e-3, 1e-1)])
    ax = fresh_axes()
    scale = scale_for(frame[["low", "median", "high"]].to_numpy(), "log")
    assert over_steps(frame, ax, scale=scale) is ax
    drawn = ax.lines[0].get_ydata()
    ticks = {t.get_text(): y for t, y in zip(ax.get_yticklabels(), ax.get_yticks(), strict=True)}
    assert drawn[0] == pytest.approx(ticks["exactly 0"])
    assert ax.get_ylim()[0] < drawn[0] < 1e-9 / 2 and drawn[1] == 1e-3


@pytest.mark.parametrize("value", [0.0, 5e-324, 1e-300, 1e300])
def test_a_log_axis_holds_any_double(value):
    ax = fresh_axes()
    scale = scale_for(np.array([value]), "log")
    scale.dress(ax)
    low, high = ax.get_ylim()
    assert 0 < low < scale.place(np.array([value]))[0] < high < np.inf


def test_a_mark_stands_at_the_last_finite_step_and_above_the_scale_if_there_is_none():
    frame = curves([("a", s, 2.0, 2.0, 2.0) for s in range(7)] + [("b", 0, *[np.nan] * 3)])
    ended = pd.DataFrame(
        [("a", 6, 2.0, "Inf", 7), ("b", 0, np.nan, "NaN", 0)],
        columns=["series", "step", "value", "kind", "bad_step"],
    ).assign(hue=lambda f: f["series"])
    ax = over_steps(frame, fresh_axes(), ended=ended)
    marks = {line.get_marker(): line for line in ax.lines if len(line.get_xdata())}
    assert (marks["^"].get_xdata(), marks["^"].get_ydata()) == ([6], [2.0])
    assert marks["X"].get_xdata() == [0]
    above = ax.transAxes.transform((0, marks["X"].get_ydata()[0]))[1]
    assert ax.transData.transform((0, 2.0))[1] < above < ax.transAxes.transform((0, 1))[1]
    labels = ax.get_legend_handles_labels()[1]
    assert {"last finite value before NaN", "last finite value before Inf"} <= set(labels)


def test_a_profile_names_its_ends_and_marks_a_layer_that_is_nan():
    runs, _, layers, _ = plot_frames.four_fates().frames()
    profile = layerframes.profiles(layers[layers["run"] == "run1"], [0])
    frame = frames.over_seeds(profile, ["when", "layer"])
    broken = layerframes.nonfinite_counts(profile, ["when", "layer"])
    ax = by_layer(frame, fresh_axes(), depth=4, broken=broken)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["embed", "1", "2", "3", "4", "head"]
    crosses = [line for line in ax.lines if line.get_marker() == "X" and len(line.get_xdata())]
    assert len(crosses[0].get_xdata()) == 6  # embedding, four blocks, head


def test_a_line_of_medians_never_bridges_a_depth_at_which_all_failed():
    rows = [("r1", "2", 1.0, ""), ("r2", "4", np.nan, "NaN"), ("r3", "8", 3.0, "")]
    frame = pd.DataFrame(rows, columns=["run", "x", "value", "kind"])
    frame = frame.assign(series="a", hue="", dash="")
    ax = over_axis(frame, fresh_axes())
    assert [str(y) for y in ax.lines[0].get_ydata()] == ["1.0", "nan", "3.0"]
    crosses = [line for line in ax.lines if line.get_marker() == "X" and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in crosses] == [[4.0]]


def test_a_long_line_is_drawn_with_every_stretch_of_its_extremes_and_gaps_and_a_short_one_whole():
    def drawn(steps):
        step = np.arange(steps)
        median = np.sin(step / 50) + np.random.default_rng(0).normal(size=steps)
        median[steps // 3 : steps // 3 + 40] = np.nan
        frame = pd.DataFrame(
            {"step": step, "median": median, "low": median - 1, "high": median + 1}
        )
        ax = over_steps(frame.assign(series="a", hue="", dash="", n=1, m=1), fresh_axes())
        return frame, ax.lines[0].get_xydata()

    frame, line = drawn(50_000)
    assert len(line) < 12_000
    assert set(line[~np.isnan(line[:, 1]), 1]) <= set(frame["median"])
    for start in range(0, 50_000, 500):  # ten times as long as a stretch
        own = frame["median"].iloc[start : start + 500]
        within = line[(line[:, 0] >= start) & (line[:, 0] < start + 500), 1]
        assert np.isnan(within).any() == own.isna().any()
        assert (np.nanmin(within), np.nanmax(within)) == (own.min(), own.max())
    frame, line = drawn(2000)
    np.testing.assert_array_equal(line[:, 1], frame["median"])


def test_values_are_in_order_of_size_and_print_as_they_are_written():
    assert [value_text(v) for v in (1e-5, 0.001, 24, 1.0, True, [0.9, 0.95], None)] == [
        "1e-05", "0.001", "24", "1", "true", "[0.9, 0.95]", "not set",
    ]  # fmt: skip
    assert value_text(1 / 3) == repr(1 / 3)
    assert in_order(["10", "auto", "9", "1e-05", "9"]) == ["1e-05", "9", "10", "auto"]
    assert list(places(["1", "2", "4"], fresh_axes()).values()) == [1, 2, 4]
    assert list(places(["2", "8", "24"], fresh_axes()).values())[:2] == [1, 3]
    assert list(places(["pre", "post"], fresh_axes()).values()) == [0, 1]


def test_depth_is_colour_placement_style_and_the_rest_panels_unless_asked():
    runs, _, _, axes = plot_frames.quickstart(seeds=1, steps=1).frames()
    assert choose_look(runs, axes) == Look("model.depth", "model.placement", ("model.residual",))
    by = choose_look(runs, axes, by="model.residual")
    assert (by.colour, by.style, by.facets) == ("model.residual", "model.placement", (grid.DEPTH,))
    along = choose_look(runs, axes, taken=grid.DEPTH)
    assert (along.colour, along.style, along.facets) == ("model.placement", "model.residual", ())
    swapped = choose_look(runs, axes, style="model.depth")
    assert swapped.style == grid.DEPTH and swapped.colour != grid.DEPTH
    assert choose_look(runs, []) == Look()


def test_few_words_get_colours_for_any_eye_and_numbers_a_ramp_that_survives_grey_print():
    assert list(style.palette(["post", "pre"]).values()) == list(style.OKABE_ITO[:2])
    ramp = [style.to_rgb(colour) for colour in style.palette(["2", "8", "24"]).values()]
    grey = [0.299 * r + 0.587 * g + 0.114 * b for r, g, b in ramp]
    assert grey == sorted(grey) and min(np.diff(grey)) > 0.15
