"""Pictures over the steps of training: loss, gradients of three blocks, share still finite."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lnexp.figures import frames, layerframes
from lnexp.figures.canvas import legend_beside, legend_of_all
from lnexp.figures.drawing import (
    SweepFrames,
    cell_words,
    label_left,
    multiples,
    nothing,
    stacked,
    title_cell,
)
from lnexp.figures.over_layers import NO_LAYERS
from lnexp.figures.panels import lane_rows, over_steps
from lnexp.figures.scale import scale_for
from lnexp.figures.style import entries, hues_and_dashes, literal, note, palette, strokes
from lnexp.messages import amount
from lnexp.results.axes import dress
from lnexp.results.statistics import survival
from lnexp.results.tables import column

LINES_MEAN = "Lines: median over the seeds still finite; bands: smallest to largest."
THREADS = "Thin lines: runs that ended early, one by one."
FINITE = (
    "Steps: share of the runs (seeds) without a NaN or Inf in loss, gradient or parameters so "
    "far; bars at the right: 95 % (Wilson) of the last share, in the order of the legend; a run "
    "that ended otherwise counts as long as it was there."
)
BLOCKS = {"first": "#0072B2", "middle": "#E69F00", "last": "#000000"}


def loss(sweep: SweepFrames) -> Figure:
    what = "loss over steps"
    dressed = dress(sweep.runs, sweep.look)
    values = dressed.merge(frames.measured(sweep.steps, "loss", ["run", "step"]), on="run")
    absent = frames.not_shown(dressed, values["run"])
    if not len(values):
        return nothing(sweep, what, "no loss was recorded in any run", absent)
    line = ["facet", "series", "hue", "dash"]
    curves = frames.over_seeds(values, [*line, "step"])
    ended = frames.marks(values[["run", *line, "step", "value"]], sweep.ended, line)
    references = frames.references(sweep.runs, "ln_v", "h1")
    finite = values["value"][np.isfinite(values["value"])]
    high = max([1.0, *references.values()])
    kind = "log" if len(finite) and finite.max() > 8 * high else "linear"
    scale = scale_for(
        values["value"].to_numpy(dtype=float),
        kind,
        lanes=len(lane_rows(ended)),
        include=tuple(references.values()),
    )
    fig, panels, more = stacked(dressed["facet"], 9.5, 3.4, sharex=True)
    for facet, ax in panels.items():
        here = dressed[dressed["facet"] == facet]
        over_steps(
            curves[curves["facet"] == facet],
            ax,
            ended=ended[ended["facet"] == facet],
            threads=values[(values["facet"] == facet) & values["run"].isin(sweep.ended["run"])],
            labels=frames.tally(here, sweep.ended, values["run"], "series"),
            references=references,
            scale=scale,
            **hues_and_dashes(dressed),
        )
        ax.set(ylabel="loss (nats)", title=literal(facet))
        legend_beside(ax)
    threads = THREADS if len(sweep.ended) else ""
    return sweep.title(fig, what, LINES_MEAN, threads, absent, more)


def gradient_over_steps(sweep: SweepFrames) -> Figure:
    what = "gradient norm of the first, middle and last block, before clipping"
    depth = layerframes.depths(sweep.runs, sweep.layers)
    blocks = layerframes.three_blocks(sweep.layers, depth)
    values = sweep.cells[["run", "facet"]].merge(blocks, on="run")
    absent = frames.not_shown(sweep.cells, values["run"])
    if not len(values):
        return nothing(sweep, what, NO_LAYERS, absent)
    values["series"] = values["where"] + " block"
    values["hue"] = values["dash"] = values["where"]
    keys = ["facet", "series", "hue", "dash"]
    curves = frames.over_seeds(values, [*keys, "step"])
    ended = frames.marks(values, sweep.ended, keys)
    scale = scale_for(values["value"].to_numpy(dtype=float), "log", lanes=len(lane_rows(ended)))
    shown = values["run"].unique().tolist()
    words = cell_words(sweep, shown)
    fig, panels, more = multiples(sweep, shown, 2.9, sharex=True)
    for cell, ax in panels.items():
        here = values[values["facet"] == cell]
        over_steps(
            curves[curves["facet"] == cell],
            ax,
            ended=ended[ended["facet"] == cell],
            threads=here[here["run"].isin(sweep.ended["run"])],
            colours=BLOCKS,
            dashes=strokes(list(BLOCKS)),
            scale=scale,
        )
        blocks = depth.reindex(here["run"].unique()).max()
        named = layerframes.blocks_in_words(int(blocks)) if len(here) else {}
        ends = [f"{where}: {block}" for where, block in named.items()]
        title_cell(ax, cell, words[cell], *ends)
    label_left(panels.values(), "gradient norm")
    legend_of_all(list(panels.values()))
    threads = THREADS if len(sweep.ended) else ""
    return sweep.title(fig, what, LINES_MEAN, threads, absent, more)


def still_finite_over_steps(sweep: SweepFrames) -> Figure:
    what = "share of runs still finite"
    dressed = dress(sweep.runs, sweep.look)
    lives = _lives(sweep.runs)
    absent = frames.not_shown(dressed, lives)
    if not lives:
        return nothing(sweep, what, "no run has made a step", absent)
    curves = _survival_curves(lives, dressed)
    fig, panels, more = stacked(curves["facet"], 9.5, 3.0, sharex=True)
    for facet, ax in panels.items():
        still_finite(curves[curves["facet"] == facet], ax, **hues_and_dashes(dressed))
        ax.set_title(literal(facet))
        legend_beside(ax)
    whole = (curves["share"] == 1).all()
    words = f"Every value of {amount(len(lives), 'run')} stayed finite." if whole else FINITE
    return sweep.title(fig, what, words, absent, more)


Lives = Mapping[str, tuple[int, int | None]]


def _lives(runs: pd.DataFrame) -> Lives:
    """Of each run with a step: its steps, and the step in which a bad value was born."""
    done, born = (frames.split(column(runs, key))[0] for key in ("steps_done", "first_bad_step"))
    return {
        run: (int(steps), int(bad) if np.isfinite(bad) else None)
        for run, steps, bad in zip(column(runs, "run"), done, born, strict=True)
        if np.isfinite(steps) and steps > 0
    }


def _survival_curves(lives: Lives, dressed: pd.DataFrame) -> pd.DataFrame:
    """facet, series, hue, dash, step, share, low, high, and words: '7 of 10 finite at the end'."""
    keys, rows = ["facet", "series", "hue", "dash"], []
    for key, group in dressed[dressed["run"].isin(lives)].groupby(keys, sort=False):
        done, bad = zip(*(lives[run] for run in group["run"]), strict=True)
        words = f"{bad.count(None)} of {amount(len(bad), 'run')} finite"
        rows += [(*key, p.step, p.share, p.low, p.high, words) for p in survival(done, bad)]
    return pd.DataFrame(rows, columns=[*keys, "step", "share", "low", "high", "words"])


def still_finite(
    frame: pd.DataFrame,
    ax: Axes,
    *,
    colours: Mapping[str, str] | None = None,
    dashes: Mapping[str, tuple] | None = None,
) -> Axes:
    """A falling step line for each series, and its interval."""
    colours = colours or palette(frame["hue"])
    dashes = dashes or strokes(frame["dash"])
    labels, more = entries(frame["series"], dict(zip(frame["series"], frame["words"], strict=True)))
    last = float(frame["step"].max())
    for i, (name, rows) in enumerate(frame.groupby("series", sort=False)):
        colour, (line, _) = colours[rows["hue"].iloc[0]], dashes[rows["dash"].iloc[0]]
        ax.plot(
            rows["step"], rows["share"], color=colour, linestyle=line, label=labels.get(name),
            drawstyle="steps-post",
        )  # fmt: skip
        end = rows.iloc[-1]  # bands would hide one another: the interval stands beside its line
        beside = [last * (1.02 + 0.012 * i)] * 2
        ax.plot(beside, [end["low"], end["high"]], color=colour, linestyle=line)
        if end["share"] == 0:  # where the line ends on the axis
            ax.plot([end["step"]], [0], color=colour, marker="X", markeredgecolor="black")
    note(ax, more)
    ax.set(ylim=(-0.03, 1.03), ylabel="share finite", xlabel="steps done")
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    return ax
