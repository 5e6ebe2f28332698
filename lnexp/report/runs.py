"""One run on the page: its explanation, its network, its curve and its map of gradients; and what
tells whether results changed since: sizes and times of the files that a page is made from."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from lnexp.explain.case import Case
from lnexp.explain.explain import explain
from lnexp.explain.show import horizon, sections
from lnexp.figures import thin
from lnexp.figures.layerframes import layer_totals
from lnexp.files import plain
from lnexp.messages import UserError, amount
from lnexp.report import network
from lnexp.results.load import Results
from lnexp.results.runs_csv import is_locked
from lnexp.results.tables import column, numbers

OF_SWEEP = ("points.json", "sweep.yaml", "claims.json")
OF_RUN = (
    "config.yaml", "env.json", "steps.csv", "layers.csv", "events.csv", "status.json",
    "autopsy.json",
)  # fmt: skip


@dataclass(frozen=True)
class RunSection:
    """What the page shows of one run."""

    diagnosis: str
    horizon: str = ""
    explanation: dict[str, list[str]] = field(default_factory=dict)  # its paragraphs, by title
    born: str = ""  # "Inf, forward, step 5, blocks.13.mlp.body.w2"
    network: Markup = Markup("")
    marks: list[str] = field(default_factory=list)  # those in the network, in words
    env: dict[str, Any] = field(default_factory=dict)
    curve: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, Any] = field(default_factory=dict)
    thinned: list[str] = field(default_factory=list)  # in words, for this run


SectionReader = Callable[[Path, int], RunSection]


def read_section(folder: Path, cells: int) -> RunSection:
    """`cells`: the most that the map of gradients may have. A run never costs the page."""
    try:
        explanation = explain(folder)
    except UserError as problem:
        return RunSection("; ".join(problem.problems))
    except Exception as error:  # a file that changes while it is read, or worse
        return RunSection(f"Not explained: {type(error).__name__}: {error}".splitlines()[0])
    case = explanation.case
    curve, short_curve = _curve(case)
    gradients, short_map = _gradients(case, cells)
    drawn = all(key in case.settings for key in network.NEEDS)
    marks = network.marks(case)
    return RunSection(
        explanation.diagnosis,
        horizon(case),
        sections(explanation),
        _born(case, marks),
        network.diagram(case.settings, marks) if drawn else Markup(""),
        [network.words(mark, case.depth) for mark in marks] if drawn else [],
        case.env,
        curve,
        gradients,
        [*short_curve, *short_map],
    )


def _born(case: Case, marks: list[network.BirthMark]) -> str:
    """In a few words for the table."""
    if not marks or case.bad_step is None:
        return ""
    return f"{marks[0].kind}, {marks[0].phase}, {marks[0].module}"


def _curve(case: Case) -> tuple[dict[str, Any], list[str]]:
    losses = column(case.steps, "loss")
    known = losses.notna().to_numpy()
    steps, loss = column(case.steps, "step").to_numpy()[known], numbers(losses)[known]
    if not len(loss):
        return {}, []
    at = thin.curve(loss)
    words = [f"loss: {len(at)} of {amount(len(loss), 'step')} drawn"]
    short = [float(f"{value:.5g}") for value in loss[at].tolist()]  # what a screen shows
    return plain({"steps": steps[at].tolist(), "loss": short}), words if len(at) < len(loss) else []


def _gradients(case: Case, cells: int) -> tuple[dict[str, Any], list[str]]:
    totals = layer_totals(case.layers.assign(run=case.folder.name))
    if not len(totals):
        return {}, []
    steps, at_step = np.unique(totals["step"].to_numpy(dtype=int), return_inverse=True)
    layers, at_layer = np.unique(totals["layer"].to_numpy(dtype=int), return_inverse=True)
    values = np.zeros((len(layers), len(steps)))
    measured = np.zeros(values.shape, dtype=bool)
    values[at_layer, at_step] = totals["value"].to_numpy(dtype=float)
    measured[at_layer, at_step] = True
    drawn = thin.thin_map(layers, steps, values, measured, cells)
    across = f"{len(drawn.steps)} columns for {amount(len(steps), 'reading')}"
    down = f"{len(drawn.layers)} rows for {amount(len(layers), 'layer')}"
    words = [f"gradients: {across}, {down}"] if drawn.thinned else []
    return thin.encode(drawn) | {"depth": case.depth}, words


class SectionCache:
    """Reads a run anew only when its files have changed: a page that is watched is made often."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Any, RunSection]] = {}

    def __call__(self, folder: Path, cells: int) -> RunSection:
        seen = (cells, *(signature(folder / name) for name in OF_RUN))
        if not (folder / "status.json").exists():  # running while its sweep is locked
            seen += (is_locked(folder.parent.parent),)
        known = self._known.get(folder)
        if known is None or known[0] != seen:
            known = self._known[folder] = (seen, read_section(folder, cells))
        return known[1]


@dataclass(frozen=True)
class Stamp:
    text: str
    newest: float  # seconds since 1970; of no file: 0


def stamp_of(results: Results, folders: Mapping[str, Path]) -> Stamp:
    """`folders`: of each sweep."""
    files = [folder / name for folder in folders.values() for name in OF_SWEEP]
    files += [file for folder in folders.values() for file in sorted(folder.glob("lab/*.csv"))]
    files += [Path(run) / name for run in results.runs["folder"] for name in OF_RUN]
    seen = [signature(file) for file in files]
    facts = repr([*seen, *results.runs["run"], *results.runs["status"]])
    newest = max((time for time, _ in seen), default=0)
    return Stamp(hashlib.sha256(facts.encode()).hexdigest()[:16], newest / 1e9)


def signature(path: Path) -> tuple[int, int]:
    """Time and size; zeros where there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
