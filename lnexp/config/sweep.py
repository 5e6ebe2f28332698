"""A config file becomes the points of a sweep: each checked, in one spelling, in grid order.

Free of torch and pandas, so that both halves may import it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from lnexp.claims.claims import Claim, lab_tables
from lnexp.config.document import dump, read
from lnexp.config.draft import Draft
from lnexp.config.names import NOT_IDENTITY
from lnexp.config.overrides import Sheet
from lnexp.config.rules import (
    DEFAULTS,
    Settings,
    build,
    canonical,
    caveats,
    clashes,
    hashable,
    idle_notes,
    show,
)
from lnexp.config.schema import RunConfig, resolved_embed_std
from lnexp.lab.schemas import excluded
from lnexp.messages import amount, one_line, refusal

__all__ = ["Point", "Sweep", "dump", "load_sweep", "resolved"]

MOST_POINTS = 100_000  # a product of a few long lists is soon beyond any lifetime


@dataclass(frozen=True)
class Point:
    config: RunConfig  # canonical: equal runs are equal configs
    settings: dict[str, Any]  # this point's values of the sweep's axes, as resolved


@dataclass(frozen=True)
class Sweep:
    name: str
    question: str
    path: Path
    axes: dict[str, list[Any]]  # sweep keys first, then the keys of cases
    points: list[Point]  # cases outermost, then sweep keys in order, seeds innermost
    notes: list[str]
    document: dict[str, Any]  # the config with -s applied
    claims: list[Claim]
    places: dict[str, str] = field(repr=False)

    @property
    def lab(self) -> list[str]:
        """The tables of lab/ that its claims read: measured after training."""
        return lab_tables(self.claims)

    def line(self, key: str) -> str:
        """Where a dotted key is set: 'file.yaml:4' or '-s model.depth=4'."""
        return self.places.get(key, str(self.path))


def load_sweep(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """Every point of a config file; UserError names all problems of the file at once."""
    path = Path(path)
    sheet = Sheet(read(path), path, overrides)
    draft = Draft(sheet).read(path.stem)
    grid = list(_grid(draft))
    problems = draft.problems + _clashes(draft, grid, path)
    if problems:
        raise refusal(problems, str(path))
    axes = [*draft.sweep, *dict.fromkeys(key for case in draft.cases for key in case)]
    distinct = _distinct(grid)
    points = list(_points(distinct, axes, draft.seeds))
    notes = draft.notes + idle_notes(grid) + _unrecorded_notes(grid)
    notes += caveats(point["model.norm"] for point in distinct)
    if len(distinct) < len(grid):
        different = amount(len(distinct), "different run")
        notes.append(f"{len(grid)} combinations are {different} for each seed")
    return Sweep(
        name=draft.name,
        question=draft.question,
        path=path,
        axes={key: _values(key, points) for key in axes},
        points=points,
        notes=list(map(one_line, notes)),
        document={"name": draft.name, **sheet.data},
        claims=draft.claims,
        places=draft.places,
    )


def resolved(config: RunConfig) -> dict[str, Any]:
    """Every value of a run by section, with nothing left to be looked up."""
    nested = config.model_dump()
    nested["model"]["embed_std"] = resolved_embed_std(config.model)
    return nested


def _grid(draft: Draft) -> Iterator[Settings]:
    """Every combination before seeds; a key with a complaint stands at its default."""
    size = len(draft.cases) * prod(map(len, draft.sweep.values())) * len(draft.seeds)
    if size > MOST_POINTS:
        draft.problems.append(
            f"{draft.sheet.place('sweep')}: sweep: {size:,} points; "
            f"at most {MOST_POINTS:,} in one sweep"
        )
        return
    base = DEFAULTS | {k: v for k, v in draft.base.items() if k not in draft.unclear}
    axes = {k: v for k, v in draft.sweep.items() if v and k not in draft.unclear}
    for case in draft.cases:
        held = base | {k: v for k, v in case.items() if k not in draft.unclear}
        for values in product(*axes.values()):
            yield held | dict(zip(axes, values, strict=True))


def _clashes(draft: Draft, grid: list[Settings], path: Path) -> list[str]:
    problems = []
    for rule, problem in clashes(grid, draft.unclear):
        places = [draft.places[key] for key in rule.keys if key in draft.places]
        problems.append(f"{places[0] if places else path}: {problem}")
    for key, problem in excluded(lab_tables(draft.claims), grid):
        problems.append(f"{draft.places.get(key, path)}: {key}: {problem}")
    return problems + _shared_steps(draft, grid)


def _shared_steps(draft: Draft, grid: list[Settings]) -> list[str]:
    """Under a constant schedule fewer steps are the start of the same run."""
    runs: dict[tuple[Any, ...], set[int]] = {}
    varied = {key for case in draft.cases for key in case} | set(draft.sweep)
    if "train.steps" not in varied or draft.unclear & {"train.steps", "train.schedule"}:
        return []
    for point in map(canonical, grid):
        if point["train.schedule"] == "constant":
            same = _key({**point, "train.steps": 0})
            runs.setdefault(same, set()).add(point["train.steps"])
    for steps in runs.values():
        if len(steps) > 1:
            listed = ", ".join(map(str, sorted(steps)))
            return [
                f"{draft.places['train.steps']}: train.steps: {listed} under schedule: constant "
                f"are one run, seen earlier and later; write the longest, {max(steps)}"
            ]
    return []


def _key(point: Settings) -> tuple[Any, ...]:
    """Equal for points that are one run."""
    return tuple(hashable(value) for key, value in point.items() if key not in NOT_IDENTITY)


def _distinct(grid: list[Settings]) -> list[Settings]:
    kept: dict[tuple[Any, ...], Settings] = {}
    for point in map(canonical, grid):
        kept.setdefault(_key(point), point)
    return list(kept.values())


def _unrecorded_notes(grid: list[Settings]) -> list[str]:
    """Keys that change what stays on disk, but no row, make no runs of their own."""
    notes = []
    for key in NOT_IDENTITY:
        values = dict.fromkeys(show(point[key]) for point in grid)
        if len(values) > 1:
            notes.append(f"{key}: {', '.join(values)} give the same rows; the first one counts")
    return notes


def _points(
    settings: list[Settings], axes: list[str], seeds: list[dict[str, int]]
) -> Iterator[Point]:
    for flat in settings:
        for seed in seeds:
            config = build(flat, seed)
            std = {"model.embed_std": resolved_embed_std(config.model)}
            shown = flat | std
            yield Point(config, {key: shown[key] for key in axes})


def _values(key: str, points: list[Point]) -> list[Any]:
    """An axis' values in the order in which the grid meets them."""
    met = {hashable(point.settings[key]): point.settings[key] for point in points}
    return list(met.values())
