"""Plots for a notebook: frames from lnexp.load, and functions (frame, ax) -> ax.

    curves(runs, steps, "loss")         -> over_steps      a line each series, its range over seeds
    points(runs, "end_gap", "train.lr") -> over_axis       a dot a run against an axis
    profile(run_layers, [0, 20])        -> by_layer        a line a step against the layer
    layer_totals(run_layers)            -> heat            layer x step
    tiles(runs, "train.lr", "model.depth") -> phase_map    verdicts over two axes

docs/notebook.md has an example of each. Nothing here opens a window or saves a file.
"""

from collections.abc import Sequence

import pandas as pd

from lnexp.figures import frames, layerframes
from lnexp.figures.canvas import house_style
from lnexp.figures.heat import heat
from lnexp.figures.layerframes import layer_totals
from lnexp.figures.overview import over_axis
from lnexp.figures.panels import by_layer, over_steps
from lnexp.figures.phase import counts, phase_map
from lnexp.results.axes import axis_texts, choose_look, dress

__all__ = [
    "by_layer",
    "curves",
    "heat",
    "house_style",
    "layer_totals",
    "over_axis",
    "over_steps",
    "phase_map",
    "points",
    "profile",
    "tiles",
]


def _dressed(runs: pd.DataFrame, by: str | None, style: str | None) -> pd.DataFrame:
    axes = [axis for axis in (by, style) if axis]
    return dress(runs, choose_look(runs, axes, by, style))


def curves(
    runs: pd.DataFrame,
    rows: pd.DataFrame,
    column: str,
    by: str | None = None,
    style: str | None = None,
) -> pd.DataFrame:
    """series, hue, dash, step, median, low, high, n finite of m runs; `by` is an axis: colour."""
    values = frames.measured(rows, column, ["run", "step"])
    values = _dressed(runs, by, style).merge(values, on="run")
    return frames.over_seeds(values, ["series", "hue", "dash", "step"])


def points(
    runs: pd.DataFrame, column: str, x: str, by: str | None = None, style: str | None = None
) -> pd.DataFrame:
    """run, series, hue, dash, x, value, kind ('': finite): one row a run with `column`."""
    ended = pd.DataFrame(columns=["run", "kind", "step"])
    dressed = _dressed(runs, by, style)
    return frames.points(runs, dressed, axis_texts(runs, x), column, ended)


def profile(
    layers: pd.DataFrame, steps: Sequence[int] | None = None, column: str = "grad_norm"
) -> pd.DataFrame:
    """when, layer, median, low, high, n of m: norms by layer at the recorded steps nearest these.

    `column`: grad_norm, weight_norm or update_norm.
    """
    at = layerframes.chosen_steps(layers, steps, column)
    values = layerframes.profiles(
        layers, at, column, lambda some: layerframes.layer_totals(some, column)
    )
    return frames.over_seeds(values[values["when"] != layerframes.LAST], ["when", "layer"])


def tiles(runs: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """column, row, top (the most frequent outcomes), failures, decided, n: a row a cell."""
    return counts(runs, x, y, ())
