"""One value axis of a picture: linear, log or asinh, on which nothing is ever dropped.

An exact zero has a marked place below a log axis, a value that is not finite one above any axis.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import AsinhLocator, LogLocator, MaxNLocator, NullLocator

Kind = Literal["linear", "log", "asinh"]
EXTREME = 290.0  # decades; beyond them a double leaves no room for margins
FARTHEST = 1e100  # on an asinh axis, which grows to both sides
LANE = 0.055  # of the axis, for one row of marks above the scale
LANES = 5


@dataclass(frozen=True)
class Scale:
    """Where values go on a value axis that runs from `low` to `high`."""

    kind: Kind
    low: float
    high: float
    zeros: bool = False  # a log axis with exact zeros to show
    lanes: int = 0  # rows of marks for values that are not finite
    above: str = "not finite"  # what these rows are called

    @property
    def floor(self) -> float:
        """Where an exact zero is drawn on a log axis."""
        bottom, top = self._ends()
        return float(self._back(bottom - max(0.13 * (top - bottom), 0.15)))

    def place(self, values: np.ndarray) -> np.ndarray:
        """Values as drawn; NaN and Inf become NaN: they are drawn as marks, in a lane."""
        drawn = np.where(np.isfinite(values), values, np.nan).astype(float)
        if self.kind == "asinh":
            return np.clip(drawn, -FARTHEST, FARTHEST)
        if self.kind != "log":
            return drawn
        some = np.clip(drawn, 10.0**-EXTREME, 10.0**EXTREME)
        return np.where(drawn == 0, self.floor, np.where(np.isnan(drawn), np.nan, some))

    def lane(self, row: int) -> float:
        """Height, as a part of the axis, of a row of marks."""
        return 1 - LANE * (0.75 + row % LANES)

    def dress(self, ax: Axes) -> None:
        """Scale, limits and ticks, with the two places that are not to scale shaded and named."""
        bottom, top = self._ends()
        span = top - bottom
        low_edge, high_edge = bottom - 0.05 * span, top + 0.05 * span
        zero = float(self._own(np.array(self.floor)))
        if self.zeros:
            low_edge = zero - 0.06 * span
        room = (LANE * self.lanes + 0.02) if self.lanes else 0.0
        top_edge = high_edge + (high_edge - low_edge) * room / (1 - room)
        ax.set_yscale(self.kind, **({"linear_width": 1.0} if self.kind == "asinh" else {}))
        ax.set_ylim(float(self._back(low_edge)), float(self._back(top_edge)))
        ticks, names = self._ticks(bottom, top)
        if self.zeros:
            ax.axhspan(
                *self._back(np.array([low_edge, (zero + bottom) / 2])), color="0.92", zorder=0
            )
            ticks, names = [self.floor, *ticks], ["exactly 0", *names]
        if self.lanes:
            ax.axhspan(*self._back(np.array([high_edge, top_edge])), color="0.92", zorder=0)
            middle = float(self._back((high_edge + top_edge) / 2))
            ticks, names = [*ticks, middle], [*names, self.above]
        ax.set_yticks(ticks, names)
        ax.yaxis.set_minor_locator(NullLocator())  # it would go on below "exactly 0"

    def _ends(self) -> tuple[float, float]:
        """Both ends in the scale's own units, never closer than a line can be seen in."""
        low, high = (float(self._own(np.array(end))) for end in (self.low, self.high))
        least = 0.6 if self.kind == "log" else 1e-6 + 0.02 * max(abs(low), abs(high))
        if high - low < least:
            low, high = (low + high - least) / 2, (low + high + least) / 2
        return low, high

    def _own(self, values: np.ndarray) -> np.ndarray:
        if self.kind == "log":
            return np.clip(np.log10(np.clip(values, 1e-300, None)), -EXTREME, EXTREME)
        if self.kind == "asinh":
            return np.arcsinh(np.clip(values, -FARTHEST, FARTHEST))
        return values

    def _back(self, values):
        if self.kind == "log":
            return np.power(10.0, values)
        return np.sinh(values) if self.kind == "asinh" else np.asarray(values)

    def _ticks(self, bottom: float, top: float) -> tuple[list[float], list[str]]:
        low, high = float(self._back(bottom)), float(self._back(top))
        if self.kind == "log":
            with np.errstate(over="ignore"):  # it looks for ticks beyond the largest double
                ticks = np.array(LogLocator(numticks=7).tick_values(low, high))
            if sum((ticks >= low) & (ticks <= high)) < 2:
                ticks = LogLocator(subs=(1, 2, 5), numticks=7).tick_values(low, high)
        elif self.kind == "asinh":
            ticks = AsinhLocator(1.0, numticks=9).tick_values(low, high)
        else:
            ticks = MaxNLocator(6).tick_values(low, high)
        ticks = np.asarray(ticks, dtype=float)
        ticks = ticks[np.isfinite(ticks)]
        margin, inside = 0.05 * (top - bottom), self._own(ticks)
        shown = ticks[(bottom - margin <= inside) & (inside <= top + margin)].tolist()
        return shown, [tick_text(tick) for tick in shown]


def tick_text(value: float) -> str:
    """A number as short as it is exact: 0.001, 1e-05, 3."""
    return f"{round(value, 12) if abs(value) > 1e-9 else value:.6g}"


def scale_for(values: np.ndarray, kind: Kind, *, lanes: int = 0, include: tuple = ()) -> Scale:
    """The scale that holds every finite value, and those to include."""
    finite = values[np.isfinite(values)]
    shown = np.concatenate([finite, [v for v in include if np.isfinite(v)]])
    if kind == "log":
        positive = shown[shown > 0]
        low, high = (positive.min(), positive.max()) if len(positive) else (1.0, 1.0)
        return Scale("log", float(low), float(high), bool((shown == 0).any()), min(lanes, LANES))
    low, high = (shown.min(), shown.max()) if len(shown) else (0.0, 1.0)
    return Scale(kind, float(low), float(high), lanes=min(lanes, LANES))
