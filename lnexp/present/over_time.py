"""Pictures over the steps of training: loss, gradient by layer, gradient of three blocks."""

# pandas' own types call every selection "Series | DataFrame | ndarray": nothing to learn there.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportReturnType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

import textwrap
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lnexp.present import frames, layerframes
from lnexp.present.grid import axis_texts, dress, in_words, varying
from lnexp.present.page import legend_beside, legend_of_all, page
from lnexp.present.panels import broken_lanes, by_layer, lane_rows, over_steps, when_colours
from lnexp.present.scale import scale_for
from lnexp.present.style import palette, plain, spread, strokes
from lnexp.present.subject import FACETS, Sweep, cut, nothing

CELLS = 24  # small multiples in one picture
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
        ("h1", "guessing by letter frequency (H1)"),
    ):
        known = frames.measured(runs.assign(step=0), key, ["step"])["value"] if len(runs) else []
        for level in sorted({round(float(v), 4) for v in known if np.isfinite(v)}):
            found[f"{name}: {level:.3g}"] = level
    return found


def _multiples(sweep: Sweep, shown: Sequence[str], height: float, **share):
    """A panel for each cell that has data; rows and columns follow the grid where it is full."""
    there = sweep.cells[sweep.cells["run"].isin(set(shown))]
    every = list(dict.fromkeys(there["facet"]))
    cells = spread(every, CELLS)
    first = sweep.look.colour
    rest = [axis for axis in varying(sweep.runs, sweep.axes) if axis != first]
    across = len(set(in_words(sweep.runs, rest)))
    down = len(set(axis_texts(sweep.runs, first)))
    columns = across if 1 < across <= 5 and across * down == len(cells) else min(4, len(cells))
    rows = -(-len(cells) // columns)
    fig, panels = page(rows, columns, max(3.1, 6.2 / columns), height, **share)
    for ax in panels.flat[len(cells) :]:
        ax.remove()
    more = cut(len(cells), len(every), "cells")
    left = there.loc[~there["facet"].isin(cells), "run"]
    if early := int(left.isin(list(sweep.ended["run"])).sum()):
        more += f" Of the runs left out, {early} ended early."
    return fig, dict(zip(cells, panels.flat, strict=False)), more


def _cell_title(sweep: Sweep, cell: str, words: dict[str, str], *more: str) -> str:
    lines = textwrap.wrap(cell or "all runs", 42) + textwrap.wrap(words[cell], 42)
    return "\n".join(plain(line) for line in [*lines, *more])


NO_LAYERS = "no gradient was read by layer\n(measure.level off, or no run has begun)"


def gradient_by_layer(sweep: Sweep) -> Figure:
    what = "gradient norm by layer, before clipping"
    steps = layerframes.chosen_steps(sweep.layers, sweep.at_steps)
    profile = layerframes.profiles(sweep.layers, steps)
    values = sweep.cells[["run", "facet"]].merge(profile, on="run")
    absent = frames.not_shown(sweep.cells, values["run"])
    if not len(values):
        return nothing(sweep, what, NO_LAYERS, absent)
    keys = ["facet", "when", "layer"]
    curves = frames.over_seeds(values, keys).sort_values("when", key=_last_last, kind="stable")
    broken = layerframes.nonfinite_counts(values, keys)
    rows = max((len(broken_lanes(some)) for _, some in broken.groupby("facet")), default=0)
    scale = scale_for(values["value"].to_numpy(dtype=float), "log", lanes=rows)
    depth = layerframes.depths(sweep.runs, sweep.layers)
    words = frames.tally(sweep.cells, sweep.ended, values["run"], "facet")
    fig, panels, more = _multiples(sweep, values["run"].unique().tolist(), 2.7)
    for cell, ax in panels.items():
        here = values[values["facet"] == cell]
        blocks = depth[here["run"].unique()].max()
        by_layer(
            curves[curves["facet"] == cell],
            ax,
            depth=int(blocks),
            broken=broken[broken["facet"] == cell],
            colours=when_colours(list(curves["when"])),
            scale=scale,
        )
        last = here[here["when"] == layerframes.LAST]["step"]
        ends = [f"last reading: {frames.steps_text(last)}"] if len(last) else []
        ax.set_title(_cell_title(sweep, cell, words, *ends), fontsize=7.5)
    _label_left(panels.values(), "gradient norm")
    legend_of_all(list(panels.values()))
    mean = "Lines: median over the seeds; bands: smallest to largest. Head: with the final norm."
    return sweep.title(fig, what, mean, absent, more)


def _last_last(when: pd.Series) -> pd.Series:
    return when.mask(when == layerframes.LAST, np.iinfo(np.int64).max)


def _label_left(panels: Iterable[Axes], label: str) -> None:
    for ax in panels:
        place = ax.get_subplotspec()
        if place is not None and place.is_first_col():
            ax.set_ylabel(label)


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
    words = frames.tally(sweep.cells, sweep.ended, values["run"], "facet")
    fig, panels, more = _multiples(sweep, values["run"].unique().tolist(), 2.9, sharex=True)
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
        named = layerframes.blocks_in_words(int(depth[here["run"].unique()].max()))
        ends = [f"{where}: {block}" for where, block in named.items()]
        ax.set_title(_cell_title(sweep, cell, words, *ends), fontsize=7.5)
    _label_left(panels.values(), "gradient norm")
    legend_of_all(list(panels.values()))
    threads = THREADS if len(sweep.ended) else ""
    return sweep.title(fig, what, LINES_MEAN, threads, absent, more)
