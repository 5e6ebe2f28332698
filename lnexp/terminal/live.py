"""A sweep while it runs: a line a run, with its loss and gradient norm so far as sparklines."""

# pandas' own types call every selection "Series | DataFrame | ndarray": nothing to learn there.
# pyright: reportArgumentType=false, reportCallIssue=false

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from rich.console import Group
from rich.text import Text

from lnexp.figures.frames import measured
from lnexp.messages import amount, one_line
from lnexp.results.axes import seed_texts
from lnexp.results.cells import OUTCOMES, outcomes
from lnexp.results.load import Results
from lnexp.results.tables import column
from lnexp.terminal.sheet import Column, Sheet
from lnexp.terminal.summary import axis_columns, by_sweep, figure

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-~=+*#"  # where the terminal's encoding has no others
WIDTH = 20  # letters of a sparkline
FIRST = ("running", "failed", "interrupted")  # shown before the rest
AROUND = 6  # lines of a sweep's table that are no run
KEY = "Sparklines: from the first step to the last one done; the gradient's is logarithmic; "
MARKS = "x: NaN or Inf, 0: exactly zero."


def live(results: Results, lines: int, bars: str = BARS) -> Group:
    """All sweeps in about so many lines of a terminal."""
    room = max(1, lines // max(1, len(results.axes)) - AROUND)
    parts: list[Sheet | Text] = [
        _sheet(results, *sweep, room=room, bars=bars) for sweep in by_sweep(results)
    ]
    return Group(*parts, *(Text(one_line(f"note: {note}")) for note in results.notes))


def _sheet(
    results: Results, runs: pd.DataFrame, axes: list[str], title: str, room: int, bars: str
) -> Sheet:
    words = outcomes(runs)
    shown = chosen(words, room)
    some = runs.iloc[shown].reset_index(drop=True)
    steps = replace(results, runs=some).steps(["step", "loss", "grad_norm"])
    loss, gradient = (series(steps, some, name) for name in ("loss", "grad_norm"))
    columns = [
        Column("seed", seed_texts(some), number=True),
        Column("state", [words[i] for i in shown]),
        Column("steps", done(some, loss), number=True),
        Column("loss", [figure(last(values)) for values in loss], number=True),
        Column("loss so far", [spark(values, bars=bars) for values in loss], rank=2),
        Column("gradient", [figure(last(values)) for values in gradient], number=True, rank=3),
        Column("gradient so far", [spark(values, True, bars) for values in gradient], rank=4),
    ]
    below = [counted(words), KEY + MARKS]
    if len(shown) < len(words):
        rest = [word for i, word in enumerate(words) if i not in set(shown)]
        below.insert(1, f"Not shown: {counted(rest)}")
    return Sheet(title, [*axis_columns(some, axes), *columns], below, whole="show")


def chosen(words: Sequence[str], room: int) -> list[int]:
    """Runs that fit: those in training, those that failed, then the latest to end."""
    ended = [i for i, word in enumerate(words) if word not in (*FIRST, "pending")]
    first = [i for kind in FIRST for i, word in enumerate(words) if word == kind]
    return [*first, *reversed(ended)][:room]


def counted(words: Sequence[str]) -> str:
    """'36 runs: 2 running, 30 pending, 4 learned.'"""
    counts = Counter(words)
    order = [*FIRST, "pending", *OUTCOMES]
    known = [word for word in dict.fromkeys(order) if counts[word]]
    parts = ", ".join(f"{counts[word]} {word}" for word in known)
    return f"{amount(len(words), 'run')}{': ' * bool(parts)}{parts}."


def series(steps: pd.DataFrame, runs: pd.DataFrame, name: str) -> list[np.ndarray]:
    """A column of steps.csv for each of these runs, in order of steps."""
    rows = measured(steps, name, ["run", "step"])
    groups = {run: group["value"].to_numpy(dtype=float) for run, group in rows.groupby("run")}
    return [groups.get(run, np.array([])) for run in runs["run"]]


def done(runs: pd.DataFrame, loss: Sequence[np.ndarray]) -> list[str]:
    """'120/200': a row of loss is a step done."""
    wanted = column(runs, "train.steps")
    return [f"{len(v)}/{'?' if pd.isna(n) else n}" for v, n in zip(loss, wanted, strict=True)]


def last(values: np.ndarray) -> float | None:
    return float(values[-1]) if len(values) else None


def spark(values: np.ndarray, log: bool = False, bars: str = BARS, width: int = WIDTH) -> str:
    """The median of each of `width` equal spans, between the smallest and the largest of them.

    x: the span holds a NaN or Inf; 0: it is exactly zero, where the scale is logarithmic.
    """
    spans = np.array_split(values, min(width, len(values))) if len(values) else []
    bad = [not np.isfinite(span).all() for span in spans]
    middle = np.array(
        [np.nan if b else np.median(s) for s, b in zip(spans, bad, strict=True)], dtype=float
    )
    zero = log & (middle == 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        heights = np.where(zero, np.nan, np.log10(np.abs(middle)) if log else middle)
    known = heights[np.isfinite(heights)]
    low, range_ = (known.min(), np.ptp(known) or 1.0) if len(known) else (0.0, 1.0)
    return "".join(
        "x" if b else "0" if z else bars[int((h - low) / range_ * (len(bars) - 1) + 0.5)]
        for h, b, z in zip(heights, bad, zero, strict=True)
    )
