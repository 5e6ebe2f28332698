"""Runs grouped by the values of the axes. A cell's runs differ in their seed alone."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lnexp.results.statistics import median, wilson
from lnexp.results.tables import column, floats, numbers
from lnexp.results.verdicts import DECIDED, FAILURES, VERDICTS

# Counted in this order; what is not a verdict says how far the process came.
OUTCOMES = (*VERDICTS, "finished", "failed", "interrupted", "running", "pending")
# A verdict holds for the steps that were done, and these two say so.
WITH_HORIZON = ("stalled", "plateau")
ENDS = ("end_loss", "end_gap")
MEASURED = (*ENDS, "grad_ratio_end")
COUNTS = ("runs", "finished", "failures", "decided", *(f"{name}_n" for name in MEASURED))
TEXTS = ("verdicts", "causes", "undecided")


def outcomes(runs: pd.DataFrame) -> list[str]:
    """One word a run: its verdict, or its status where there is none."""
    return [v or s for v, s in zip(column(runs, "verdict"), column(runs, "status"), strict=True)]


def horizon(verdict: str, steps: Iterable[Any]) -> str:
    """'stalled within 420 steps': never without the steps that it holds for."""
    done = sorted({int(s) for s in steps if not pd.isna(s)})
    if verdict not in WITH_HORIZON or not done:
        return verdict
    span = str(done[0]) if len(done) == 1 else f"{done[0]}..{done[-1]}"
    return f"{verdict} within {span} steps"


def cells(runs: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    """One row a cell of one sweep, in grid order; its medians say how many runs they are of.

    A run that went non-finite has no end: it is counted in `failures`, not in end_loss and end_gap.
    """
    groups = members(runs, axes)
    rows = [_cell(runs.iloc[group]) for group in groups]
    firsts = [group[0] for group in groups]
    names = list(_cell(runs.iloc[:0]))
    frame = pd.DataFrame({name: _measured(name, [row[name] for row in rows]) for name in names})
    keys = runs[list(axes)].iloc[firsts].reset_index(drop=True)
    return pd.concat([keys, frame], axis=1)


def members(runs: pd.DataFrame, axes: Sequence[str]) -> list[list[int]]:
    """The positions of each cell's runs, in grid order."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, values in enumerate(zip(*(column(runs, axis) for axis in axes), strict=True)):
        groups.setdefault(tuple(map(str, values)), []).append(i)
    if not axes and len(runs):
        groups[()] = list(range(len(runs)))
    return list(groups.values())


def _measured(name: str, values: list[Any]) -> pd.Series:
    """Counts and texts as they are; measurements keep "not measured" apart from NaN."""
    if name in COUNTS or name in TEXTS:
        return pd.Series(values, dtype=str if name in TEXTS else np.int64)
    return floats(values)


def _cell(runs: pd.DataFrame) -> dict[str, Any]:
    words = outcomes(runs)
    counts = Counter(words)
    failures = sum(counts[word] for word in FAILURES)
    decided = sum(counts[word] for word in DECIDED)
    low, high = wilson(failures, decided)
    verdicts = [
        f"{counts[word]} {horizon(word, _steps(runs, words, word))}"
        for word in OUTCOMES
        if counts[word]
    ]
    undecided = [f"{counts[w]} {w}" for w in OUTCOMES if counts[w] and w not in DECIDED]
    causes = Counter(name for cause in column(runs, "cause") for name in cause.split("; ") if name)
    row: dict[str, Any] = {
        "runs": len(runs),
        "finished": list(column(runs, "status")).count("finished"),
        "verdicts": ", ".join(verdicts),
        "causes": ", ".join(f"{count} {name}" for name, count in causes.most_common()),
    }
    ended = np.array([w in VERDICTS and w != "nonfinite" for w in words], dtype=bool)
    for name in MEASURED:
        values = numbers(column(runs, name))[ended | (name not in ENDS)]
        values = values[~np.isnan(values)]
        row |= {
            name: median(values),
            f"{name}_min": float(values.min()) if len(values) else None,
            f"{name}_max": float(values.max()) if len(values) else None,
            f"{name}_n": len(values),
        }
    return row | {
        "h1": _first(column(runs, "h1")),
        "ln_v": _first(column(runs, "ln_v")),
        "failures": failures,
        "decided": decided,
        "p_failure": failures / decided if decided else None,
        "p_failure_low": low,
        "p_failure_high": high,
        "undecided": ", ".join(undecided),
    }


def _steps(runs: pd.DataFrame, words: list[str], word: str) -> list[Any]:
    return [s for s, w in zip(column(runs, "steps_done"), words, strict=True) if w == word]


def _first(values: pd.Series) -> float | None:
    """The first measured value; all runs of a cell share it."""
    return next((float(value) for value in values if value is not pd.NA), None)


def all_cells(runs: pd.DataFrame, axes: dict[str, list[str]]) -> pd.DataFrame:
    """The cells of every sweep, one below the other, `sweep` first."""
    parts = []
    for sweep, keys in axes.items():
        part = cells(runs.loc[runs["sweep"] == sweep], keys)
        part.insert(0, "sweep", sweep)
        parts.append(part)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"sweep": []})
