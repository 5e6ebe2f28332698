"""A config file, checked key by key with every problem gathered, becomes the points of a sweep: in
one spelling, in grid order.

Free of torch and pandas, so that both halves may import it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from lnexp.claims.claims import Claim, lab_tables
from lnexp.claims.parse import parse_claims
from lnexp.config.document import dump, read, spaceless
from lnexp.config.hints import TOP, check, refuse, takes, unknown, unknown_top
from lnexp.config.names import NOT_IDENTITY, clean_name, wrong_name
from lnexp.config.overrides import PlacedConfig
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
from lnexp.config.schema import KEYS, SECTIONS, RunConfig, resolved_embed_std
from lnexp.lab.schemas import excluded
from lnexp.messages import amount, one_line, refusal, short
from lnexp.model.catalog import SCHEDULES

__all__ = ["Point", "Sweep", "dump", "load_sweep", "resolved"]

MOST_POINTS = 100_000  # a product of a few long lists is soon beyond any lifetime
CASES = "[{model.depth: 2}]"
SEED = "a whole number, at least 0"
MOST_LISTED = 10  # seeds written out in a complaint


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
    placed = PlacedConfig(read(path), path, overrides)
    checked = CheckedConfig(placed).read(path.stem)
    grid = list(_grid(checked))
    problems = checked.problems + _clashes(checked, grid, path)
    if problems:
        raise refusal(problems, str(path))
    axes = [*checked.sweep, *dict.fromkeys(key for case in checked.cases for key in case)]
    distinct = _distinct(grid)
    points = list(_points(distinct, axes, checked.seeds))
    notes = checked.notes + idle_notes(grid) + _unrecorded_notes(grid)
    notes += caveats(point["model.norm"] for point in distinct)
    if len(distinct) < len(grid):
        different = amount(len(distinct), "different run")
        notes.append(f"{len(grid)} combinations are {different} for each seed")
    return Sweep(
        name=checked.name,
        question=checked.question,
        path=path,
        axes={key: _values(key, points) for key in axes},
        points=points,
        notes=list(map(one_line, notes)),
        document={"name": checked.name, **placed.data},
        claims=checked.claims,
        places=checked.places,
    )


def resolved(config: RunConfig) -> dict[str, Any]:
    """Every value of a run by section, with nothing left to be looked up."""
    nested = config.model_dump()
    nested["model"]["embed_std"] = resolved_embed_std(config.model)
    return nested


def is_seed(value: Any) -> bool:
    return type(value) is int and value >= 0


@dataclass
class CheckedConfig:
    """What a document says; `unclear` keys have a complaint and no trustworthy value."""

    placed: PlacedConfig
    name: str = ""
    question: str = ""
    base: dict[str, Any] = field(default_factory=dict)
    sweep: dict[str, list[Any]] = field(default_factory=dict)
    cases: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    seeds: list[dict[str, int]] = field(default_factory=lambda: [{"init": 0, "data": 0}])
    places: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unclear: set[str] = field(default_factory=set)
    claims: list[Claim] = field(default_factory=list)

    def read(self, stem: str) -> "CheckedConfig":
        for key in self.placed.data:
            if key not in TOP:
                self.complain(unknown_top(key), key)
        self.read_name(stem)
        self.question = self.text("question")
        for section in SECTIONS:
            self.read_section(section)
        self.read_cases()
        self.read_sweep()
        self.read_seeds()
        self.read_claims()
        return self

    def read_claims(self) -> None:
        raw = self.placed.data.get("claims", [])
        if not isinstance(raw, list):
            self.complain(refuse(raw, self.placed.written("claims"), "a list"), "claims")
            return
        self.claims, problems = parse_claims(raw, self.placed.place)
        self.problems += problems

    def complain(self, problem: str, *path: str | int) -> None:
        self.problems.append(f"{self.placed.at(*path)}: {problem}")

    def value(self, key: str, value: Any, *path: str | int) -> Any:
        """One value as its field holds it; None after a complaint."""
        self.places[key] = self.placed.place(*path)
        place = (self.places[key], str(path[0]))
        clean, problem = check(key, value, self.placed.written(*path), place)
        if problem:
            self.unclear.add(key)
            if self.spaceless(value, *path):
                return clean
            self.complain(problem, *path)
        return clean

    def spaceless(self, value: Any, *path: str | int) -> bool:
        """Whether refused text holds a line `width:32`, after a complaint about it."""
        slip = spaceless(self.placed.written(*path)) if isinstance(value, str) else None
        if not slip or (slip[0] == 0 and len(path) > 1):  # `device: cuda:0` is no such line
            return False
        line, problem = slip
        self.problems.append(f"{self.placed.value_place(line, *path)}: {problem}")
        return True

    def text(self, key: str) -> str:
        value = self.placed.data.get(key, "")
        if isinstance(value, str):
            return value
        self.complain(refuse(value, self.placed.written(key), "text, in quotes"), key)
        return ""

    def read_name(self, stem: str) -> None:
        self.name = self.text("name") if "name" in self.placed.data else clean_name(stem)
        if "name" not in self.placed.data:
            if self.name != stem:
                self.notes.append(f"the results of {stem!r} go to the name {self.name}")
            if problem := wrong_name(self.name):
                self.problems.append(f"{self.placed.place()}: {problem}; add a line name: ...")
        elif isinstance(self.placed.data["name"], str) and (problem := wrong_name(self.name)):
            self.complain(f"{self.name!r}: {problem}", "name")

    def group(self, *path: str | int) -> dict[str, Any]:
        """The mapping at a path; {} after a complaint."""
        value: Any = self.placed.data
        for step in path:
            value = value[step] if isinstance(step, int) else value.get(step, {})
        if isinstance(value, dict):
            return value
        if self.spaceless(value, *path):
            return {}
        example = {"sweep": "{model.depth: [2, 4]}", "cases": "{model.depth: 2}"}.get(str(path[0]))
        example = example or f"{{{next(iter(SECTIONS[str(path[0])].model_fields))}: ...}}"
        wanted = f"keys and values, such as {example}"
        self.complain(refuse(value, self.placed.written(*path), wanted), *path)
        return {}

    def read_section(self, section: str) -> None:
        for leaf, value in self.group(section).items():
            key = f"{section}.{leaf}"
            if key not in KEYS:
                self.complain(unknown(leaf, section), section, leaf)
            else:
                self.base[key] = self.value(key, value, section, leaf)

    def listed(
        self, key: str, example: str, fits: Callable[[Any], bool], *path: str | int
    ) -> list[Any]:
        """The non-empty list at a path; [] after a complaint.

        One value in the list's place is shown in brackets where it `fits`, else the example is.
        """
        value: Any = self.placed.data
        for step in path:
            value = value[step]
        if isinstance(value, list):
            if not value:
                self.complain("nothing to run: the list is empty", *path)
            return value
        if value is None or isinstance(value, dict):
            wanted = f"a list, such as {example}"
            self.complain(refuse(value, "", wanted), *path)
        else:
            written = self.placed.written(*path)
            whole = fits(value) and written == short(written)
            wanted = f"[{written}]" if whole else example
            count = value if key == "seeds" and whole and 1 < value <= MOST_LISTED else 0
            instead = f" (for {count} seeds write {list(range(count))})" if count else ""
            self.complain(f"{short(written)} is one value; write a list: {wanted}{instead}", *path)
        self.unclear.add(key)
        return []

    def distinct(self, values: list[Any], *path: str | int) -> list[Any]:
        """Values without repetition; each repetition is said once."""
        once: dict[Any, Any] = {}
        again: dict[Any, Any] = {}
        for value in values:
            (again if hashable(value) in once else once).setdefault(hashable(value), value)
        for value in again.values():
            times = f"is listed {values.count(value)} times and runs once"
            self.notes.append(f"{self.placed.at(*path)}: {show(value)} {times}")
        return list(once.values())

    def read_sweep(self) -> None:
        in_cases = {key for case in self.cases for key in case}
        for key in self.group("sweep"):
            if key not in KEYS:
                self.complain(unknown(key, ""), "sweep", key)
                continue
            if key in in_cases:
                self.complain("stands under sweep and under cases; keep one", "sweep", key)
                self.unclear.add(key)
            values = [
                clean
                for i, value in enumerate(self.axis(key))
                if (clean := self.value(key, value, "sweep", key, i)) is not None
            ]
            self.sweep[key] = self.distinct(values, "sweep", key)
            self.places[key] = self.placed.place("sweep", key)

    def axis(self, key: str) -> list[Any]:
        example = f"[{show(DEFAULTS[key])}]" if DEFAULTS[key] != "" else '["..."]'
        return self.listed(key, example, lambda value: takes(key, value), "sweep", key)

    def read_cases(self) -> None:
        if "cases" not in self.placed.data:
            return
        self.cases = []
        for i in range(len(self.listed("cases", CASES, lambda value: False, "cases"))):
            case: dict[str, Any] = {}
            for key, value in self.group("cases", i).items():
                if key in KEYS:
                    case[key] = self.value(key, value, "cases", i, key)
                else:
                    self.complain(unknown(key, ""), "cases", i, key)
            self.cases.append(case)

    def read_seeds(self) -> None:
        seeds = self.placed.data.get("seeds", [0])
        if not isinstance(seeds, dict):
            self.seeds = [{"init": s, "data": s} for s in self.seed_list("seeds")]
            return
        kinds: dict[str, list[int]] = {"init": [0], "data": [0]}
        for kind in seeds:
            if kind in kinds:
                kinds[kind] = self.seed_list("seeds", kind)
            else:
                self.complain("no such key; seeds has init and data", "seeds", kind)
        self.seeds = [{"init": i, "data": d} for i, d in product(kinds["init"], kinds["data"])]

    def seed_list(self, *path: str) -> list[int]:
        seeds: list[int] = []
        if "seeds" not in self.placed.data:
            return [0]
        for i, seed in enumerate(self.listed("seeds", "[0, 1, 2]", is_seed, *path)):
            if is_seed(seed):
                seeds.append(seed)
            else:
                problem = refuse(seed, self.placed.written(*path, i), SEED, is_seed)
                self.complain(problem, *path, i)
        return self.distinct(seeds, *path)


def _grid(checked: CheckedConfig) -> Iterator[Settings]:
    """Every combination before seeds; a key with a complaint stands at its default."""
    size = len(checked.cases) * prod(map(len, checked.sweep.values())) * len(checked.seeds)
    if size > MOST_POINTS:
        checked.problems.append(
            f"{checked.placed.place('sweep')}: sweep: {size:,} points; "
            f"at most {MOST_POINTS:,} in one sweep"
        )
        return
    base = DEFAULTS | {k: v for k, v in checked.base.items() if k not in checked.unclear}
    axes = {k: v for k, v in checked.sweep.items() if v and k not in checked.unclear}
    for case in checked.cases:
        held = base | {k: v for k, v in case.items() if k not in checked.unclear}
        for values in product(*axes.values()):
            yield held | dict(zip(axes, values, strict=True))


def _clashes(checked: CheckedConfig, grid: list[Settings], path: Path) -> list[str]:
    problems = []
    for rule, problem in clashes(grid, checked.unclear):
        places = [checked.places[key] for key in rule.keys if key in checked.places]
        problems.append(f"{places[0] if places else path}: {problem}")
    for key, problem in excluded(lab_tables(checked.claims), grid):
        problems.append(f"{checked.places.get(key, path)}: {key}: {problem}")
    return problems + _shared_steps(checked, grid)


def _shared_steps(checked: CheckedConfig, grid: list[Settings]) -> list[str]:
    """Under a schedule that reads no steps fewer steps are the start of the same run."""
    runs: dict[tuple[Any, ...], set[int]] = {}  # by schedule and all but the steps
    varied = {key for case in checked.cases for key in case} | set(checked.sweep)
    if "train.steps" not in varied or checked.unclear & {"train.steps", "train.schedule"}:
        return []
    for point in map(canonical, grid):
        schedule = point["train.schedule"]
        if not SCHEDULES[schedule].reads_steps:
            same = schedule, _key({**point, "train.steps": 0})
            runs.setdefault(same, set()).add(point["train.steps"])
    for (schedule, _), steps in runs.items():
        if len(steps) > 1:
            listed = f"{', '.join(map(str, sorted(steps)))} under schedule: {schedule}"
            return [
                f"{checked.places['train.steps']}: train.steps: {listed} are one run, seen "
                f"earlier and later; write the longest, {max(steps)}"
            ]
    return []


def _key(point: Settings) -> tuple[Any, ...]:
    """Equal for points that are one run."""
    return tuple(hashable(value) for key, value in point.items() if key not in NOT_IDENTITY)


def _distinct(grid: list[Settings]) -> list[Settings]:
    runs: dict[tuple[Any, ...], Settings] = {}
    for point in map(canonical, grid):
        runs.setdefault(_key(point), point)
    return list(runs.values())


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
