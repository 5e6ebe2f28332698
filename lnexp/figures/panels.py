"""Pictures of runs along an axis, each (frame, ax) -> ax: statistics come in the frame.

Colour is the frame's `hue`, line style its `dash`, a line each `series`. Legends are left to the
caller: every artist carries its label.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from lnexp.figures import thin
from lnexp.figures.frames import STOPPED
from lnexp.figures.layerframes import LAST
from lnexp.figures.scale import Scale, scale_for
from lnexp.figures.style import (
    END_MARKERS,
    GREY,
    entries,
    font,
    larger,
    literal,
    note,
    palette,
    shades,
    strokes,
)

STRETCHES = 1000  # of a long line; a picture is no more dots wide


def over_steps(
    frame: pd.DataFrame,
    ax: Axes,
    *,
    ended: pd.DataFrame | None = None,
    threads: pd.DataFrame | None = None,
    labels: Mapping[str, str] | None = None,
    colours: Mapping[str, str] | None = None,
    dashes: Mapping[str, tuple] | None = None,
    references: Mapping[str, float] | None = None,
    scale: Scale | None = None,
) -> Axes:
    """Median over the seeds and their range against the step, a line for each series.

    `ended` marks where a run was last finite, `threads` draws such runs one by one.
    """
    colours = colours or palette(frame["hue"])
    dashes = dashes or strokes(frame["dash"])
    lanes = lane_rows(ended)
    scale = scale or scale_for(
        frame[["low", "high"]].to_numpy(dtype=float), "linear", lanes=len(lanes)
    )
    for i, (name, level) in enumerate((references or {}).items()):
        ax.axhline(
            level, color=GREY, linestyle=(":", "--")[i % 2], linewidth=1, label=literal(name)
        )
    if threads is not None:
        for _, rows in threads.groupby(["series", "run"], sort=False):
            rows = thinned(rows.sort_values("step", kind="stable"), "value")
            colour = colours[rows["hue"].iloc[0]]
            drawn = scale.place(rows["value"].to_numpy(dtype=float))
            ax.plot(rows["step"], drawn, color=colour, linewidth=0.6, alpha=0.7)
    named, more = entries(frame["series"], labels)
    for name, rows in frame.groupby("series", sort=False):
        colour, (line, _) = colours[rows["hue"].iloc[0]], dashes[rows["dash"].iloc[0]]
        draw_range(rows.sort_values("step"), "step", ax, scale, colour, line, named.get(name))
    note(ax, more)
    if ended is not None and len(ended):
        draw_ends(ended, ax, scale, colours, lanes)
    ax.set_xlabel("step")
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if frame["step"].nunique() == 1:  # room to the next step, so that ticks stay whole numbers
        first = float(frame["step"].iloc[0])
        ax.update_datalim([(first, 0.0), (first + 1, 0.0)], updatey=False)
        ax.autoscale_view(scaley=False)
    scale.dress(ax)
    if not len(frame) or not frame["n"].sum():
        ax.text(0.5, 0.5, "no finite value\nin any run", transform=ax.transAxes, ha="center")
    return ax


def draw_range(
    rows: pd.DataFrame, x: str, ax: Axes, scale: Scale, colour: str, line, label: str | None
) -> None:
    """The median as a line, smallest to largest as a band; a lone value as a dot."""
    rows = thinned(rows, "median", "low", "high")
    at = rows[x].to_numpy(dtype=float)
    middle = scale.place(rows["median"].to_numpy(dtype=float))
    alone = np.isfinite(middle).sum() == 1
    ax.plot(at, middle, color=colour, linestyle=line, label=label, marker="o" if alone else "")
    low, high = (scale.place(rows[end].to_numpy(dtype=float)) for end in ("low", "high"))
    if np.any(high > low):
        ax.fill_between(at, low, high, color=colour, alpha=0.16, linewidth=0)


def thinned(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The rows to draw: of each stretch of a long line the extremes of each column."""
    if len(rows) <= 2 * STRETCHES:
        return rows
    places = [thin.curve(rows[column].to_numpy(dtype=float), STRETCHES) for column in columns]
    return rows.iloc[np.unique(np.concatenate(places))]


def lane_rows(ended: pd.DataFrame | None) -> dict[str, int]:
    """Series with a run that was never finite, each with its row above the scale."""
    if ended is None or not len(ended):
        return {}
    never = ended[~np.isfinite(ended["value"].to_numpy(dtype=float))]
    return {name: row for row, name in enumerate(dict.fromkeys(never["series"]))}


def draw_ends(
    ended: pd.DataFrame,
    ax: Axes,
    scale: Scale,
    colours: Mapping[str, str],
    lanes: Mapping[str, int],
) -> None:
    """A marker where each run was last finite, by kind; above the scale if it never was."""
    for kind in [kind for kind in END_MARKERS if kind in set(ended["kind"])]:
        look = end_marker(kind)
        words = f"last step: {kind}" if kind in STOPPED else f"last finite value before {kind}"
        ax.plot([], [], color="white", label=words, **look)
        for name, rows in ended[ended["kind"] == kind].groupby("series", sort=False):
            colour = colours[rows["hue"].iloc[0]]
            value = rows["value"].to_numpy(dtype=float)
            finite = np.isfinite(value)
            ax.plot(rows["step"][finite], scale.place(value[finite]), color=colour, **look)
            if not finite.all():
                heights = np.full((~finite).sum(), scale.lane(lanes[name]))
                above = ax.get_xaxis_transform()
                ax.plot(rows["step"][~finite], heights, color=colour, transform=above, **look)


def end_marker(kind: str) -> dict[str, Any]:
    return {
        "marker": END_MARKERS[kind],
        "linestyle": "none",
        "markersize": 6.5,
        "markeredgecolor": "black",
        "markeredgewidth": 0.6,
        "zorder": 5,
    }


def by_layer(
    frame: pd.DataFrame,
    ax: Axes,
    *,
    depth: int,
    broken: pd.DataFrame | None = None,
    colours: Mapping[int, str] | None = None,
    scale: Scale | None = None,
) -> Axes:
    """A quantity against the layer, a line for each step (`when`): embedding, blocks, head.

    `broken` counts values that are not finite: when, layer, kind, n.
    """
    colours = colours or when_colours(list(frame["when"]))
    broken = pd.DataFrame(columns=["when", "layer", "kind", "n"]) if broken is None else broken
    lanes = broken_lanes(broken)
    scale = scale or scale_for(frame[["low", "high"]].to_numpy(), "log", lanes=len(lanes))
    place = layer_places(depth)
    for when, rows in frame.groupby("when", sort=False):
        rows = rows.assign(at=rows["layer"].map(place)).sort_values("at")
        line = "--" if when == LAST else "-"
        inside = rows[(rows["layer"] >= 0) & (rows["layer"] < depth)]
        draw_range(inside, "at", ax, scale, colours[when], line, when_text(when))
        ends = rows[(rows["layer"] < 0) | (rows["layer"] >= depth)]
        for end in ("low", "high", "median"):
            drawn = scale.place(ends[end].to_numpy(dtype=float))
            size = 4 if end == "median" else 1.5
            ax.plot(ends["at"], drawn, "o", color=colours[when], markersize=size)
    for kind in ("NaN", "Inf"):
        rows = broken[broken["kind"] == kind]
        look = end_marker(kind) | {"markersize": 4.5}
        if len(rows):
            ax.plot([], [], color="white", label=f"{kind} in at least one run", **look)
        for when, some in rows.groupby("when", sort=False):
            heights = np.full(len(some), scale.lane(lanes[when]))
            above = ax.get_xaxis_transform()
            ax.plot(some["layer"].map(place), heights, color=colours[when], transform=above, **look)
    count = min(depth, 4 if larger() < 1.3 else 3)
    blocks = sorted({0, depth - 1, *np.linspace(0, depth - 1, count).round().astype(int)})
    ax.set_xticks(
        [place[-1], *(place[layer] for layer in blocks), place[depth]],
        ["embed", *(str(layer + 1) for layer in blocks), "head"],
        fontsize=font(7),
    )
    ax.set_xlim(place[-1] * 1.4, place[depth] - 0.4 * place[-1])
    ax.set_xlabel(f"block of {depth}")
    scale.dress(ax)
    return ax


def broken_lanes(broken: pd.DataFrame) -> dict[int, int]:
    """Steps with a layer that is not finite, each with its row above the scale."""
    return {when: row for row, when in enumerate(dict.fromkeys(broken["when"]))}


def layer_places(depth: int) -> dict[int, float]:
    """Blocks at their layer; embedding and head a little apart, so that their names fit."""
    gap = max(1.0, 0.3 * depth * larger())
    return {-1: -gap, **{layer: float(layer) for layer in range(depth)}, depth: depth - 1 + gap}


def when_colours(whens: Sequence[int]) -> dict[int, str]:
    return shades([when for when in sorted(set(whens)) if when != LAST]) | {LAST: "#D55E00"}


def when_text(when: int) -> str:
    return "last reading of each run" if when == LAST else f"step {when}"
