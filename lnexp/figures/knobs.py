"""Pictures of one knob: end loss against the learning rate, end gap and verdicts against an eps."""

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lnexp.boundary import reading
from lnexp.figures import frames
from lnexp.figures.canvas import legend_beside, page
from lnexp.figures.drawing import FACETS, SweepFrames, cut, nothing, stacked
from lnexp.figures.over_grid import scale_of
from lnexp.figures.overview import RING, over_axis, verdict_map
from lnexp.figures.style import hues_and_dashes, literal, spread
from lnexp.results.axes import as_good_as, axis_texts, dress, in_order, varying
from lnexp.results.tables import column

EPS = ("model.eps", "train.adam_eps")
LR_HELP = (
    "Dots: one run each; lines: medians over the seeds that stayed finite. Marks at the top: runs "
    "that did not, and unstable ones (diverged, lost, or stalled for another reason than being "
    "frozen, too slow or warming up), whose losses are dots as well. Largest stable: up to it no "
    "learning rate has more than half of its decided runs unstable; useful: end loss within 0.1 "
    "nat of the best; sensitivity: mean over the grid of min(loss, first loss) minus the best."
)
EPS_HELP = (
    "Dots: one run each; lines: medians over the seeds that went finite to their end. Below: the "
    "verdicts of the same runs. An eps of 0 stands beside the log axis."
)


def lacks_lr(sweep: SweepFrames) -> str:
    return "" if reading.LR in varying(sweep.runs, sweep.axes) else "train.lr is no axis"


def lacks_eps(sweep: SweepFrames) -> str:
    return "" if _eps_axes(sweep) else "neither model.eps nor train.adam_eps is an axis"


def _eps_axes(sweep: SweepFrames) -> list[str]:
    return [axis for axis in EPS if axis in varying(sweep.runs, sweep.axes)]


def lr(sweep: SweepFrames) -> Figure:
    what, knob = "end loss over learning rate", reading.LR
    if why := lacks_lr(sweep):
        return nothing(sweep, what, why)
    dressed, texts = dress(sweep.runs, sweep.look_beside(knob)), axis_texts(sweep.runs, knob)
    points = frames.points(sweep.runs, dressed, texts, "end_loss", sweep.ended)
    points = lost_ends(points, dressed, sweep, texts)
    absent = frames.not_shown(dressed, points["run"])
    if not len(points):
        return nothing(sweep, what, "no run has an end loss yet", absent)
    marked = with_unstable(points, sweep.runs)
    references = frames.references(sweep.runs, "h1")
    scale = scale_of(marked, references, log=False)
    rows = scale.lanes and max(scale.lanes, 3)  # room for two lines of words
    scale = replace(scale, lanes=rows, above="not finite\nor unstable")
    fig, panels, more = stacked(dressed["facet"], 9.5, 3.4, "settings")
    for facet, ax in panels.items():
        members = dressed[dressed["facet"] == facet]
        counted = frames.counted(points[points["facet"] == facet], members)
        edges, words = _edges(sweep.runs, members)
        over_axis(
            marked[marked["facet"] == facet],
            ax,
            values=in_order(texts),
            labels={name: f"{counted[name]}; {words[name]}" for name in words},
            references=references,
            ringed=edges,
            scale=scale,
            **hues_and_dashes(dressed),
        )
        if edges:
            ax.plot([], [], color="black", label="largest stable learning rate", **RING)
        ax.set(ylabel="end loss (nats)", xlabel="learning rate", title=literal(facet))
        legend_beside(ax)
    return sweep.title(fig, what, LR_HELP, absent, more)


def lost_ends(
    points: pd.DataFrame, dressed: pd.DataFrame, sweep: SweepFrames, texts: list[str]
) -> pd.DataFrame:
    """With the runs that are not finite and have no end loss at all: NaN, of their own kind."""
    ended = sweep.ended[sweep.ended["kind"].isin(frames.NONFINITE)]
    more = dressed[dressed["run"].isin(set(ended["run"]) - set(points["run"]))]
    if not len(more):
        return points
    x = dict(zip(sweep.runs["run"], texts, strict=True))
    kinds = ended.set_index("run")["kind"]
    rows = more[["run", "hue", "dash", "facet", "series"]].assign(
        x=more["run"].map(x), value=np.nan, kind=more["run"].map(kinds)
    )
    return pd.concat([points, rows], ignore_index=True)


def with_unstable(points: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """A second row, without a value, for each unstable run that has one: its mark at the top."""
    bad = reading.unstable(runs).fillna(False).to_numpy(dtype=bool)
    these = points["run"].isin(runs["run"][bad]) & (points["kind"] == "")
    marks = points[these].assign(kind="unstable", value=np.nan)
    return pd.concat([points, marks], ignore_index=True) if len(marks) else points


def _edges(runs: pd.DataFrame, members: pd.DataFrame) -> tuple[dict[str, str], dict[str, str]]:
    """Of each series its largest stable value (where there is one), and its stability in words."""
    edges, words = {}, {}
    for name, group in members.groupby("series", sort=False):
        cell = runs[runs["run"].isin(group["run"])]
        edge = reading.largest_stable(cell)
        texts = dict(zip(column(cell, reading.LR), axis_texts(cell, reading.LR), strict=True))
        if edge.stable is not None:
            edges[name] = texts[edge.stable]
        words[name] = reading.in_words(cell)
    return edges, words


def eps(sweep: SweepFrames) -> Figure:
    what = "end gap and verdicts over eps"
    if why := lacks_eps(sweep):
        return nothing(sweep, what, why)
    axes = _eps_axes(sweep)
    drawn = {axis: dress(sweep.runs, sweep.look_beside(axis)) for axis in axes}
    wanted = [
        (axis, facet) for axis, frame in drawn.items() for facet in dict.fromkeys(frame["facet"])
    ]
    shown = spread(wanted, FACETS // 2)
    fig, panels = page(2 * len(shown), 1, 9.5, 2.9)
    for i, (axis, facet) in enumerate(shown):
        members = drawn[axis][drawn[axis]["facet"] == facet]
        _eps_pair(sweep, axis, drawn[axis], members, panels[2 * i, 0], panels[2 * i + 1, 0])
    more = cut(len(shown), len(wanted), "settings")
    return sweep.title(fig, what, EPS_HELP, more)


def _eps_pair(
    sweep: SweepFrames,
    axis: str,
    dressed: pd.DataFrame,
    members: pd.DataFrame,
    above: Axes,
    below: Axes,
) -> None:
    texts = axis_texts(sweep.runs, axis)
    points = frames.points(sweep.runs, dressed, texts, "end_gap", sweep.ended)
    points = lost_ends(points, dressed, sweep, texts)
    here = points[points["run"].isin(members["run"])]
    references = as_good_as(sweep.runs)
    values, facet = in_order(texts), literal(members["facet"].iloc[0])
    over_axis(
        here,
        above,
        values=values,
        labels=frames.counted(here, members),
        references=references,
        scale=scale_of(points, references, log=False),
        **hues_and_dashes(dressed),
    )
    above.set(ylabel="end gap (nats)", xlabel=axis, title=facet)
    place = dict(zip(sweep.runs["run"], texts, strict=True))
    cell = sweep.runs.set_index("run").loc[list(members["run"])].reset_index()
    counts = frames.outcome_counts(
        cell, list(members["series"]), [place[run] for run in members["run"]]
    )
    rows = list(dict.fromkeys(members["series"]))
    verdict_map(counts, below, rows=rows, columns=values, labels=frames.outcome_words(cell))
    below.set(xlabel=axis, title=facet)
    legend_beside(above)
    legend_beside(below)
