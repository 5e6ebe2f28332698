"""Pictures over the grid of a sweep: gradient ratio and end gap against depth, verdict map."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lnexp.figures import frames
from lnexp.figures.canvas import legend_beside, page
from lnexp.figures.drawing import FACETS, SweepFrames, cut, nothing, stacked
from lnexp.figures.overview import lanes, over_axis, verdict_map
from lnexp.figures.scale import Kind, Scale, scale_for
from lnexp.figures.style import hues_and_dashes, larger, literal, spread
from lnexp.results.axes import (
    DEPTH,
    as_good_as,
    axis_texts,
    combinations,
    dress,
    gap_words,
    in_order,
    in_words,
    is_numeric,
    map_axes,
    short_key,
    varying,
)

DOTS = "Dots: one run each; lines: medians over the seeds, of runs that went finite to their end."
CELLS = "Each cell: its runs (seeds) by verdict; where words have no room, the colour names it."
MAP_ROWS, MAP_COLUMNS = 80, 24


def along(runs: pd.DataFrame, sweep: SweepFrames) -> str:
    """The axis drawn along x: depth, else the number with most values, else the first."""
    free = [axis for axis in varying(runs, sweep.axes) if axis != sweep.facet]
    if DEPTH in free or not free:
        return DEPTH
    numeric = [axis for axis in free if is_numeric(axis_texts(runs, axis))]
    return max(numeric or free[:1], key=lambda axis: len(set(axis_texts(runs, axis))))


def gradient_ratio(sweep: SweepFrames) -> Figure:
    none = sweep.ended.iloc[:0]
    return _against_axis(
        sweep,
        "first / last block gradient norm",
        {"grad_ratio_step0": ("at step 0", none), "grad_ratio_end": ("at the end", sweep.ended)},
        ylabel="first / last block",
        references={"first = last": 1.0},
        log=True,
    )


def end_gap(sweep: SweepFrames) -> Figure:
    return _against_axis(
        sweep,
        f"end gap ({gap_words(sweep.runs)})",
        {"end_gap": ("median of the last steps", sweep.ended)},
        ylabel="end gap (nats)",
        references=as_good_as(sweep.runs),
        log=False,
    )


def _against_axis(
    sweep: SweepFrames,
    what: str,
    columns: Mapping[str, tuple[str, pd.DataFrame]],
    *,
    ylabel: str,
    references: Mapping[str, float],
    log: bool,
) -> Figure:
    """A row of panels for each column of the runs, a panel for each combination left over."""
    runs, x = sweep.runs, along(sweep.runs, sweep)
    what = f"{what} over {short_key(x)}"
    dressed, texts = dress(runs, sweep.look_beside(x)), axis_texts(runs, x)
    drawn = {
        column: frames.points(runs, dressed, texts, column, ended)
        for column, (_, ended) in columns.items()
    }
    every = list(dict.fromkeys(dressed["facet"]))
    facets = spread(every, max(1, FACETS // len(columns)))
    dots = pd.concat(drawn.values(), ignore_index=True)
    absent = frames.not_shown(dressed, dots["run"])
    if not len(dots):
        return nothing(sweep, what, "not measured in any run", absent)
    scale = scale_of(dots, references, log)
    fig, panels = page(len(facets) * len(columns), 1, 9.5, 3.0)
    for i, facet in enumerate(facets):
        for j, (column, (when, _)) in enumerate(columns.items()):
            ax: Axes = panels[i * len(columns) + j, 0]
            here = drawn[column][drawn[column]["facet"] == facet]
            over_axis(
                here,
                ax,
                values=in_order(texts),
                labels=frames.counted(here, dressed[dressed["facet"] == facet]),
                references=references,
                scale=scale,
                **hues_and_dashes(dressed),
            )
            title = ", ".join(filter(None, (facet, when)))
            ax.set(ylabel=ylabel, xlabel=short_key(x), title=literal(title))
            legend_beside(ax)
    return sweep.title(fig, what, DOTS, absent, cut(len(facets), len(every), "settings"))


def scale_of(points: pd.DataFrame, references: Mapping[str, float], log: bool) -> Scale:
    values = points["value"].to_numpy(dtype=float)
    far = np.abs(values[np.isfinite(values)]).max(initial=0.0)
    # A diverged run's gap may be in the thousands; near 0 the scale stays as good as linear.
    kind: Kind = "log" if log else "asinh" if far > 20 else "linear"
    return scale_for(values, kind, lanes=lanes(points), include=tuple(references.values()))


def verdicts(sweep: SweepFrames) -> Figure:
    what = "verdicts of the grid"
    runs = sweep.runs
    if not len(runs):
        return nothing(sweep, what, "this sweep has no runs")
    free = [axis for axis in sweep.axes if axis != sweep.facet]
    down, across = map_axes(runs, free, sweep.look)
    every_row, every_column = combinations(runs, down), combinations(runs, across)
    rows, columns = spread(every_row, MAP_ROWS), spread(every_column, MAP_COLUMNS)
    facets = [axis for axis in varying(runs, sweep.axes) if axis == sweep.facet]
    panel_of = np.array(in_words(runs, facets), dtype=object)
    height = min(0.55, max(0.34, 8 / len(rows)))  # inches a row
    wide = 2.8 + 1.3 * larger() ** 0.5 * len(columns)
    names = combinations(runs, facets)
    fig, panels, fewer = stacked(names, wide, 0.8 + height * len(rows))
    for name, ax in panels.items():
        here = runs[panel_of == name]
        counts = frames.outcome_counts(here, in_words(here, down), in_words(here, across))
        counts = counts[counts["row"].isin(rows) & counts["column"].isin(columns)]
        words = frames.outcome_words(here)
        verdict_map(counts, ax, rows=rows, columns=columns, labels=words)
        ax.set_title(literal(name))
        legend_beside(ax)
    more = (
        cut(len(rows), len(every_row), "rows"),
        cut(len(columns), len(every_column), "columns"),
    )
    return sweep.title(fig, what, CELLS, *more, fewer)
