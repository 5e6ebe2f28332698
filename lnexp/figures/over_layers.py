"""Pictures over the layers of the network at chosen steps: gradients, updates, the stream, each
matrix's gradient, and what sublayers add to the stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lnexp.figures import frames, layerframes
from lnexp.figures.canvas import legend_of_all, page
from lnexp.figures.drawing import (
    SweepFrames,
    cell_words,
    chosen_cells,
    label_left,
    multiples,
    nothing,
    title_cell,
)
from lnexp.figures.layerframes import LAST, sublayer
from lnexp.figures.panels import broken_lanes, by_layer, when_colours
from lnexp.figures.scale import Kind, Scale, scale_for
from lnexp.figures.style import blank, font, larger, literal

MEAN = "Lines: median over the seeds; bands: smallest to largest."
HEAD = "Head: with the final norm. Files count blocks from 0."
STREAM_CELLS = 8  # rows of four panels
ROW_LETTERS = 170


@dataclass(frozen=True)
class Quantity:
    """A reading that every layer has: `column` says when it was read, `values` what it comes to."""

    label: str
    column: str
    values: Callable[[pd.DataFrame], pd.DataFrame]
    kind: Kind = "log"
    include: tuple[float, ...] = ()  # always within the scale


def in_part(part: str, label: str, column: str, *look) -> Quantity:
    """Of a block what was read at this part."""
    return Quantity(label, column, sublayer(column, part), *look)


GRADIENT = Quantity("gradient norm", "grad_norm", layerframes.layer_totals)
RATIO = Quantity("update / weights", "update_norm", layerframes.update_ratios)
# In blocks the stream is read after the MLP, gradients and norm inputs before attention.
STREAM = (
    in_part("mlp", "stream RMS", "act_rms"),
    in_part("attn", "stream gradient RMS", "stream_grad_rms"),
    in_part("mlp", "token cosine", "token_cosine", "linear"),
    in_part("attn", "norm input RMS", "norm_input_rms"),
)
MATRICES = tuple(
    in_part(part, f"gradient norm of {name}", "grad_norm")
    for part, name in (("wq", "W_Q"), ("wv", "W_V"), ("wo", "W_O"), ("w1", "W1"), ("w2", "W2"))
)
BRANCHES = (
    in_part("attn", "attention / stream (RMS)", "branch_to_stream"),
    in_part("mlp", "MLP / stream (RMS)", "branch_to_stream"),
    in_part("attn", "largest score", "attn_logit_max"),
    in_part("attn", "LN-inert tokens", "eps_floor_fraction", "linear", (0.0, 1.0)),
)
NO_LAYERS = "no gradient was read by layer\n(measure.level off, or no run has begun)"
NO_UPDATES = "no update was read by layer\n(measure.level off, or no run has made one)"
NO_STREAM = "no run recorded stream RMS: measure.level full does"
NO_SUBLAYERS = "no run recorded its sublayers: measure.level full of lnexp's own models does"


def lacks(none: str, *quantities: Quantity) -> Callable[[SweepFrames], str]:
    """Whether a sweep has none of these readings: in words, or ''."""

    def why(sweep: SweepFrames) -> str:
        columns = {quantity.column for quantity in quantities} & set(sweep.layers)
        return "" if any(frames.split(sweep.layers[name])[1].any() for name in columns) else none

    return why


lacks_gradients = lacks(NO_LAYERS, GRADIENT)
lacks_updates = lacks(NO_UPDATES, RATIO)
lacks_stream = lacks(NO_STREAM, *STREAM)
lacks_sublayers = lacks(NO_SUBLAYERS, *BRANCHES)


class Profiles:
    """One quantity of a sweep at the chosen steps: medians, what is not finite, and the scale."""

    def __init__(self, sweep: SweepFrames, quantity: Quantity) -> None:
        self.quantity = quantity
        steps = layerframes.chosen_steps(sweep.layers, sweep.at_steps, quantity.column)
        profile = layerframes.profiles(sweep.layers, steps, quantity.column, quantity.values)
        self.values = sweep.cells[["run", "facet"]].merge(profile, on="run")
        keys = ["facet", "when", "layer"]
        curves = frames.over_seeds(self.values, keys)
        self.curves = curves.sort_values("when", key=_last_last, kind="stable")
        self.broken = layerframes.nonfinite_counts(self.values, keys)
        self.colours = when_colours(list(curves["when"]))
        rows = max((len(broken_lanes(some)) for _, some in self.broken.groupby("facet")), default=0)
        drawn = self.values["value"].to_numpy(dtype=float)
        self.scale: Scale = scale_for(drawn, quantity.kind, lanes=rows, include=quantity.include)

    @property
    def shown(self) -> list[str]:
        return self.values["run"].unique().tolist()

    def draw(self, cell: str, depth: int, ax: Axes) -> None:
        """The cell's profile; a cell whose runs left no reading says so."""
        curves, broken = (frame[frame["facet"] == cell] for frame in (self.curves, self.broken))
        if not len(curves):
            blank(ax, "no reading")
            return
        look = {"colours": self.colours, "scale": self.scale}
        by_layer(curves, ax, depth=depth, broken=broken, **look)

    def last_reading(self, cell: str) -> list[str]:
        here = self.values[(self.values["facet"] == cell) & (self.values["when"] == LAST)]
        return [f"last reading: {frames.steps_text(here['step'])}"] if len(here) else []


def _last_last(when: pd.Series) -> pd.Series:
    return when.mask(when == LAST, np.iinfo(np.int64).max)


def _blocks(sweep: SweepFrames) -> dict[str, int]:
    """The depth of each cell."""
    depth = layerframes.depths(sweep.runs, sweep.layers)
    known = sweep.cells[sweep.cells["run"].isin(depth.index)]
    blocks = known["run"].map(depth)
    return {cell: int(n) for cell, n in blocks.groupby(known["facet"], sort=False).max().items()}


def gradient_by_layer(sweep: SweepFrames) -> Figure:
    return _profile(sweep, GRADIENT, "gradient norm by layer, before clipping", NO_LAYERS, HEAD)


def update_ratio(sweep: SweepFrames) -> Figure:
    what = "norm of the update over the norm of the weights, by layer"
    bad = " A step that is not finite makes no update." if len(sweep.ended) else ""
    return _profile(sweep, RATIO, what, NO_UPDATES, HEAD + bad)


def _profile(sweep: SweepFrames, quantity: Quantity, what: str, none: str, below: str) -> Figure:
    profiles = Profiles(sweep, quantity)
    absent = frames.not_shown(sweep.cells, profiles.values["run"])
    if not len(profiles.values):
        return nothing(sweep, what, none, absent)
    words, blocks = cell_words(sweep, profiles.shown), _blocks(sweep)
    fig, panels, more = multiples(sweep, profiles.shown, 2.7)
    for cell, ax in panels.items():
        profiles.draw(cell, blocks.get(cell, 1), ax)
        title_cell(ax, cell, words[cell], *profiles.last_reading(cell))
    label_left(panels.values(), quantity.label)
    legend_of_all(list(panels.values()))
    return sweep.title(fig, what, MEAN, below, absent, more)


def stream_by_layer(sweep: SweepFrames) -> Figure:
    what = "the residual stream by layer"
    where = (
        "Stream and token cosine: after the block; gradient of the stream and the norm's input: "
        "before its attention; embed: after it; head: before the final norm or the head. Files "
        "count blocks from 0."
    )
    return profile_rows(sweep, STREAM, what, where, lacks_stream(sweep))


def profile_rows(
    sweep: SweepFrames, quantities: Sequence[Quantity], what: str, where: str, lacking: str
) -> Figure:
    """A row of panels for each cell, a panel for each quantity."""
    if lacking:
        return nothing(sweep, what, lacking)
    every = [Profiles(sweep, quantity) for quantity in quantities]
    shown = {run for profiles in every for run in profiles.shown}
    words, blocks = cell_words(sweep, shown), _blocks(sweep)
    cells, more = chosen_cells(sweep, shown, STREAM_CELLS)
    fig, panels = page(len(cells), len(every), 2.9 * larger() ** 0.5, 2.3)
    for cell, row in zip(cells, panels, strict=True):
        for profiles, ax in zip(every, row, strict=True):
            profiles.draw(cell, blocks.get(cell, 1), ax)
            ax.set_ylabel(profiles.quantity.label)
        heading = (cell or "all runs", words[cell], *every[0].last_reading(cell))
        look = {"fontsize": font(7.5), "loc": "left"}
        row[0].set_title(literal("; ".join(heading), ROW_LETTERS), **look).set_in_layout(False)
        row[0].set_title(" ", fontsize=font(7.5))  # keeps its height, but not its width, free
    legend_of_all(list(panels.flat))
    absent = frames.not_shown(sweep.cells, shown)
    return sweep.title(fig, what, MEAN, where, absent, more)


def matrix_by_layer(sweep: SweepFrames) -> Figure:
    what, where = "gradients by layer and matrix", "Ends: the embedding, and the head."
    return profile_rows(sweep, MATRICES, what, where, lacks_sublayers(sweep))


def branch_by_layer(sweep: SweepFrames) -> Figure:
    where = (
        "RMS of what a sublayer adds over that of the stream before it; largest attention score "
        "|q k / sqrt(width of a head)|; share of tokens whose variance is below eps, in the norm "
        "of each attention (head: in the final norm)."
    )
    what = "what sublayers add, by layer"
    return profile_rows(sweep, BRANCHES, what, where, lacks_sublayers(sweep))
