"""Where theory gives a power law at initialisation: the measured figures with the expected slope.

probe/laws.py says for which settings there is one; other runs are not drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lnexp.claims.tests import mean_interval
from lnexp.claims.units import Run, runs_of
from lnexp.figures.canvas import legend_beside, page
from lnexp.figures.drawing import FACETS, SweepFrames, cut, nothing
from lnexp.figures.frames import measured, over_seeds
from lnexp.figures.panels import draw_range
from lnexp.figures.scale import scale_for
from lnexp.figures.style import GREY, blank, literal, palette, shades, wrapped
from lnexp.messages import amount
from lnexp.probe.laws import DEPTH, Law, by_cell, laws_for, slopes_of
from lnexp.results.axes import setting_text, value_text

WHAT = "theory and measurement at step 0"
HELP = (
    "Lines: median over the seeds; bands: smallest to largest. Dashed: the expected slope alone, "
    "through the middle of what was measured; its height is no prediction. [95 % t interval of the "
    "seeds' slopes]."
)
NONE = (
    "no run at step 0 for which a law is stated\n"
    "(measure.level full; Xavier, embeddings of std 1, LayerNorm, no further change)"
)


@dataclass(frozen=True)
class Panel:
    """One quantity over N or over blocks: a line a cell, each with the law that holds for it."""

    title: str
    x: str
    y: str
    points: Sequence[tuple]  # run, series, x, value
    laws: Mapping[str, Law]  # series -> law
    words: Mapping[str, str]  # series -> what its legend says of it
    ordered: bool  # series are depths

    @property
    def frame(self) -> pd.DataFrame:
        """run, series, x, value: the finite ones."""
        rows = [point for point in self.points if np.isfinite(point[-1])]
        return pd.DataFrame(rows, columns=["run", "series", "x", "value"])

    @property
    def broken(self) -> set[str]:
        return {point[0] for point in self.points if not np.isfinite(point[-1])}


def lacks_laws(sweep: SweepFrames) -> str:
    return "" if _panels(sweep) else "no law is stated for its settings, or none was read at step 0"


def picture(sweep: SweepFrames) -> Figure:
    panels = _panels(sweep)
    if not panels:
        return nothing(sweep, WHAT, NONE)
    shown = panels[:FACETS]
    fig, axes = page(len(shown), 1, 8.5, 3.2)
    for panel, ax in zip(shown, axes[:, 0], strict=True):
        _draw(panel, ax)
    bad = {run for panel in panels for run in panel.broken}
    lost = f"{amount(len(bad), 'run')} with a NaN or Inf at step 0: no point there." if bad else ""
    return sweep.title(fig, WHAT, HELP, lost, cut(len(shown), len(panels), "panels"))


def _draw(panel: Panel, ax: Axes) -> None:
    frame = panel.frame
    ax.set(xlabel=panel.x, ylabel=panel.y, title=literal(panel.title))
    if not len(frame):
        blank(ax, "not finite in any run")
        return
    scale = scale_for(frame["value"].to_numpy(dtype=float), "log")
    names = list(dict.fromkeys(frame["series"]))
    colours = shades(names) if panel.ordered else palette(names)
    curves = over_seeds(frame, ["series", "x"])
    for name, rows in curves.groupby("series", sort=False):
        rows = rows.sort_values("x")
        draw_range(rows, "x", ax, scale, colours[name], "-", wrapped(panel.words[name]))
        law = panel.laws[name]
        if panel.ordered and name != names[-1]:
            continue  # the deepest has the longest line
        words = f"expected slope {law.exponent:g} ({law.source})"
        _expected(rows, law, ax, GREY if panel.ordered else colours[name], wrapped(words))
    ax.set_xscale("log")
    at = sorted(set(frame["x"]))
    ticks = at if len(at) <= 8 else [n for n in (1, 3, 10, 30, 100, 300, 1000, 3000) if n <= at[-1]]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    scale.dress(ax)
    legend_beside(ax)


def _expected(rows: pd.DataFrame, law: Law, ax: Axes, colour: str, label: str) -> None:
    x, y = (rows[name].to_numpy(dtype=float) for name in ("x", "median"))
    shown = np.isfinite(y) & (y > 0)
    if shown.sum() > 1:
        u, v = np.log(x[shown]), np.log(y[shown])
        line = np.exp(v.mean() + law.exponent * (u - u.mean()))
        ax.plot(x[shown], line, color=colour, linestyle=(0, (4, 3)), linewidth=0.9, label=label)


def _panels(sweep: SweepFrames) -> list[Panel]:
    layers = sweep.layers
    if not len(sweep.runs) or not len(layers) or "act_rms" not in layers:
        return []
    start = layers.loc[(layers["step"] == 0).to_numpy()]
    read = set(start["run"].astype(object))
    runs = [run for run in runs_of(sweep.runs, sweep.runs["sweep"].iloc[0]) if run.name in read]
    groups = by_cell(runs, [axis for axis in sweep.axes if axis != DEPTH])
    stream = measured(start, "act_rms", ["run", "layer", "part"])
    return [*_over_depth(start, groups), *_over_blocks(stream, groups)]


Groups = Sequence[tuple[dict, list[Run]]]


def _over_depth(start: pd.DataFrame, groups: Groups) -> list[Panel]:
    """The last block's W2, of all settings that have a law and three depths."""
    w2 = measured(start, "grad_norm", ["run", "layer", "part"])
    w2 = w2[w2["part"] == "w2"]
    values = {(row.run, row.layer): row.value for row in w2.itertuples()}
    laws: dict[str, Law] = {}
    words: dict[str, str] = {}
    points = []
    for cell, members in groups:
        law = _law(members, lambda law: law.over_depth)
        if law is None or len({run.settings[DEPTH] for run in members}) < 3:
            continue
        name = _name(cell)

        def last(run: Run) -> float | None:
            return values.get((run.name, run.settings[DEPTH] - 1))

        ends = [(run.name, name, run.settings[DEPTH], last(run)) for run in members]
        if measured_ends := [point for point in ends if point[-1] is not None]:
            points += measured_ends
            laws[name], words[name] = law, f"{name}: {_slope(slopes_of(members, last))}"
    title = "gradient norm of the last block's W2"
    return [Panel(title, "blocks N", "gradient norm", points, laws, words, False)] if laws else []


PROFILES: dict[str, tuple[str, Callable[[np.ndarray, float], np.ndarray]]] = {
    "variance_exponent": ("stream variance above its start", lambda rms, start: rms**2 - start**2),
    "rms_exponent": ("stream RMS", lambda rms, start: rms),
}


def _over_blocks(stream: pd.DataFrame, groups: Groups) -> list[Panel]:
    """The stream over blocks, a panel for each setting but depth."""
    embed = stream[stream["part"] == "embed"].set_index("run")["value"]
    blocks = stream[stream["part"] == "mlp"]
    panels = []
    for cell, members in groups:
        law = _law(members, lambda law: law.column in PROFILES)
        if law is None:
            continue
        what, of = PROFILES[law.column]
        points = []
        depths = {run.name: run.settings[DEPTH] for run in members}
        for run, rows in blocks[blocks["run"].isin(list(depths))].groupby("run", sort=False):
            y = of(rows["value"].to_numpy(dtype=float), float(embed.get(run, np.nan)))
            name = f"depth {depths[run]}"
            points += [(run, name, x + 1, v) for x, v in zip(rows["layer"], y, strict=True)]
        if not points:
            continue
        order = {f"depth {depth}": depth for depth in depths.values()}
        points.sort(key=lambda point: order[point[1]])
        laws, words = dict.fromkeys(order, law), {name: name for name in order}
        panels.append(Panel(f"{_name(cell)}: {what}", "block l", what, points, laws, words, True))
    return panels


def _law(members: Sequence[Run], fits: Callable[[Law], bool]) -> Law | None:
    """The one with a slope that holds for all of these runs."""
    for law in laws_for(members[0].settings):
        if law.exponent is not None and fits(law):
            return law
    return None


def _slope(slopes: Sequence[float | None]) -> str:
    """'slope -0.522 [-0.586, -0.458]'"""
    mean, low, high = mean_interval([slope for slope in slopes if slope is not None])
    if mean is None:
        return "no slope"
    return f"slope {mean:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")


def _name(cell: dict) -> str:
    return ", ".join(setting_text(k, value_text(v)) for k, v in cell.items()) or "all runs"
