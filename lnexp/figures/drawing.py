"""What the pictures of one sweep are drawn from, how its panels are laid out, and what pictures
and panels say about it."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lnexp.config.rules import caveats
from lnexp.figures import frames
from lnexp.figures.canvas import frame_words, page
from lnexp.figures.style import blank, font, larger, letters, literal, spread
from lnexp.results.axes import (
    Look,
    axis_texts,
    choose_look,
    common_settings,
    dress,
    in_words,
    varying,
)
from lnexp.results.tables import column

FACETS = 8  # panels one below the other
CELLS = 24  # small multiples in one picture


@dataclass(frozen=True)
class SweepFrames:
    """What is drawn: the frames of one sweep, its axes, and the user's wishes."""

    runs: pd.DataFrame
    steps: pd.DataFrame
    layers: pd.DataFrame
    axes: Sequence[str]
    name: str
    by: str | None = None
    style: str | None = None
    facet: str | None = None
    at_steps: Sequence[int] | None = None

    @cached_property
    def ended(self) -> pd.DataFrame:
        return frames.endings(self.runs, self.steps)

    @cached_property
    def look(self) -> Look:
        return self.look_beside(None)

    def look_beside(self, x: str | None) -> Look:
        """The look of a picture that draws the axis `x` along x."""
        return choose_look(self.runs, self.axes, self.by, self.style, taken=x, facet=self.facet)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """dress() with a panel for every cell, the colour axis changing slowest."""
        ordered = varying(self.runs, self.axes)
        ordered.sort(key=lambda axis: axis != self.look.colour)
        return dress(self.runs, Look(facets=tuple(ordered)))

    def title(self, fig: Figure, what: str, *caption: str) -> Figure:
        words = " ".join(filter(None, (*caption, *caveats(column(self.runs, "model.norm")))))
        frame_words(fig, f"{self.name}: {what}", common_settings(self.runs), words)
        return fig


def nothing(sweep: SweepFrames, what: str, why: str, *caption: str) -> Figure:
    fig, panels = page(1, 1, 7.5, 2.6)
    blank(panels[0, 0], why)
    return sweep.title(fig, what, *caption)


def cut(shown: int, total: int, what: str) -> str:
    """What a picture leaves out because it would not fit, or ''."""
    if shown == total:
        return ""
    return f"{shown} of {total} {what} shown, spread over the grid; and {total - shown} more."


def stacked(
    names: Iterable[str], width: float, height: float, what: str = "panels", **share
) -> tuple[Figure, dict[str, Axes], str]:
    """A panel for each name, one below the other, and in words what is left out."""
    every = list(dict.fromkeys(names))
    shown = spread(every, FACETS)
    fig, panels = page(len(shown), 1, width, height, **share)
    more = cut(len(shown), len(every), what)
    return fig, dict(zip(shown, panels[:, 0], strict=True)), more


def chosen_cells(
    sweep: SweepFrames, shown: Iterable[str], most: int = CELLS
) -> tuple[list[str], str]:
    """The cells with data or with a run that ended early, and in words what is left out."""
    early = set(sweep.ended["run"])
    rows = sweep.cells[sweep.cells["run"].isin({*shown, *early})]
    every = list(dict.fromkeys(rows["facet"]))
    cells = spread(every, most)
    more = cut(len(cells), len(every), "cells")
    left_out = rows.loc[~rows["facet"].isin(cells), "run"]
    if count := int(left_out.isin(early).sum()):
        more += f" Of the runs left out, {count} ended early."
    return cells, more


def multiples(
    sweep: SweepFrames, shown: Sequence[str], height: float, **share
) -> tuple[Figure, dict[str, Axes], str]:
    """A panel for each chosen cell; rows and columns follow the grid where it is full."""
    cells, more = chosen_cells(sweep, shown)
    first = sweep.look.colour
    rest = [axis for axis in varying(sweep.runs, sweep.axes) if axis != first]
    across = len(set(in_words(sweep.runs, rest)))
    down = len(set(axis_texts(sweep.runs, first)))
    columns = across if 1 < across <= 5 and across * down == len(cells) else min(4, len(cells))
    rows = -(-len(cells) // columns)
    width = max(3.1, 7.2 / columns) * larger() ** 0.5
    fig, panels = page(rows, columns, width, height, **share)
    for ax in panels.flat[len(cells) :]:
        ax.remove()
    return fig, dict(zip(cells, panels.flat, strict=False)), more


def cell_words(sweep: SweepFrames, shown: Iterable[str]) -> dict[str, str]:
    """'3 of 4 to the end; NaN at step 0 (1 run)', by cell: also of a run that left no reading."""
    return frames.tally(sweep.cells, sweep.ended, {*shown, *sweep.ended["run"]}, "facet")


def title_cell(ax: Axes, cell: str, words: str, *more: str) -> None:
    width = letters(42)
    lines = textwrap.wrap(cell or "all runs", width) + textwrap.wrap(words, width)
    text = "\n".join(literal(line) for line in [*lines, *more])
    ax.set_title(text, fontsize=font(7.5))


def label_left(panels: Iterable[Axes], label: str) -> None:
    for ax in panels:
        place = ax.get_subplotspec()
        if place is not None and place.is_first_col():
            ax.set_ylabel(label)
