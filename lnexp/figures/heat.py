"""Layer x step: one run's gradient norms as a heat map, a panel for each cell."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, MaxNLocator

from lnexp.figures import frames
from lnexp.figures.canvas import legend_of_all
from lnexp.figures.drawing import SweepFrames, label_left, multiples, nothing, title_cell
from lnexp.figures.frames import STOPPED, split
from lnexp.figures.layerframes import layer_totals
from lnexp.figures.over_layers import NO_LAYERS
from lnexp.figures.panels import end_marker
from lnexp.figures.style import blank, font, spread
from lnexp.results.axes import seed_texts
from lnexp.results.tables import column

READINGS = 400  # columns of a heat map; more are no wider than a dot
MAP = "viridis"
# What has no logarithm, told apart by hatch in grey print too: face, hatch, ink.
APART = {
    "exactly 0": ("#F2D5E5", "...", "#8C3A66"),
    "NaN": ("#000000", "///", "#FFFFFF"),
    "Inf": ("#FFFFFF", "\\\\\\", "#000000"),
}


def median_runs(runs: pd.DataFrame, cells: pd.DataFrame, ended: pd.DataFrame) -> pd.DataFrame:
    """facet, run, seed, of: of each cell the run in the middle by end gap.

    Runs that ended early rank worst, the earliest last; of two in the middle the worse is taken.
    """
    gaps = split(column(runs, "end_gap"))[0]
    gap = dict(zip(column(runs, "run"), np.where(np.isfinite(gaps), gaps, np.inf), strict=True))
    seed = dict(zip(column(runs, "run"), seed_texts(runs), strict=True))
    end = ended.set_index("run")["step"]
    rows = []
    for cell, group in cells.groupby("facet", sort=False):
        order = sorted(
            group["run"],
            key=lambda run: (1, -np.nan_to_num(end[run])) if run in end.index else (0, gap[run]),
        )
        run = order[len(order) // 2]
        rows.append((cell, run, seed[run], len(order)))
    return pd.DataFrame(rows, columns=["facet", "run", "seed", "of"], dtype=object)


def picture(sweep: SweepFrames) -> Figure:
    what = "gradient norm by layer and step, before clipping"
    read = frames.measured(sweep.layers, "grad_norm", ["run"])["run"].unique()
    cells = sweep.cells[sweep.cells["run"].isin({*read, *sweep.ended["run"]})]
    absent = frames.not_shown(sweep.cells, cells["run"])
    if not len(read):
        return nothing(sweep, what, NO_LAYERS, absent)
    chosen = median_runs(sweep.runs, cells, sweep.ended)
    totals = layer_totals(sweep.layers[sweep.layers["run"].isin(list(chosen["run"]))])
    ends = sweep.ended.set_index("run")
    values = totals["value"].to_numpy(dtype=float)
    norm = norm_of(values)
    fig, panels, more = multiples(sweep, read.tolist(), 2.9)
    for cell, ax in panels.items():
        pick = chosen[chosen["facet"] == cell].iloc[0]
        end = ends.loc[pick["run"]] if pick["run"] in ends.index else None
        heat(totals[totals["run"] == pick["run"]], ax, norm=norm, end=end)
        median = f"the median of {pick['of']} runs" if pick["of"] > 1 else ""
        words = ", ".join(filter(None, (f"seed {pick['seed']}" * bool(pick["seed"]), median)))
        if end is not None:
            when = "after" if end["kind"] in STOPPED else "at"
            ending = f"{end['kind']} {when} {frames.steps_text(pd.Series([end['step']]))}"
            words = "; ".join(filter(None, (words, ending)))
        title_cell(ax, cell, words)
    label_left(panels.values(), "layer")
    legend_of_all(list(panels.values()))
    meshes = [mesh for ax in panels.values() for mesh in ax.collections]
    if meshes and ((values > 0) & (values < np.inf)).any():  # else nothing has a colour
        width, height = fig.get_size_inches()
        fig.colorbar(
            meshes[0], ax=list(panels.values()), location="bottom", fraction=0.12 / height,
            pad=0.1 / height, aspect=6 * width, label="log10 of the gradient norm",
        )  # fmt: skip
    below = (
        "One run a cell: the median seed by end gap; runs that ended early rank worst. "
        "Layer -1: embedding; the highest: head with the final norm."
    )
    if (n := totals.groupby("run")["step"].nunique().max()) > READINGS:
        below += f" Up to {READINGS} of {n} readings are drawn, evenly spread."
    return sweep.title(fig, what, below, absent, more)


def norm_of(values: np.ndarray) -> Normalize:
    """The range of the logarithms of what is finite and above 0."""
    some = values[np.isfinite(values) & (values > 0)]
    low, high = np.log10([some.min(), some.max()]) if len(some) else (-0.5, 0.5)
    return Normalize(low, high) if high - low > 0.1 else Normalize(low - 0.5, high + 0.5)


def heat(
    frame: pd.DataFrame, ax: Axes, *, norm: Normalize | None = None, end: pd.Series | None = None
) -> Axes:
    """log10 of `value` over step and layer; exact zeros, NaN and Inf each in a look of their own.

    `end` marks where the run was last whole: its kind and step.
    """
    if not len(frame):
        return blank(ax, "no reading")
    values = frame["value"].to_numpy(dtype=float)
    norm = norm or norm_of(values)
    steps = _columns(frame, values)
    frame = frame.loc[frame["step"].isin(steps)]
    layers = sorted(set(frame["layer"]))
    grid = np.full((len(layers), len(steps)), np.nan)
    at = np.searchsorted(layers, frame["layer"]), np.searchsorted(steps, frame["step"])
    grid[at] = frame["value"].to_numpy(dtype=float)
    known = np.zeros(grid.shape, dtype=bool)
    known[at] = True
    x, y = _edges(np.array(steps)), _edges(np.array(layers))
    shown = np.isfinite(grid) & (grid > 0)
    heights = np.ma.masked_array(np.log10(np.where(shown, grid, 1.0)), mask=~shown)
    ax.pcolormesh(x, y, heights, cmap=MAP, norm=norm, rasterized=True)
    masks = {"exactly 0": grid == 0, "NaN": known & np.isnan(grid), "Inf": known & np.isinf(grid)}
    for name, mask in masks.items():
        face, hatch, ink = APART[name]
        look = {"facecolor": face, "hatch": hatch, "edgecolor": ink, "linewidth": 0}
        for left, right, low, high in boxes(mask):
            corner = (x[left], y[low])
            ax.add_patch(Rectangle(corner, x[right] - x[left], y[high] - y[low], **look))
        if mask.any():
            ax.add_patch(Rectangle((0, 0), 0, 0, label=name, **look))
    if end is not None and np.isfinite(end["step"]):
        look = end_marker(str(end["kind"]))
        above = {"transform": ax.get_xaxis_transform(), "clip_on": False}
        ax.plot([end["step"]], [1.0], color="white", label=f"{end['kind']} begins", **look, **above)
    ax.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]), xlabel="step")
    few = FixedLocator(steps) if len(steps) < 5 else MaxNLocator(5, integer=True)
    ax.xaxis.set_major_locator(few)
    ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.title.set_fontsize(font(7.5))
    return ax


def _columns(frame: pd.DataFrame, values: np.ndarray) -> list[int]:
    """The steps drawn: so many, evenly spread, and the first that is not finite."""
    every = sorted(set(frame["step"]))
    broken = frame["step"].to_numpy()[~np.isfinite(values)]
    return sorted({*spread(every, READINGS), *([int(broken.min())] if len(broken) else [])})


def _edges(at: np.ndarray) -> np.ndarray:
    """Where one ends and the next begins: half-way."""
    if len(at) == 1:
        return np.array([at[0] - 0.5, at[0] + 0.5])
    middle = (at[1:] + at[:-1]) / 2
    return np.concatenate([[2 * at[0] - middle[0]], middle, [2 * at[-1] - middle[-1]]])


def boxes(mask: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    """Boxes (left, right, low, high; ends excluded) that cover the mask and do not overlap."""
    open_: dict[tuple[int, int], int] = {}  # rows low..high, and the column where they began
    for j in range(mask.shape[1] + 1):
        column = mask[:, j] if j < mask.shape[1] else np.zeros(len(mask), dtype=bool)
        turns = np.flatnonzero(np.diff(np.concatenate([[0], column.astype(int), [0]])))
        spans = set(zip(turns[::2].tolist(), turns[1::2].tolist(), strict=True))
        for span in [span for span in open_ if span not in spans]:
            yield open_.pop(span), j, *span
        for span in sorted(spans - set(open_)):
            open_[span] = j
