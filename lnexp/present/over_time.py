"""Pictures over the steps of training: loss, gradient of three blocks."""

# pandas' own types call every selection "Series | DataFrame | ndarray": nothing to learn there.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportReturnType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lnexp.present import frames, layerframes
from lnexp.present.grid import dress
from lnexp.present.guess import level_words
from lnexp.present.multiples import cell_words, label_left, multiples, title_cell
from lnexp.present.over_layers import NO_LAYERS
from lnexp.present.page import legend_beside, legend_of_all, page
from lnexp.present.panels import lane_rows, over_steps
from lnexp.present.scale import scale_for
from lnexp.present.style import palette, plain, spread, strokes
from lnexp.present.subject import FACETS, Sweep, cut, nothing

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
