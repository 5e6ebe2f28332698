"""Pictures over the steps of training: loss, gradient of three blocks."""

# pandas' own types call every selection "Series | DataFrame | ndarray": nothing to learn there.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportReturnType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

# pandas' own types call every selection "Series | DataFrame | ndarray": nothing to learn there.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportReturnType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lnexp.figures import frames, layerframes
from lnexp.figures.canvas import legend_beside, legend_of_all, page
from lnexp.figures.drawing import (
    FACETS,
    Sweep,
    cell_words,
    cut,
    label_left,
    multiples,
    nothing,
    title_cell,
)
from lnexp.figures.frames import not_shown, split
from lnexp.figures.over_layers import NO_LAYERS
from lnexp.figures.panels import ENTRIES, lane_rows, over_steps, wrapped
from lnexp.figures.scale import scale_for
from lnexp.figures.style import note, palette, plain, spread, strokes
from lnexp.messages import amount
from lnexp.results.axes import dress, level_words
from lnexp.results.statistics import wilson
from lnexp.results.tables import column

LINES_MEAN = "Lines: median over the seeds still finite; bands: smallest to largest."
THREADS = "Thin lines: runs that ended early, one by one."


def loss(sweep: Sweep) -> Figure:
    what = "loss over steps"
    dressed, runs = dress(sweep.runs, sweep.look), sweep.runs
    values = dressed.merge(frames.measured(sweep.steps, "loss", ["run", "step"]), on="run")
    absent = frames.not_shown(dressed, values["run"])
    if not len(values):
        return nothing(sweep, what, "no loss was recorded in any run", absent)
    line = ["facet", "series", "hue", "dash"]
    curves = frames.over_seeds(values, [*line, "step"])
    ended = frames.marks(values[["run", *line, "step", "value"]], sweep.ended, line)
    references = _references(runs)
    finite = values["value"][np.isfinite(values["value"])]
    high = max([1.0, *references.values()])
    kind = "log" if len(finite) and finite.max() > 8 * high else "linear"
    scale = scale_for(
        values["value"].to_numpy(dtype=float),
        kind,
        lanes=len(lane_rows(ended)),
        include=tuple(references.values()),
    )
    every = list(dict.fromkeys(dressed["facet"]))
    facets = spread(every, FACETS)
    fig, panels = page(len(facets), 1, 9.5, 3.4, sharex=True)
    for facet, ax in zip(facets, panels[:, 0], strict=True):
        here = dressed[dressed["facet"] == facet]
        over_steps(
            curves[curves["facet"] == facet],
            ax,
            ended=ended[ended["facet"] == facet],
            threads=values[(values["facet"] == facet) & values["run"].isin(sweep.ended["run"])],
            labels=frames.tally(here, sweep.ended, values["run"], "series"),
            colours=palette(list(dressed["hue"])),
            dashes=strokes(list(dressed["dash"])),
            references=references,
            scale=scale,
        )
        ax.set(ylabel="loss (nats)", title=plain(facet))
        legend_beside(ax)
    threads = THREADS if len(sweep.ended) else ""
    more = cut(len(facets), len(every), "panels")
    return sweep.title(fig, what, LINES_MEAN, threads, absent, more)


def _references(runs: pd.DataFrame) -> dict[str, float]:
    """ln V and H1 in words, once for each value the sweep's texts have."""
    found = {}
    for key, name in (
        ("ln_v", "ln V, a uniform guess"),
        ("h1", level_words(runs)),
    ):
        known = frames.measured(runs.assign(step=0), key, ["step"])["value"] if len(runs) else []
        for level in sorted({round(float(v), 4) for v in known if np.isfinite(v)}):
            found[f"{name}: {level:.3g}"] = level
    return found


BLOCKS = {"first": "#0072B2", "middle": "#E69F00", "last": "#000000"}


def gradient_over_steps(sweep: Sweep) -> Figure:
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


# How long runs stay finite: the share still finite after each step, with its interval.


@dataclass(frozen=True)
class Point:
    """After `step` steps (0: before the first)."""

    step: int
    share: float
    low: float
    high: float
    at_risk: int  # runs that got so far


def survival(done: Sequence[int], bad: Sequence[int | None]) -> list[Point]:
    """Kaplan and Meier's estimate: the product over steps of 1 - failures / runs that were there.

    `done`: steps of each run; `bad`: the step whose values were the first that were not finite.
    A run that ended without one counts as long as it was there. Interval: Wilson's, for
    at_risk / share runs (Dorey and Korn 1987); without early ends that is all of them. The points
    are where the estimate falls, the first and the last step.
    """
    ends = [steps if born is None else born + 1 for steps, born in zip(done, bad, strict=True)]
    if not ends:
        return []
    share, points = 1.0, [_point(0, 1.0, len(ends), len(ends))]
    for step in sorted({born + 1 for born in bad if born is not None}):
        there = sum(end >= step for end in ends)
        fell = sum(born is not None and born + 1 == step for born in bad)
        total = there / share
        share *= 1 - fell / there
        points.append(_point(step, share, total, there - fell))
    last = max(ends)
    if points[-1].step < last:  # nothing fell since: nothing more is known
        points.append(replace(points[-1], step=last, at_risk=sum(end >= last for end in ends)))
    return points


def _point(step: int, share: float, total: float, left: int) -> Point:
    return Point(step, share, *wilson(share * total, total), left)


# Survival: the share of a cell's runs that are still finite, over the steps.


HELP = (
    "Steps: share of the runs (seeds) without a NaN or Inf in loss, gradient or parameters so "
    "far; bars at the right: 95 % (Wilson) of the last share, in the order of the legend; a run "
    "that ended otherwise counts as long as it was there."
)


def curves(runs: pd.DataFrame, dressed: pd.DataFrame) -> pd.DataFrame:
    """facet, series, hue, dash, step, share, low, high, and words: '7 of 10 finite at the end'."""
    lives = {run: (done, born) for run, done, born in _lives(runs) if done > 0}
    there = dressed[dressed["run"].isin(lives)]
    rows = []
    for (facet, series), group in there.groupby(["facet", "series"], sort=False):
        done, bad = zip(*(lives[run] for run in group["run"]), strict=True)
        words = f"{bad.count(None)} of {amount(len(bad), 'run')} finite"
        for p in survival(done, bad):
            look = (group["hue"].iloc[0], group["dash"].iloc[0])
            rows.append((facet, series, *look, p.step, p.share, p.low, p.high, words))
    names = ["facet", "series", "hue", "dash", "step", "share", "low", "high", "words"]
    return pd.DataFrame(rows, columns=names)


def _lives(runs: pd.DataFrame) -> Iterator[tuple[str, int, int | None]]:
    """Of each run: its name, its steps, and the step in which a bad value was born."""
    done, known = split(column(runs, "steps_done"))
    born, failed = split(column(runs, "first_bad_step"))
    for i, run in enumerate(runs["run"] if "run" in runs else []):
        bad = int(born[i]) if failed[i] and np.isfinite(born[i]) else None
        yield run, int(done[i]) if known[i] and np.isfinite(done[i]) else 0, bad


def survival_picture(sweep: Sweep) -> Figure:
    what = "share of runs still finite"
    dressed = dress(sweep.runs, sweep.look)
    frame = curves(sweep.runs, dressed)
    begun = [run for run, done, _ in _lives(sweep.runs) if done > 0]
    absent = not_shown(dressed, begun)
    if not len(frame):
        return nothing(sweep, what, "no run has made a step", absent)
    every = list(dict.fromkeys(frame["facet"]))
    facets = spread(every, FACETS)
    fig, panels = page(len(facets), 1, 9.5, 3.0, sharex=True)
    for facet, ax in zip(facets, panels[:, 0], strict=True):
        still_finite(
            frame[frame["facet"] == facet],
            ax,
            colours=palette(list(dressed["hue"])),
            dashes=strokes(list(dressed["dash"])),
        )
        ax.set_title(plain(facet))
        legend_beside(ax)
    whole = (frame["share"] == 1).all()
    words = f"Every value of {amount(len(begun), 'run')} stayed finite." if whole else HELP
    return sweep.title(fig, what, words, absent, cut(len(facets), len(every), "panels"))


def still_finite(
    frame: pd.DataFrame,
    ax: Axes,
    *,
    colours: Mapping[str, str] | None = None,
    dashes: Mapping[str, tuple] | None = None,
) -> Axes:
    """A falling step line for each series, and its interval."""
    colours = colours or palette(list(frame["hue"]))
    dashes = dashes or strokes(list(frame["dash"]))
    names = list(dict.fromkeys(frame["series"]))
    named = spread(names, ENTRIES)
    last = float(frame["step"].max())
    beside = {name: last * (1.02 + 0.012 * i) for i, name in enumerate(names)}
    for name, rows in frame.groupby("series", sort=False):
        colour, (line, _) = colours[rows["hue"].iloc[0]], dashes[rows["dash"].iloc[0]]
        label = wrapped(f"{name}: {rows['words'].iloc[0]}") if name in named else None
        ax.plot(
            rows["step"], rows["share"], color=colour, linestyle=line, label=label,
            drawstyle="steps-post",
        )  # fmt: skip
        end = rows.iloc[-1]  # bands would hide one another: the interval stands beside its line
        ax.plot([beside[name]] * 2, [end["low"], end["high"]], color=colour, linestyle=line)
        if rows["share"].iloc[-1] == 0:  # where the line ends on the axis
            ax.plot([end["step"]], [0], color=colour, marker="X", markeredgecolor="black")
    if len(names) > len(named):
        note(ax, f"and {len(names) - len(named)} more")
    ax.set(ylim=(-0.03, 1.03), ylabel="share finite", xlabel="steps done")
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    return ax
