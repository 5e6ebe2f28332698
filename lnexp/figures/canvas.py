"""A page of panels: its size, title, caption and legends, and how it is written to disk.

Figures are made without pyplot: no window, no backend, nothing left open.
"""

import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lnexp.figures.style import RC, SIZES, font, larger, letters, literal
from lnexp.files import draft_of

DPI = 150
# The formats there are, each with what keeps the time of drawing out of the file.
UNDATED: dict[str, dict[str, Any]] = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


@contextmanager
def house_style(size: str = "paper") -> Iterator[None]:
    """The same look whatever the user's matplotlibrc says."""
    scaled = {key: RC[key] * SIZES[size] for key in RC if key.endswith(("size", "linewidth"))}
    with matplotlib.style.context(["default", RC, scaled]), warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box; that is no reason to fail or to warn.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def page(
    rows: int, columns: int, width: float, height: float, *, sharex: bool = False
) -> tuple[Figure, np.ndarray]:
    """A figure of rows x columns panels of this size in inches."""
    taller = larger() ** 0.5  # its letters take more of the height
    fig = Figure(figsize=(width * columns, height * rows * taller), layout="constrained")
    FigureCanvasAgg(fig)
    return fig, fig.subplots(rows, columns, squeeze=False, sharex=sharex)


def frame_words(fig: Figure, title: str, subtitle: str, caption: str) -> None:
    """Title and settings above the panels, the reading help below, outside of their layout."""
    width, height = fig.get_size_inches()
    long = letters(width * 14)
    below = textwrap.wrap(subtitle, long)
    step = font(0.16) / height  # from line to line
    start = 1 + step * len(below) + 0.12 / height
    heading = "\n".join(literal(line) for line in textwrap.wrap(title, letters(width * 9.5)))
    fig.text(0.01, start, heading, fontsize=font(11), fontweight="bold", va="bottom")
    for i, line in enumerate(below):
        at = start - step * (i + 1)
        fig.text(0.01, at, literal(line), fontsize=font(8), color="0.3")
    for i, line in enumerate(textwrap.wrap(caption, long)):
        at = -(font(0.14) * (i + 1) + 0.05) / height
        fig.text(0.01, at, literal(line), fontsize=font(7.5), color="0.3")


def legend_beside(ax: Axes) -> None:
    """A panel's legend to its right, where it hides no data; rows become as high as it is."""
    if not (labels := ax.get_legend_handles_labels()[1]):
        return
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), borderaxespad=0)
    fig, place = ax.get_figure(root=True), ax.get_subplotspec()
    if fig is None or place is None:
        return
    lines = sum(label.count("\n") + 1 for label in labels)
    width, height = fig.get_size_inches()
    rows = place.get_gridspec().nrows
    fig.set_size_inches(width, max(height, rows * (font(0.17) * lines + 0.6)))


def legend_of_all(panels: Sequence[Axes]) -> None:
    """One legend for panels that share their lines, to the right of the first row's last."""
    entries = {}
    for ax in sorted(panels, key=lambda ax: -len(ax.get_legend_handles_labels()[1])):
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    top = [ax for ax in panels if (place := ax.get_subplotspec()) and place.is_first_row()]
    if entries:
        beside = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0)}
        top[-1].legend(list(entries.values()), list(entries), **beside)


def save(fig: Figure, folder: Path, stem: str, formats: Sequence[str]) -> list[Path]:
    """Write the picture in each format; no half picture is ever seen."""
    fig.draw_without_rendering()
    fig.set_layout_engine("none")  # laid out once, the same in every format
    written = []
    for kind in formats:
        path = folder / f"{stem}.{kind}"
        with draft_of(path) as draft:
            fig.savefig(draft, format=kind, dpi=DPI, bbox_inches="tight", metadata=UNDATED[kind])
        written.append(path)
    return written
