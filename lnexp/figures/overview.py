"""Pictures of the whole grid, each (frame, ax) -> ax: a figure against an axis, a verdict map."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import ScaledTranslation

from lnexp.figures.frames import STOPPED, over_seeds
from lnexp.figures.panels import end_marker
from lnexp.figures.scale import LANES, Scale, scale_for
from lnexp.figures.style import (
    GREY,
    OUTCOME_COLOURS,
    entries,
    font,
    ink_on,
    larger,
    letters,
    literal,
    note,
    palette,
    strokes,
    wrapped,
)
from lnexp.results.axes import in_order, is_numeric

RING: dict[str, Any] = {
    "marker": "o", "markersize": 13, "markerfacecolor": "none", "linestyle": "none",
}  # fmt: skip
GAP = 0.012  # between the boxes of a verdict map, in cells


def over_axis(
    frame: pd.DataFrame,
    ax: Axes,
    *,
    values: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    colours: Mapping[str, str] | None = None,
    dashes: Mapping[str, tuple] | None = None,
    references: Mapping[str, float] | None = None,
    ringed: Mapping[str, str] | None = None,
    scale: Scale | None = None,
) -> Axes:
    """One dot a run against an axis of the sweep, a line through the medians of each series.

    A run that did not reach its end has its kind's marker and is in no median. `ringed` names a
    value of a series that gets a ring around its median.
    """
    colours = colours or palette(frame["hue"])
    dashes = dashes or strokes(frame["dash"])
    values = in_order(frame["x"]) if values is None else values
    scale = scale or scale_for(frame["value"].to_numpy(dtype=float), "linear", lanes=lanes(frame))
    place = places(values, ax)
    for name, level in (references or {}).items():
        ax.axhline(level, color=GREY, linestyle=":", linewidth=1, label=literal(name))
    count = frame["series"].nunique()
    named, more = entries(frame["series"], labels)
    for i, (name, rows) in enumerate(frame.groupby("series", sort=False)):
        colour = colours[rows["hue"].iloc[0]]
        line, marker = dashes[rows["dash"].iloc[0]]
        shift = (i - (count - 1) / 2) * min(5.0, 30 / count) / 72
        beside = ScaledTranslation(shift, 0, ax.figure.dpi_scale_trans)
        spot = ax.transData + beside
        whole = rows[rows["kind"] == ""]
        # Where no run went finite to its end the line breaks: it must not bridge a failure.
        middle = over_seeds(rows.assign(value=rows["value"].where(rows["kind"] == "")), ["x"])
        middle = middle.assign(at=middle["x"].map(place)).sort_values("at")
        height = scale.place(middle["median"].to_numpy(dtype=float))
        look = {"linestyle": line, "marker": marker, "label": named.get(name)}
        ax.plot(middle["at"], height, color=colour, transform=spot, **look)
        edge = (middle["x"] == (ringed or {}).get(name)).to_numpy()
        if edge.any():
            ax.plot(middle["at"][edge], height[edge], color=colour, transform=spot, **RING)
        dots = scale.place(whole["value"].to_numpy(dtype=float))
        look = {"linestyle": "none", "markersize": 3.5, "alpha": 0.5, "markeredgewidth": 0}
        ax.plot(whole["x"].map(place), dots, color=colour, marker=marker, transform=spot, **look)
        _draw_ended(rows[rows["kind"] != ""], ax, scale, place, colour, beside, i)
    note(ax, more)
    for kind in in_order(frame.loc[frame["kind"] != "", "kind"]):
        words = f"{kind} before its end" if kind in STOPPED else kind
        ax.plot([], [], color="white", label=f"a run: {words}", **end_marker(kind))
    scale.dress(ax)
    if not len(frame):
        ax.text(0.5, 0.6, "not measured in any run", transform=ax.transAxes, ha="center")
    return ax


def lanes(frame: pd.DataFrame) -> int:
    """Rows of marks above the scale: one for each series, where any value is not finite."""
    finite = np.isfinite(frame["value"].to_numpy(dtype=float))
    return 0 if finite.all() else min(frame["series"].nunique(), LANES)


def _draw_ended(
    rows: pd.DataFrame, ax: Axes, scale: Scale, place: Mapping, colour: str, beside, row: int
) -> None:
    for kind, some in rows.groupby("kind", sort=False):
        finite = np.isfinite(some["value"].to_numpy(dtype=float))
        seen, never = some[finite], some[~finite]
        drawn = scale.place(seen["value"].to_numpy(dtype=float))
        look = end_marker(str(kind))
        ax.plot(seen["x"].map(place), drawn, color=colour, transform=ax.transData + beside, **look)
        above = ax.get_xaxis_transform() + beside
        for x, count in never.groupby("x", sort=False).size().items():
            at, height = place[x], scale.lane(row)
            ax.plot([at], [height], color=colour, transform=above, **look)
            if count > 1:
                ax.annotate(
                    f"{count} runs",
                    (at, height),
                    xycoords=above,
                    xytext=(5, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=font(6.5),
                )


def places(values: Sequence[str], ax: Axes) -> dict[str, float]:
    """Where the axis' values stand, and its ticks: by size, by log of it, or one after another."""
    if not is_numeric(values):
        ax.set_xticks(range(len(values)), [literal(value, letters(18)) for value in values])
        ax.set_xlim(-0.5, max(len(values), 1) - 0.5)
        return {value: float(i) for i, value in enumerate(values)}
    size = np.array([float(value) for value in values])
    some = size[size > 0]
    edge: float | None = None  # between 0 and a log axis
    is_log = len(some) > 1 and size.min() >= 0 and some.max() >= 8 * some.min()
    at = np.log2(size, where=size > 0, out=np.zeros_like(size)) if is_log else size
    if is_log and (size == 0).any():  # not on a log axis: beside it, behind a line
        first = np.log2(some.min())
        gap = 0.18 * (np.log2(some.max()) - first)
        at[size == 0] = first - gap
        edge = first - gap / 2
    width = float(np.ptp(at)) if len(at) else 0.0
    margin = 0.12 * larger() * width or 0.5
    if len(at):
        ax.set_xlim(at.min() - margin, at.max() + margin)
    if edge is not None:
        ax.axvspan(at.min() - margin, edge, color="0.92", zorder=0)
    ticks: list[int] = []
    for i, name in enumerate(values):
        # As parts of the axis: half of either name, and a space.
        apart = font(0.006) * (len(name) + len(values[ticks[-1]])) + 0.015 if ticks else 0.0
        if not ticks or at[i] - at[ticks[-1]] >= apart * (width + 2 * margin):
            ticks.append(i)
    ax.set_xticks([at[i] for i in ticks], [values[i] for i in ticks])
    return dict(zip(values, map(float, at), strict=True))


class Fitting(Text):
    """The first of its forms that is no wider than its box, chosen when the page is laid out."""

    def __init__(self, forms: Sequence[str], x: float, y: float, width: float) -> None:
        super().__init__(x, y, forms[0], ha="center", va="center")
        self.forms, self.width = forms, width
        self.set_in_layout(False)

    def draw(self, renderer: RendererBase) -> None:
        (left, _), (right, _) = self.get_transform().transform([(0, 0), (self.width, 0)])
        for form in self.forms:
            self.set_text(form)
            if not form or self.get_window_extent(renderer).width <= 0.95 * (right - left):
                break
        super().draw(renderer)


def verdict_map(
    frame: pd.DataFrame,
    ax: Axes,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """Each cell of the grid in the colours of its runs' verdicts, with their counts written in."""
    rows = list(dict.fromkeys(frame["row"])) if rows is None else rows
    columns = list(dict.fromkeys(frame["column"])) if columns is None else columns
    for (row, column), cell in frame.groupby(["row", "column"], sort=False):
        left, top, total = columns.index(column), rows.index(row), cell["n"].sum()
        parts = list(zip(cell["outcome"], cell["n"], strict=True))
        for outcome, n in sorted(parts, key=lambda part: rank_of(part[0])):
            width, inner = n / total, n / total - 2 * GAP
            box(ax, outcome, left + GAP, top + GAP, inner)
            named = f"{n} of {total}\n{outcome.replace('_', ' ')}"
            count = Fitting((named, f"{n}/{total}", ""), left + width / 2, top + 0.5, inner)
            count.set(color=ink_on(colour_of(outcome)), fontsize=font(7 if len(parts) == 1 else 6))
            ax.add_artist(count)
            left += width
    ax.set(xlim=(0, max(len(columns), 1)), ylim=(max(len(rows), 1), 0))
    ax.set_xticks(
        np.arange(len(columns)) + 0.5, [wrapped(name, letters(17), "") for name in columns]
    )
    ax.set_yticks(np.arange(len(rows)) + 0.5, [literal(name, 30) for name in rows])
    return dress_map(ax, set(frame["outcome"]), labels)


def box(ax: Axes, outcome: str, left: float, low: float, width: float) -> None:
    """A part of a cell in the colour of an outcome."""
    look = {"facecolor": colour_of(outcome), "edgecolor": "0.6"}
    ax.add_patch(Rectangle((left, low), width, 1 - 2 * GAP, **look))


def dress_map(ax: Axes, outcomes: Iterable[str], labels: Mapping[str, str] | None) -> Axes:
    """No frame, and a legend entry for each outcome."""
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    for outcome in sorted(outcomes, key=rank_of):
        label = wrapped((labels or {}).get(outcome, outcome.replace("_", " ")))
        look = {"facecolor": colour_of(outcome), "edgecolor": "0.6", "label": label}
        ax.add_patch(Rectangle((0, 0), 0, 0, **look))
    return ax


def colour_of(outcome: str) -> str:
    return OUTCOME_COLOURS.get(outcome, "#FFFFFF")


def rank_of(outcome: str) -> int:
    """Where an outcome stands in legends: the good ones first."""
    names = list(OUTCOME_COLOURS)
    return names.index(outcome) if outcome in names else len(names)
