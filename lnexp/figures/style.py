"""Colours, markers and words that every picture shares: colour-blind safe, readable in grey."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.lines import Line2D

from lnexp.results.axes import STYLES, in_order, is_numeric

RC: dict[str, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "text.usetex": False,
    "svg.hashsalt": "lnexp",  # the same picture gives the same file
}

# How much larger than on paper letters are: a slide is read from the last row.
SIZES = {"paper": 1.0, "slide": 1.4}

# Okabe and Ito's colours, told apart with any colour vision; black is kept for failures.
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "0.45"
ENTRIES = 12  # series named in a legend; the rest is "and 18 more"
LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (9, 3)))
MARKERS = ("o", "s", "D", "v", "<", "p")
assert len(LINES) == len(MARKERS) == STYLES

# How a run ended, where it was not finite to its last step.
END_MARKERS = {
    "NaN": "X",
    "Inf": "^",
    "non-finite": "P",
    "failed": "*",
    "interrupted": "H",
    "running": ">",
    "unstable": "d",
}

OUTCOME_COLOURS = {
    "learned": "#009E73",
    "spiked": "#56B4E9",
    "too_short": "#CFE3F1",
    "plateau": "#F0E442",
    "stalled": "#E69F00",
    "lost": "#CC79A7",
    "diverged": "#D55E00",
    "nonfinite": "#000000",
    "nothing_to_learn": "#BBBBBB",
    "failed": "#7F7F7F",
    "interrupted": "#DDDDDD",
    "running": "#EEEEEE",
    "pending": "#FFFFFF",
    "finished": "#FFFFFF",  # and no verdict was possible
}


def larger() -> float:
    """How much larger than on paper this picture's letters are."""
    return matplotlib.rcParams["font.size"] / RC["font.size"]


def font(size: float) -> float:
    """A size of letters as this picture has it."""
    return size * larger()


def letters(count: float) -> int:
    """How many letters have room where `count` have on paper."""
    return max(8, int(count / larger()))


def literal(text: str, longest: int | None = None) -> str:
    """User text as matplotlib prints it letter by letter: `$` starts no formula, one line."""
    words = " ".join(text.split())
    if longest is not None and len(words) > longest:
        words = words[: longest - longest // 2 - 1] + "…" + words[-(longest // 2) :]
    return words.replace("$", r"\$")


def palette(values: Iterable[str]) -> dict[str, str]:
    """A colour a value: viridis in order for numbers or many, Okabe and Ito's for a few words."""
    ordered = in_order(values)
    if len(ordered) <= len(OKABE_ITO) and not (is_numeric(ordered) and len(ordered) > 1):
        return dict(zip(ordered, OKABE_ITO, strict=False))
    return shades(ordered)


def shades(ordered: Sequence[Any]) -> dict[Any, str]:
    """Dark to light along viridis; its last tenth is too pale for a line on white."""
    viridis = matplotlib.colormaps["viridis"]
    last = max(len(ordered) - 1, 1)
    return {value: to_hex(viridis(0.88 * i / last)) for i, value in enumerate(ordered)}


def strokes(values: Iterable[str]) -> dict[str, tuple[Any, str]]:
    """A line style and a marker for each value."""
    return {
        value: (LINES[i % STYLES], MARKERS[i % STYLES]) for i, value in enumerate(in_order(values))
    }


def hues_and_dashes(frame: pd.DataFrame) -> dict[str, Any]:
    """The colours of its `hue` and the lines of its `dash`, as every panel takes them."""
    return {"colours": palette(frame["hue"]), "dashes": strokes(frame["dash"])}


def ink_on(colour: str) -> str:
    """Black or white, whichever has the higher contrast on this colour."""
    return max(("black", "white"), key=lambda ink: contrast(ink, colour))


def contrast(one: str, other: str) -> float:
    """(L1 + 0.05) / (L2 + 0.05) of the relative luminances, L1 >= L2 (WCAG 2): 1 to 21."""
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the items, first and last among them, evenly spread."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def wrapped(words: str, width: int = 40, indent: str = "   ") -> str:
    return f"\n{indent}".join(literal(line) for line in textwrap.wrap(words, width))


def entries(
    series: Iterable[str], words: Mapping[str, str] | None = None
) -> tuple[dict[str, str], str]:
    """What a legend says of each series that it has room for, and how many more there are."""
    words, names = words or {}, list(dict.fromkeys(series))
    named = spread(names, ENTRIES)
    more = len(names) - len(named)
    texts = {n: wrapped(f"{n}: {words[n]}" if n in words else str(n)) for n in named}
    return texts, f"and {more} more" * (more > 0)


def note(ax: Axes, text: str) -> None:
    """A legend entry of words alone, where there are any."""
    if text:
        ax.add_line(Line2D([], [], linestyle="none", label=text))


def blank(ax: Axes, text: str) -> Axes:
    """A picture that has nothing to draw says so."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", wrap=True)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    return ax
