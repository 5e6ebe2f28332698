"""Survival: the share of a cell's runs that are still finite, over the steps."""

# pandas' own types call every selection "Series | DataFrame | ndarray": nothing to learn there.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportReturnType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lnexp.analysis.survival import survival
from lnexp.analysis.table import column
from lnexp.lines import amount
from lnexp.present.frames import not_shown, split
from lnexp.present.grid import dress
from lnexp.present.page import legend_beside, page
from lnexp.present.panels import ENTRIES, wrapped
from lnexp.present.style import note, palette, plain, spread, strokes
from lnexp.present.subject import FACETS, Sweep, cut, nothing

HELP = (
    "Steps: share of the runs (seeds) without a NaN or Inf in loss, gradient or parameters so "
    "far; bars at the right: 95 % (Wilson) of the last share, in the order of the legend; a run "
    "that ended otherwise counts as long as it was there."
)


def curves(runs: pd.DataFrame, dressed: pd.DataFrame) -> pd.DataFrame:
    """facet, series, hue, dash, step, share, low, high, and words: '7 of 10 finite at the end'."""
    lives = {run: (done, born) for run, done, born in _lives(runs) if done > 0}
    there = dressed[dressed["run"].isin(lives)]
    rows = []
    for (facet, series), group in there.groupby(["facet", "series"], sort=False):
        done, bad = zip(*(lives[run] for run in group["run"]), strict=True)
        words = f"{bad.count(None)} of {amount(len(bad), 'run')} finite"
        for p in survival(done, bad):
            look = (group["hue"].iloc[0], group["dash"].iloc[0])
            rows.append((facet, series, *look, p.step, p.share, p.low, p.high, words))
    names = ["facet", "series", "hue", "dash", "step", "share", "low", "high", "words"]
    return pd.DataFrame(rows, columns=names)


def _lives(runs: pd.DataFrame) -> Iterator[tuple[str, int, int | None]]:
    """Of each run: its name, its steps, and the step in which a bad value was born."""
    done, known = split(column(runs, "steps_done"))
    born, failed = split(column(runs, "first_bad_step"))
    for i, run in enumerate(runs["run"] if "run" in runs else []):
        bad = int(born[i]) if failed[i] and np.isfinite(born[i]) else None
        yield run, int(done[i]) if known[i] and np.isfinite(done[i]) else 0, bad


def picture(sweep: Sweep) -> Figure:
    what = "share of runs still finite"
    dressed = dress(sweep.runs, sweep.look)
    frame = curves(sweep.runs, dressed)
    begun = [run for run, done, _ in _lives(sweep.runs) if done > 0]
    absent = not_shown(dressed, begun)
    if not len(frame):
        return nothing(sweep, what, "no run has made a step", absent)
    every = list(dict.fromkeys(frame["facet"]))
    facets = spread(every, FACETS)
    fig, panels = page(len(facets), 1, 9.5, 3.0, sharex=True)
    for facet, ax in zip(facets, panels[:, 0], strict=True):
        still_finite(
            frame[frame["facet"] == facet],
            ax,
            colours=palette(list(dressed["hue"])),
            dashes=strokes(list(dressed["dash"])),
        )
        ax.set_title(plain(facet))
        legend_beside(ax)
    whole = (frame["share"] == 1).all()
    words = f"Every value of {amount(len(begun), 'run')} stayed finite." if whole else HELP
    return sweep.title(fig, what, words, absent, cut(len(facets), len(every), "panels"))


def still_finite(
    frame: pd.DataFrame,
    ax: Axes,
    *,
    colours: Mapping[str, str] | None = None,
    dashes: Mapping[str, tuple] | None = None,
) -> Axes:
    """A falling step line for each series, and its interval."""
    colours = colours or palette(list(frame["hue"]))
    dashes = dashes or strokes(list(frame["dash"]))
    names = list(dict.fromkeys(frame["series"]))
    named = spread(names, ENTRIES)
    last = float(frame["step"].max())
    beside = {name: last * (1.02 + 0.012 * i) for i, name in enumerate(names)}
    for name, rows in frame.groupby("series", sort=False):
        colour, (line, _) = colours[rows["hue"].iloc[0]], dashes[rows["dash"].iloc[0]]
        label = wrapped(f"{name}: {rows['words'].iloc[0]}") if name in named else None
        ax.plot(
            rows["step"], rows["share"], color=colour, linestyle=line, label=label,
            drawstyle="steps-post",
        )  # fmt: skip
        end = rows.iloc[-1]  # bands would hide one another: the interval stands beside its line
        ax.plot([beside[name]] * 2, [end["low"], end["high"]], color=colour, linestyle=line)
        if rows["share"].iloc[-1] == 0:  # where the line ends on the axis
            ax.plot([end["step"]], [0], color=colour, marker="X", markeredgecolor="black")
    if len(names) > len(named):
        note(ax, f"and {len(names) - len(named)} more")
    ax.set(ylim=(-0.03, 1.03), ylabel="share finite", xlabel="steps done")
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    return ax
