"""What the pictures of one sweep are drawn from, and what all of them say about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
from matplotlib.figure import Figure

from lnexp.analysis.table import column
from lnexp.present import frames
from lnexp.present.grid import Look, choose_look, common_settings, dress, varying
from lnexp.present.page import frame_words, page
from lnexp.present.style import say
from lnexp.rules import caveats

FACETS = 8  # panels one below the other


@dataclass(frozen=True)
class Sweep:
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


def nothing(sweep: Sweep, what: str, why: str, *caption: str) -> Figure:
    fig, panels = page(1, 1, 7.5, 2.6)
    say(panels[0, 0], why)
    return sweep.title(fig, what, *caption)


def cut(shown: int, there: int, what: str) -> str:
    """What a picture leaves out because it would not fit, or ''."""
    if shown == there:
        return ""
    return f"{shown} of {there} {what} shown, spread over the grid; and {there - shown} more."
