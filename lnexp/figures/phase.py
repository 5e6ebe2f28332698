"""Phase diagram: the most frequent verdict over two axes, with P(failure) and n written in."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lnexp.boundary.reading import LR
from lnexp.figures.canvas import legend_of_all, page
from lnexp.figures.drawing import FACETS, SweepFrames, cut, nothing
from lnexp.figures.frames import outcome_words
from lnexp.figures.overview import GAP, Fitting, box, colour_of, dress_map, rank_of
from lnexp.figures.style import font, ink_on, letters, literal, spread
from lnexp.messages import amount
from lnexp.results.axes import (
    DEPTH,
    Look,
    axis_texts,
    dress,
    in_order,
    in_words,
    is_numeric,
    short_key,
    varying,
)
from lnexp.results.cells import outcomes
from lnexp.results.verdicts import DECIDED, FAILURES

MOST = 24  # values of an axis
HELP = (
    "Colour: the most frequent verdict of a cell's runs (seeds), divided where several are equally "
    "frequent. P(failure): nonfinite, diverged, lost or stalled, of the decided runs; n: all."
)


def plane(sweep: SweepFrames) -> tuple[str, str] | None:
    """The axes along x and y: learning rate, depth, then numbers, then words; None: no two vary."""
    free = [axis for axis in varying(sweep.runs, sweep.axes) if axis != sweep.facet]
    texts = {axis: set(axis_texts(sweep.runs, axis)) for axis in free}
    free.sort(key=lambda a: (a not in (LR, DEPTH), not is_numeric(texts[a]), -len(texts[a])))
    if len(free) < 2:
        return None
    x, y = free[:2]
    return (y, x) if x == DEPTH else (x, y)


def counts(runs: pd.DataFrame, x: str, y: str, facets: Sequence[str]) -> pd.DataFrame:
    """facet, column, row, top (the most frequent outcomes), failures, decided, n."""
    names = ["facet", "column", "row"]
    keys = zip(in_words(runs, facets), axis_texts(runs, x), axis_texts(runs, y), strict=True)
    frame = pd.DataFrame(list(keys), columns=names, dtype=object).assign(outcome=outcomes(runs))
    rows = []
    for key, cell in frame.groupby(names, sort=False):
        times = Counter(cell["outcome"])
        most = max(times.values())
        top = tuple(sorted((o for o in times if times[o] == most), key=rank_of))
        failures, decided = (sum(times[o] for o in kind) for kind in (FAILURES, DECIDED))
        rows.append((*key, top, failures, decided, len(cell)))
    return pd.DataFrame(rows, columns=[*names, "top", "failures", "decided", "n"])


def lacks_plane(sweep: SweepFrames) -> str:
    return "" if plane(sweep) else "it takes two axes that vary"


def picture(sweep: SweepFrames) -> Figure:
    axes = plane(sweep)
    if axes is None:
        return nothing(sweep, "phase diagram", lacks_plane(sweep))
    x, y = axes
    rest = [axis for axis in varying(sweep.runs, sweep.axes) if axis not in axes]
    cells = counts(sweep.runs, x, y, rest)
    every = list(dict.fromkeys(dress(sweep.runs, Look(facets=tuple(rest)))["facet"]))
    facets = spread(every, FACETS)
    columns, rows = (in_order(axis_texts(sweep.runs, axis)) for axis in axes)
    shown_columns, shown_rows = spread(columns, MOST), spread(rows, MOST)
    across = max(1, min(len(facets), 3, 10 // len(shown_columns)))
    legend = 2.0 / across  # inches of its width that a panel gives to the legend
    width, height = 0.9 + legend + 0.95 * len(shown_columns), 1.0 + 0.55 * len(shown_rows)
    fig, panels = page(-(-len(facets) // across), across, width, max(height, 2.0))
    for ax in panels.flat[len(facets) :]:
        ax.remove()
    words = outcome_words(sweep.runs)
    for facet, ax in zip(facets, panels.flat, strict=False):
        here = cells[cells["facet"] == facet]
        phase_map(here, ax, columns=shown_columns, rows=shown_rows, labels=words)
        ax.set(xlabel=short_key(x), ylabel=short_key(y), title=literal(facet))
    legend_of_all(list(panels.flat[: len(facets)]))
    more = (
        _elsewhere(sweep.runs, cells),
        cut(len(facets), len(every), "panels"),
        cut(len(shown_columns), len(columns), f"values of {short_key(x)}"),
        cut(len(shown_rows), len(rows), f"values of {short_key(y)}"),
    )
    return sweep.title(fig, f"verdicts over {short_key(x)} and {short_key(y)}", HELP, *more)


def _elsewhere(runs: pd.DataFrame, cells: pd.DataFrame) -> str:
    """Outcomes that no tile has the colour of."""
    seen = {outcome for top in cells["top"] for outcome in top}
    rest = Counter(outcome for outcome in outcomes(runs) if outcome not in seen)
    words = [f"{outcome.replace('_', ' ')} ({amount(n, 'run')})" for outcome, n in rest.items()]
    return f"Nowhere the most frequent: {', '.join(words)}." if words else ""


def phase_map(
    frame: pd.DataFrame,
    ax: Axes,
    *,
    columns: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """A tile for each cell in the colour of its most frequent outcome; values grow to the right
    and upwards. `frame`: column, row, top, failures, decided, n."""
    columns = in_order(frame["column"]) if columns is None else columns
    rows = in_order(frame["row"]) if rows is None else rows
    for cell in frame.itertuples():
        if cell.column not in columns or cell.row not in rows:
            continue
        left, low = columns.index(cell.column) + GAP, rows.index(cell.row) + GAP
        width = (1 - 2 * GAP) / len(cell.top)
        for i, outcome in enumerate(cell.top):
            box(ax, outcome, left + i * width, low, width)
        text = Fitting(tile_forms(cell), left + 0.5 - GAP, low + 0.5 - GAP, 1 - 2 * GAP)
        alone = len(cell.top) == 1
        text.set(color=ink_on(colour_of(cell.top[0])) if alone else "black", fontsize=font(7))
        if not alone:
            text.set_bbox({"facecolor": "white", "alpha": 0.75, "pad": 1, "linewidth": 0})
        ax.add_artist(text)
    ax.set(xlim=(0, max(len(columns), 1)), ylim=(0, max(len(rows), 1)))
    ax.set_xticks(np.arange(len(columns)) + 0.5, [literal(c, letters(14)) for c in columns])
    ax.set_yticks(np.arange(len(rows)) + 0.5, [literal(r, letters(18)) for r in rows])
    return dress_map(ax, {outcome for top in frame["top"] for outcome in top}, labels)


def tile_forms(cell) -> tuple[str, ...]:
    """What a tile says, from long to short; the first that fits is drawn."""
    name = cell.top[0].replace("_", " ") + "\n" if len(cell.top) == 1 else ""
    if not cell.decided:
        return (f"{name}undecided\nn {cell.n}", f"undecided\nn {cell.n}", f"n {cell.n}", "")
    share = f"{cell.failures / cell.decided:.2f}"
    n = f"n {cell.n}" if cell.decided == cell.n else f"n {cell.n}, {cell.decided} decided"
    whole = (f"P(failure) {share}\n{n}", f"P {share}\n{n}", f"{share}\nn {cell.n}")
    return (*(name + form for form in whole), share, "")
