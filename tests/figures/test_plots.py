"""Whole sweeps through plot_sweep: files, failures in words, headless, nothing left open."""

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import BboxBase

from lnexp.config.schema import Model, RunConfig
from lnexp.figures import plots
from lnexp.figures.canvas import house_style, legend_beside, page
from lnexp.figures.drawing import SweepFrames
from lnexp.figures.overview import Fitting, verdict_map
from lnexp.figures.plots import PICTURES, plot_sweep
from lnexp.messages import UserError
from lnexp.results.load import load
from lnexp.rows import LayerRow
from tests.figures import plot_frames
from tests.results.folders import curve, step_rows, write_points, write_run

HERE = Path(__file__).parent


def picture(made: plot_frames.Made, kind: str, **wishes) -> Figure:
    with house_style():
        return PICTURES[kind](SweepFrames(*made.frames(), name="made", **wishes))


def draw(made: plot_frames.Made, kind: str, **wishes) -> Figure:
    figure = picture(made, kind, **wishes)
    with house_style():
        figure.draw_without_rendering()
    return figure


def words(figure: Figure) -> str:
    """Every text of the picture, lines joined."""
    return "\n".join(" ".join(t.get_text().split()) for t in figure.findobj(Text) if t.get_text())


def caption(figure: Figure) -> str:
    """The lines above and below the panels as one."""
    return " ".join(text.get_text() for text in figure.texts)


def told(text: str):
    pytest.fail(f"a plot failed: {text}")


MADE = {
    "quickstart": lambda: plot_frames.quickstart(seeds=2, steps=30),
    "four fates": lambda: plot_frames.four_fates("train.lr", "model.eps"),
    "mixed": plot_frames.mixed,
    "one step, one block": plot_frames.one_run,
    "level off": lambda: plot_frames.one_run(steps=5, grads=False),
    "no runs": plot_frames.nothing,
    "all NaN": lambda: plot_frames.alike(np.nan),
    "all zero": lambda: plot_frames.alike(0.0),
    "all NaN in one step": lambda: plot_frames.alike(np.nan, 1),
}


KNOBS = ["lr", "eps"]
STREAM = ["stream_by_layer", "matrix_by_layer", "branch_by_layer"]
LAYERS = ["gradient_by_layer", "gradient_heat", "gradient_over_steps", "update_ratio"]
CANNOT = {
    "quickstart": [*STREAM, "laws", *KNOBS],
    "four fates": [],
    "all NaN": ["update_ratio"],
    "all zero": [],
    "all NaN in one step": ["update_ratio"],
    "mixed": [*STREAM, "laws", *KNOBS],
    "one step, one block": [*STREAM, "laws", *KNOBS, "phase"],
    "level off": [*LAYERS, *STREAM, "laws", *KNOBS, "phase"],
    "no runs": [*LAYERS, *STREAM, "laws", *KNOBS, "phase"],
}


@dataclass(frozen=True)
class Seen:
    """What stands in a picture as it is written."""

    words: str
    marks: set[str]
    boxes: list[tuple[str, BboxBase]]


def seen_in(figure: Figure) -> Seen:
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    lines = [line for ax in figure.axes for line in ax.lines if len(line.get_xdata())]
    marks = {str(line.get_marker()) for line in lines}
    return Seen(words(figure), marks, [(t.get_text(), t.get_window_extent()) for t in texts])


@dataclass(frozen=True)
class Written:
    """What plot_sweep returned, left and said, and what stood in each picture."""

    paths: list[str]
    left: list[str]
    said: list[str]
    seen: dict[str, Seen]


@cache
def written(name: str) -> Written:
    seen: dict[str, Seen] = {}
    savefig = Figure.savefig

    def looks(figure, draft, **how):
        seen[draft.name.split(".")[0]] = seen_in(figure)
        savefig(figure, draft, **how)

    said = []
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as scratch:
        patch.setattr(Figure, "savefig", looks)
        folder, frames = Path(scratch) / "plots", MADE[name]().frames()
        paths = plot_sweep(*frames, folder, name="s", formats=["png"], note=said.append, warn=told)
        left = sorted(path.name for path in folder.iterdir())
    return Written([path.name for path in paths], left, said, seen)


def seen(name: str, kind: str) -> Seen:
    if kind in CANNOT[name]:
        return seen_in(draw(MADE[name](), kind))
    return written(name).seen[kind]


# What another of them nearly repeats, sixteen pictures each.
REPEATS = {"quickstart", "all NaN in one step"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in REPEATS else ()) for name in MADE],
)
def test_every_sweep_gets_every_picture_that_it_can_have(name):
    found = written(name)
    can = [kind for kind in PICTURES if kind not in CANNOT[name]]
    assert found.paths == [f"{kind}.png" for kind in can]
    assert found.left == sorted(found.paths)
    lacking = [kind for kind in PICTURES if kind in CANNOT[name]]
    words = f"s has no {', '.join(lacking)}; --kind with one of them says why"
    assert found.said == ([words] if lacking else [])


@pytest.mark.parametrize("name", MADE)
def test_every_picture_can_be_asked_for(name, tmp_path):
    frames = MADE[name]().frames()
    kinds = [*CANNOT[name], "loss"]
    paths = plot_sweep(*frames, tmp_path, name="s", kinds=kinds, formats=["png"], warn=told)
    assert [p.name for p in paths] == [f"{kind}.png" for kind in PICTURES if kind in kinds]


@pytest.mark.parametrize(
    ("kind", "why"),
    {
        "stream_by_layer": "no run recorded stream RMS: measure.level full does",
        "update_ratio": "no update was read by layer (measure.level off, or no run has made one)",
        "gradient_heat": "no gradient was read by layer (measure.level off, or no run has begun)",
        "lr": "train.lr is no axis",
        "eps": "neither model.eps nor train.adam_eps is an axis",
        "phase": "it takes two axes that vary",
    }.items(),
)
def test_a_picture_that_a_sweep_cannot_have_says_why(kind, why):
    assert why in words(draw(plot_frames.one_run(steps=5, grads=False), kind))


def test_pictures_open_no_window_and_leave_no_figure_whatever_the_environment(tmp_path):
    code = (
        "import sys, pathlib; from tests.figures import plot_frames\n"
        "from lnexp.figures.plots import PICTURES, plot_sweep\n"
        f"out = plot_sweep(*plot_frames.alike(1.0, 1).frames(), pathlib.Path({str(tmp_path)!r}),"
        " name='s', formats=['png'], kinds=list(PICTURES))\n"
        f"assert len(out) == {len(PICTURES)}, out\n"
        "assert 'torch' not in sys.modules and 'tkinter' not in sys.modules\n"
        # Without pyplot there is no list of open figures to leak into.
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    env = os.environ | {"MPLBACKEND": "TkAgg", "DISPLAY": "nowhere:1"}
    env["PYTHONPATH"] = str(HERE.parents[1])
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_failing_plot_never_stops_the_others(tmp_path, monkeypatch):
    def broken(sweep):
        raise RuntimeError("no ink\nleft")

    monkeypatch.setitem(plots.PICTURES, "loss", broken)
    said = []
    frames, kinds = plot_frames.one_run().frames(), list(PICTURES)
    paths = plot_sweep(*frames, tmp_path, name="s", kinds=kinds, formats=["svg"], warn=said.append)
    assert len(paths) == len(PICTURES) - 1
    assert len(said) == 1 and "loss" in said[0] and "RuntimeError: no ink" in said[0]


def test_the_same_results_give_the_same_files(tmp_path):
    kinds = ["loss", "gradient_by_layer", "gradient_heat", "verdicts"]
    for folder in ("a", "b"):
        frames = plot_frames.one_run().frames()
        plot_sweep(*frames, tmp_path / folder, name="s", kinds=kinds, formats=["svg"], warn=told)
    for kind in kinds:
        assert (tmp_path / f"a/{kind}.svg").read_bytes() == (
            tmp_path / f"b/{kind}.svg"
        ).read_bytes()


def test_an_axis_or_format_that_is_not_there_is_named(tmp_path):
    frames = plot_frames.quickstart(seeds=1, steps=2).frames()
    with pytest.raises(UserError, match="--by warmup.*model.depth, model.placement"):
        plot_sweep(*frames, tmp_path, name="s", by="warmup")
    with pytest.raises(UserError, match="gif.*png, svg"):
        plot_sweep(*frames, tmp_path, name="s", formats=["gif"])
    with pytest.raises(UserError, match="--kind los: no kind of plot; there are loss, gradient"):
        plot_sweep(*frames, tmp_path, name="s", kinds=["los"])
    with pytest.raises(UserError, match="--kind: none was named"):
        plot_sweep(*frames, tmp_path, name="s", kinds=[])
    with pytest.raises(UserError, match="--facet model.depth: .* colour or line style"):
        plot_sweep(*frames, tmp_path, name="s", facet="depth", by="model.depth")
    with pytest.raises(UserError, match="--size poster: write paper or slide"):
        plot_sweep(*frames, tmp_path, name="s", size="poster")


@pytest.mark.parametrize("kind", PICTURES)
def test_no_text_that_a_user_wrote_is_read_as_a_formula(kind, tmp_path):
    made = plot_frames.alike(1.0, 1)  # it can have every kind
    for row in made.rows:
        row["model.norm"] = "a_{$x^$"
    figure = picture(made, kind)
    assert all(t.get_text() for t in figure.texts[:2])
    figure.savefig(tmp_path / "x.png")  # an unbalanced formula would raise here
    assert figure.texts[1]._preprocess_math(figure.texts[1].get_text())[1] is False


@pytest.mark.parametrize("kind", PICTURES)
def test_nothing_but_nan_or_zero_is_a_picture_that_says_so(kind):
    nans = seen("all NaN", kind).words
    told = ("NaN", "nonfinite", "0 of 1 run finite", "0 of 2 runs finite", "no update was read")
    assert any(word in nans for word in told), nans
    zeros = seen("all zero", kind).words
    if kind in LAYERS or kind in ("gradient_ratio", *STREAM):
        assert "exactly 0" in zeros


# What stands for each fate: marks (X NaN, ^ Inf, d unstable) and words of the picture.
BORN = ["NaN at step 0", "Inf at step 7"]
FATES = {
    "loss": ("X^", [*BORN, "not finite"]),
    "gradient_by_layer": ("X", [*BORN, "not finite", "exactly 0"]),
    "gradient_heat": ("X^", [*BORN, "NaN", "Inf", "exactly 0"]),
    "gradient_over_steps": ("X^", [*BORN, "not finite", "exactly 0"]),
    "gradient_ratio": ("X", ["1 NaN", "not finite", "exactly 0"]),
    "update_ratio": ("", [*BORN, "no reading", "exactly 0"]),
    "stream_by_layer": ("X", [*BORN, "not finite", "exactly 0"]),
    "matrix_by_layer": ("X", [*BORN, "not finite", "exactly 0"]),
    "branch_by_layer": ("X", [*BORN, "not finite", "exactly 0"]),
    "end_gap": ("X^", ["1 NaN", "1 Inf", "not finite"]),
    "lr": ("X^d", ["1 NaN", "1 Inf", "not finite or unstable", "unstable from 0 on"]),
    "eps": ("X^", ["1 NaN", "1 Inf", "not finite", "nonfinite: 2 runs", "stalled within 40 steps"]),
    "phase": ("", ["nonfinite: 2 runs", "stalled within 40 steps: 1 run", "learned: 1 run"]),
    "verdicts": ("", ["nonfinite: 2 runs", "stalled within 40 steps: 1 run", "learned: 1 run"]),
    "survival": ("X", ["0 of 1 run finite", "1 of 1 run finite"]),
}


@pytest.mark.parametrize("kind", FATES)
def test_all_four_fates_are_in_every_picture(kind):
    assert set(PICTURES) - set(FATES) == {"laws"}  # of single steps before any fate
    found = seen("four fates", kind)
    needed, said = FATES[kind]
    assert set(needed) <= found.marks
    assert [phrase for phrase in said if phrase not in found.words] == []
    for depth in (2, 4, 6, 8):
        assert f"depth {depth}" in found.words or f"\n{depth}\n" in found.words


def test_the_verdict_map_writes_counts_and_shows_a_mix():
    figure = draw(plot_frames.mixed(), "verdicts")
    text = words(figure)
    for cell in ("2 of 2 learned", "1 of 4 stalled", "2 of 4 nonfinite", "1 of 4 failed"):
        assert cell in text
    assert "2 of 2 pending" in text
    assert "stalled within 60 steps: 1 run" in text  # never without its horizon
    widths = {round(p.get_width(), 1) for p in figure.axes[0].patches if p.get_height() > 0}
    assert widths == {1.0, 0.2, 0.5}  # the whole cell, a quarter and a half


def test_runs_without_data_are_named():
    assert "2 of 10 runs not shown: 2 pending." in caption(draw(plot_frames.mixed(), "loss"))
    level_off = plot_frames.one_run(steps=5, grads=False)
    text = words(draw(level_off, "gradient_by_layer"))
    assert "no gradient was read by layer" in text and "1 of 1 run not shown" in text


def test_labels_say_how_many_runs_of_how_many():
    text = words(draw(plot_frames.mixed(), "loss"))
    assert "depth 100, pre: 2 of 2 to the end" in text
    assert "depth 100, post: 1 of 4 to the end; NaN at step 20 (1 run)" in text
    assert "failed after step 29 (1 run)" in text


def test_thirty_runs_have_thirty_colours_and_a_legend_in_order_that_is_cut():
    axes = draw(plot_frames.thirty(), "loss").axes[0]
    curves = [line for line in axes.lines if len(line.get_xdata()) == 30]
    assert len({line.get_color() for line in curves}) == 30
    entries = [t.get_text() for t in axes.get_legend().get_texts()]
    rates = [float(entry.split()[1].rstrip(":")) for entry in entries if entry.startswith("lr")]
    assert rates == sorted(rates) and len(rates) == 12
    assert entries[2].startswith("lr 1e-05: 1 of 1") and entries[-1] == "and 18 more"
    box = axes.get_legend().get_window_extent()
    assert box.x0 >= axes.get_window_extent().x1  # outside: it hides no curve


def test_nothing_is_averaged_over_different_settings():
    figure = draw(plot_frames.quickstart(seeds=2, steps=10), "loss")
    assert [ax.get_title() for ax in figure.axes] == ["with residual", "without residual"]
    entries = [t.get_text() for t in figure.axes[1].get_legend().get_texts()]
    assert entries[2:] == [f"depth {depth}, pre: 2 of 2 to the end" for depth in (2, 8, 24)]


def test_blocks_are_counted_in_words():
    text = words(draw(plot_frames.quickstart(seeds=1, steps=3), "gradient_over_steps"))
    for place in ("first: block 1 of 24 (layer 0)", "middle: block 13 of 24 (layer 12)",
                  "last: block 24 of 24 (layer 23)"):  # fmt: skip
        assert place in text


def test_a_profile_shows_the_steps_asked_for():
    made = plot_frames.quickstart(seeds=1, steps=30)
    asked = words(draw(made, "gradient_by_layer", at_steps=[3, 11]))
    assert {"step 3", "step 11", "last reading of each run"} <= set(asked.split("\n"))
    assert "step 5" not in asked.split("\n")
    assert {"step 0", "step 5", "step 20"} <= set(
        words(draw(made, "gradient_by_layer")).split("\n")
    )


def test_reference_lines_are_the_uniform_guess_and_the_letter_frequencies():
    axes = draw(plot_frames.one_run(steps=5), "loss").axes[0]
    flat = {line.get_label(): line.get_ydata()[0] for line in axes.lines if len(line.get_xdata())}
    assert flat["ln V, a uniform guess: 4.57"] == plot_frames.LN_V
    assert flat["guessing by letter frequency (H1): 3.25"] == plot_frames.H1


def test_the_title_carries_the_settings_it_holds_for():
    figure = draw(plot_frames.quickstart(seeds=2, steps=2), "loss")
    assert figure.texts[0].get_text() == "made: loss over steps"
    assert "init xavier · lr 0.001 · warm-up 0 · 200 steps · batch 8" in words(figure)
    assert "seeds 0, 1" in words(figure)


@pytest.mark.parametrize("kind", PICTURES)
def test_no_text_lies_on_another(kind):
    if kind in CANNOT["quickstart"]:
        found = seen("four fates", kind)
    else:
        found = seen_in(draw(MADE["quickstart"](), kind))
    # Axis labels and ticks that the layout hides have no place on the page.
    shown = {text: box for text, box in found.boxes if box.width > 0}
    for i, (one, a) in enumerate(shown.items()):
        for other, b in list(shown.items())[i + 1 :]:
            assert not _overlap(a, b), f"{one!r} lies on {other!r}"


def _overlap(a, b) -> bool:
    return min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1


def test_a_huge_loss_turns_the_scale_and_stays_in_the_picture():
    made = plot_frames.one_run(steps=5)
    made.steps[2] = (*made.steps[2][:2], 1e30, *made.steps[2][3:])
    made.rows[0]["end_gap"] = 1e30
    axes = draw(made, "loss").axes[0]
    assert axes.get_yscale() == "log" and axes.get_ylim()[1] > 1e30
    assert draw(made, "end_gap").axes[0].get_ylim()[1] > 1e30


def test_categorical_run_columns_do_not_bring_back_absent_runs():
    runs, steps, layers, axes = plot_frames.mixed().frames()
    for frame in (steps, layers):
        frame["run"] = pd.Categorical(frame["run"], categories=list(runs["run"]))
    with house_style():
        figure = PICTURES["loss"](SweepFrames(runs, steps, layers, axes, name="made"))
    assert "2 of 10 runs not shown: 2 pending." in caption(figure)
    assert np.isfinite(figure.axes[0].get_ylim()).all()


def test_results_on_disk_are_drawn_with_the_pending_and_the_nan_run(tmp_path):
    sweep = tmp_path / "made"
    write_points(sweep, [(f"d{d}", 0, {"model.depth": d}) for d in (1, 2, 4)])
    for depth, end in ((1, -0.5), (2, np.nan)):
        loss, unigram = curve(np.linspace(0.5, end, 30) if depth == 1 else [0.5, end])
        layers = [
            LayerRow(step, layer, part, 0.1, 1.0, 0.01, 0.0)
            for step in range(len(loss))
            for layer in range(depth)
            for part in ("attn", "mlp")
        ]
        config = RunConfig(model=Model(depth=depth))
        write_run(sweep, f"d{depth}", config, step_rows(loss, unigram), layers)
    results = load(sweep)
    axes = results.axes["made"]
    paths = plot_sweep(
        results.runs, results.steps(), results.layers(), axes, tmp_path / "plots", name="made",
        formats=["png"], kinds=list(PICTURES), warn=told,
    )  # fmt: skip
    assert len(paths) == len(PICTURES)
    made = SweepFrames(results.runs, results.steps(), results.layers(), axes, name="made")
    with house_style():
        text = caption(PICTURES["loss"](made))
        labels = PICTURES["loss"](made).axes[0].get_legend_handles_labels()[1]
    assert "1 of 3 runs not shown: 1 pending." in text and "lr 0.001" in text
    assert any("NaN at step 1" in " ".join(label.split()) for label in labels)


def split_cells(columns: int, words: list[str]) -> pd.DataFrame:
    return pd.DataFrame(
        [("r", str(c), word, 1) for c in range(columns) for word in words],
        columns=["row", "column", "outcome", "n"],
    )


@pytest.mark.parametrize("columns", [1, 2, 8, 24])
@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_no_count_of_a_verdict_map_leaves_its_slice(columns, parts):
    outcomes = ["learned", "nonfinite", "stalled", "nothing_to_learn", "too_short", "lost",
                "plateau", "diverged"][:parts]  # fmt: skip
    with house_style():
        figure, panels = page(1, 1, 2.8 + 1.3 * columns, 1.4)
        ax = verdict_map(split_cells(columns, outcomes), panels[0, 0])
        legend_beside(ax)
        figure.draw_without_rendering()
    counts = figure.findobj(Fitting)
    assert len(counts) == columns * parts
    for count in counts:
        x, y = count.get_position()
        left, right = (ax.transData.transform((x + s / parts / 2, y))[0] for s in (-1, 1))
        box = count.get_window_extent()
        assert count.get_text() == "" or left <= box.x0 < box.x1 <= right
    if parts <= 4:
        assert all(count.get_text() for count in counts)  # at the least '1/4'


def test_a_file_named_plots_is_said(tmp_path):
    (tmp_path / "plots").write_text("")
    frames = plot_frames.one_run().frames()
    with pytest.raises(UserError, match="plots: the folder of pictures cannot be made"):
        plot_sweep(*frames, tmp_path / "plots", name="s")


def test_a_full_disk_leaves_no_half_picture_and_is_told(tmp_path, monkeypatch):
    def half(figure, draft, **more):
        draft.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", half)
    said = []
    frames = plot_frames.one_run().frames()
    kinds = list(PICTURES)
    assert (
        plot_sweep(*frames, tmp_path, name="s", kinds=kinds, formats=["png"], warn=said.append)
        == []
    )
    assert list(tmp_path.iterdir()) == [] and len(said) == len(PICTURES)


def test_no_format_is_an_error(tmp_path):
    with pytest.raises(UserError, match="--format.*write png, svg, pdf"):
        plot_sweep(*plot_frames.one_run().frames(), tmp_path, name="s", formats=[])


@pytest.mark.parametrize("kind", PICTURES)
def test_losses_near_the_largest_number_are_drawn(kind, tmp_path):
    made = plot_frames.quickstart(seeds=2, steps=12)  # the sum of any two overflows
    made.steps = [(run, step, 1.7e308, 1.7e308, norm) for run, step, _, _, norm in made.steps]
    for row in made.rows:
        row |= {"end_gap": 1.7e308, "grad_ratio_end": 1.7e308}
    picture(made, kind).savefig(tmp_path / "x.png")


def test_the_survival_of_each_cell_is_drawn_with_its_count():
    figure = draw(plot_frames.mixed(), "survival")
    text = words(figure)
    assert "depth 100, post: 2 of 4 runs finite" in text
    assert "depth 4, pre: 2 of 2 runs finite" in text
    assert "2 of 10 runs not shown: 2 pending." in caption(figure)
    (ax,) = figure.axes
    line = next(line for line in ax.lines if "post" in str(line.get_label()))
    # Bad values at steps 9 and 20; the failed run counts until its 30th step.
    assert list(line.get_xdata()) == [0, 10, 21, 60]
    assert list(line.get_ydata()) == pytest.approx([1, 3 / 4, 1 / 2, 1 / 2])


def test_a_sweep_that_stayed_finite_says_so():
    figure = draw(plot_frames.quickstart(seeds=2, steps=3), "survival")
    assert "Every value of 18 runs stayed finite." in caption(figure)
    assert "depth 24, post: 2 of 2 runs finite" in words(figure)
