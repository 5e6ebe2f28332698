"""Heat maps, phase diagrams, knobs, the stream and update ratios: frames against naive loops."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from lnexp.figures import heat, knobs, layerframes, phase
from lnexp.figures.canvas import house_style
from lnexp.figures.drawing import SweepFrames
from lnexp.figures.frames import endings
from lnexp.figures.overview import Fitting, over_axis, places
from lnexp.figures.plots import PICTURES
from lnexp.results.axes import Look, choose_look
from tests.figures import plot_frames


def fresh_axes():
    return Figure(figsize=(6, 4)).subplots()


def sweep(made: plot_frames.Made, **wishes) -> SweepFrames:
    return SweepFrames(*made.frames(), name="made", **wishes)


def draw(made: plot_frames.Made, kind: str, size: str = "paper", **wishes) -> Figure:
    with house_style(size):
        figure = PICTURES[kind](sweep(made, **wishes))
        figure.draw_without_rendering()
    return figure


def test_boxes_cover_a_mask_exactly_once():
    rng = np.random.default_rng(0)
    for _ in range(50):
        mask = rng.random((rng.integers(1, 7), rng.integers(1, 9))) < 0.6
        covered = np.zeros(mask.shape, dtype=int)
        for left, right, low, high in heat.boxes(mask):
            covered[low:high, left:right] += 1
        assert (covered == mask).all()


def test_a_heat_map_shows_logarithms_and_keeps_zero_nan_and_inf_apart():
    values = [[1e-3, 10.0, 0.0], [np.nan, np.inf, 1.0]]
    rows = [("r", (0, 5, 9)[i], layer, values[layer][i]) for layer in (0, 1) for i in range(3)]
    frame = pd.DataFrame(rows, columns=["run", "step", "layer", "value"])
    ax = heat.heat(frame, fresh_axes())
    (mesh,) = ax.collections
    shown = mesh.get_array()
    assert shown[0][:2].tolist() == [-3, 1] and shown[1][2] == 0
    assert np.ma.getmaskarray(shown).tolist() == [[False, False, True], [True, True, False]]
    hatches = [patch.get_hatch() for patch in ax.patches if patch.get_width() > 0]
    assert sorted(hatches) == sorted(look[1] for look in heat.APART.values())
    assert [p.get_label() for p in ax.patches if p.get_width() == 0] == ["exactly 0", "NaN", "Inf"]
    assert len({look[1] for look in heat.APART.values()}) == 3  # told apart in grey print


def test_many_readings_are_thinned_but_the_first_that_is_not_finite_stays():
    steps = np.arange(5000)
    value = np.where(steps == 4321, np.inf, 1.0)
    frame = pd.DataFrame({"run": "r", "step": steps, "layer": 0, "value": value})
    ax = heat.heat(frame, fresh_axes())
    (mesh,) = ax.collections
    assert heat.READINGS <= mesh.get_array().size <= heat.READINGS + 1
    assert np.ma.getmaskarray(mesh.get_array()).sum() == 1


def test_the_run_shown_is_the_median_seed_and_a_nan_ranks_worst():
    made = plot_frames.Made(["model.depth"])
    for seed, gap in enumerate((-0.5, -0.9, np.nan, -0.7)):
        ends = [np.nan] if np.isnan(gap) else [3.0]
        made.run({}, seed=seed, loss=[4.0, *ends], grads=plot_frames.norms(4, 2, 1), end_gap=gap)
    runs, steps, _, _ = made.frames()
    chosen = heat.median_runs(runs, sweep(made).cells, endings(runs, steps))
    assert chosen.to_dict("records") == [{"facet": "", "run": "run0", "seed": "0", "of": 4}]
    assert "seed 0, the median of 4 runs" in words(draw(made, "gradient_heat"))


def words(figure: Figure) -> str:
    return "\n".join(" ".join(t.get_text().split()) for t in figure.findobj(Text) if t.get_text())


def test_more_cells_than_fit_are_counted():
    text = words(draw(plot_frames.thirty(), "gradient_heat"))
    assert "24 of 30 cells shown, spread over the grid; and 6 more." in " ".join(text.split("\n"))


def test_a_phase_tile_has_the_most_frequent_verdict_and_p_failure_of_the_decided():
    runs = plot_frames.mixed().frames()[0]
    found = phase.counts(runs, "model.placement", "model.depth", ())
    for row in found.itertuples():
        cell = runs[(runs["model.depth"] == int(row.row)) & (runs["model.placement"] == row.column)]
        naive = Counter(v or s for v, s in zip(cell["verdict"], cell["status"], strict=True))
        assert {naive[o] for o in row.top} == {max(naive.values())}
        assert row.n == len(cell)
        assert row.failures == sum(naive[v] for v in ("nonfinite", "stalled", "lost", "diverged"))
        assert row.decided == row.failures + naive["learned"] + naive["spiked"]
    text = words(draw(plot_frames.mixed(), "phase"))
    assert "nonfinite P(failure) 1.00 n 4, 3 decided" in text
    assert "pending undecided n 2" in text
    assert "Nowhere the most frequent: stalled (1 run), failed (1 run)." in text.replace("\n", " ")


def test_a_tie_divides_its_tile():
    made = plot_frames.Made(["model.depth", "train.lr"])
    for depth in (2, 4):
        for lr in (0.1, 0.2):
            for seed, verdict in enumerate(("learned", "nonfinite")):
                made.run({"model.depth": depth, "train.lr": lr}, seed=seed, verdict=verdict)
    ax = draw(made, "phase").axes[0]
    assert {round(p.get_width(), 2) for p in ax.patches if p.get_height() > 0} == {0.49}
    assert {t.get_text() for t in ax.findobj(Fitting)} == {"P(failure) 0.50\nn 2"}
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0.1", "0.2"]  # lr along x
    assert [t.get_text() for t in ax.get_yticklabels()] == ["2", "4"]  # depth upwards
    assert ax.get_ylim()[0] < ax.get_ylim()[1]


def test_an_eps_of_zero_stands_beside_the_log_axis():
    ax = fresh_axes()
    place = places(["0", "1e-08", "1e-05"], ax)
    assert place["0"] < place["1e-08"] < place["1e-05"]
    assert place["1e-08"] == np.log2(1e-8)
    (band,) = ax.patches
    assert band.get_x() <= place["0"] <= band.get_x() + band.get_width() < place["1e-08"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "1e-08", "1e-05"]
    assert not (fresh := fresh_axes()).patches and places(["1e-08", "1e-05"], fresh)


def test_unstable_runs_keep_their_loss_and_have_a_mark_at_the_top_besides():
    made = plot_frames.four_fates("train.lr")
    runs = made.frames()[0]
    points = pd.DataFrame(
        {"run": ["run0", "run3"], "value": [2.3, 4.57], "kind": ["", ""], "series": "a"}
    )
    marked = knobs.with_unstable(points, runs)
    assert marked["kind"].tolist() == ["", "", "unstable"]
    assert marked["run"].tolist() == ["run0", "run3", "run3"]
    assert marked["value"].tolist()[:2] == [2.3, 4.57] and np.isnan(marked["value"][2])


def test_the_largest_stable_rate_has_a_ring_around_its_median():
    frame = pd.DataFrame(
        [("r", x, v, "", "a", "", "") for x, v in (("0.1", 2.0), ("0.1", 3.0), ("0.2", 4.0))],
        columns=["run", "x", "value", "kind", "series", "hue", "dash"],
    )
    ax = over_axis(frame, fresh_axes(), ringed={"a": "0.1"})
    rings = [line for line in ax.lines if line.get_markersize() == 13]
    assert [list(ring.get_ydata()) for ring in rings] == [[2.5]]


def test_update_ratios_are_root_sums_over_root_sums():
    layers = pd.DataFrame(
        [
            ("r", 0, 0, "attn", 3.0, 6.0),
            ("r", 0, 0, "mlp", 4.0, 8.0),
            ("r", 0, 0, "wq", 99.0, 99.0),  # part of attn already
            ("r", 0, 1, "attn", 1.0, 0.0),  # no weights: no ratio
            ("r", 1, 0, "attn", np.inf, 1.0),
        ],
        columns=["run", "step", "layer", "part", "update_norm", "weight_norm"],
    )
    found = layerframes.update_ratios(layers)
    assert found[["step", "layer", "value"]].values.tolist() == [[0, 0, 0.5], [1, 0, np.inf]]


def test_the_stream_is_read_after_the_mlp_and_its_gradient_before_attention():
    rows = [(0, -1, "embed"), (0, 0, "attn"), (0, 0, "mlp"), (0, 1, "norm"), (0, 1, "head")]
    layers = pd.DataFrame(
        [("r", *row, float(i)) for i, row in enumerate(rows)],
        columns=["run", "step", "layer", "part", "act_rms"],
    )
    stream = layerframes.sublayer("act_rms", "mlp")(layers).set_index("layer")["value"]
    assert stream.to_dict() == {-1: 0.0, 0: 2.0, 1: 3.0}
    before = layerframes.sublayer("act_rms", "attn")(layers).set_index("layer")["value"]
    assert before.to_dict() == {-1: 0.0, 0: 1.0, 1: 3.0}


def test_a_facet_that_is_asked_for_gets_panels():
    runs, _, _, axes = plot_frames.quickstart(seeds=1, steps=1).frames()
    look = choose_look(runs, axes, facet="model.depth")
    assert look == Look("model.placement", "model.residual", ("model.depth",))
    made = plot_frames.quickstart(seeds=1, steps=10)
    titles = {"model.depth": ["depth 2", "depth 8", "depth 24"], "model.placement": ["pre", "post"]}
    for facet, expected in titles.items():
        for kind in ("loss", "survival", "verdicts"):
            figure = draw(made, kind, facet=facet)
            assert [ax.get_title() for ax in figure.axes] == expected, kind
    # Along x goes another axis than the one that has the panels.
    figure = draw(made, "end_gap", facet="model.depth")
    assert {ax.get_xlabel() for ax in figure.axes} == {"placement"}
    assert len(figure.axes) == 3


@pytest.mark.parametrize("kind", PICTURES)
def test_letters_of_a_slide_are_larger(kind):
    full = kind in ("stream_by_layer", "matrix_by_layer", "branch_by_layer")  # level full's
    made = plot_frames.alike(1.0, 1) if full else plot_frames.quickstart(seeds=1, steps=10)
    sizes = {}
    for size in ("paper", "slide"):
        figure = draw(made, kind, size)
        width = figure.get_size_inches()[0]
        texts = [t for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()]
        sizes[size] = np.median([t.get_fontsize() for t in texts]) / width
    assert sizes["slide"] > 1.1 * sizes["paper"]
