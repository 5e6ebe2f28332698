"""A config document checked key by key and value by value, with every problem gathered.

Free of torch and pandas. How the values become points is sweep.py's work.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from lnexp.claims.claims import Claim
from lnexp.claims.parse import parse_claims
from lnexp.config.document import spaceless
from lnexp.config.hints import TOP, check, refuse, takes, unknown, unknown_top
from lnexp.config.names import clean_name, wrong_name
from lnexp.config.overrides import Sheet
from lnexp.config.rules import DEFAULTS, hashable, show
from lnexp.config.schema import KEYS, SECTIONS
from lnexp.messages import short

CASES = "[{model.depth: 2}]"
SEED = "a whole number, at least 0"
MOST_LISTED = 10  # seeds written out in a complaint


def is_seed(value: Any) -> bool:
    return type(value) is int and value >= 0


@dataclass
class Draft:
    """What a document says; `unclear` keys have a complaint and no trustworthy value."""

    sheet: Sheet
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

    def read(self, stem: str) -> "Draft":
        for key in self.sheet.data:
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
        raw = self.sheet.data.get("claims", [])
        if not isinstance(raw, list):
            self.complain(refuse(raw, self.sheet.written("claims"), "a list"), "claims")
            return
        self.claims, problems = parse_claims(raw, self.sheet.place)
        self.problems += problems

    def complain(self, problem: str, *path: str | int) -> None:
        self.problems.append(f"{self.sheet.at(*path)}: {problem}")

    def value(self, key: str, value: Any, *path: str | int) -> Any:
        """One value as its field holds it; None after a complaint."""
        self.places[key] = self.sheet.place(*path)
        place = (self.places[key], str(path[0]))
        clean, problem = check(key, value, self.sheet.written(*path), place)
        if problem:
            self.unclear.add(key)
            if self.spaceless(value, *path):
                return clean
            self.complain(problem, *path)
        return clean

    def spaceless(self, value: Any, *path: str | int) -> bool:
        """Whether refused text holds a line `width:32`, after a complaint about it."""
        found = spaceless(self.sheet.written(*path)) if isinstance(value, str) else None
        if not found or (found[0] == 0 and len(path) > 1):  # `device: cuda:0` is no such line
            return False
        line, problem = found
        self.problems.append(f"{self.sheet.value_place(line, *path)}: {problem}")
        return True

    def text(self, key: str) -> str:
        value = self.sheet.data.get(key, "")
        if isinstance(value, str):
            return value
        self.complain(refuse(value, self.sheet.written(key), "text, in quotes"), key)
        return ""

    def read_name(self, stem: str) -> None:
        self.name = self.text("name") if "name" in self.sheet.data else clean_name(stem)
        if "name" not in self.sheet.data:
            if self.name != stem:
                self.notes.append(f"the results of {stem!r} go to the name {self.name}")
            if problem := wrong_name(self.name):
                self.problems.append(f"{self.sheet.place()}: {problem}; add a line name: ...")
        elif isinstance(self.sheet.data["name"], str) and (problem := wrong_name(self.name)):
            self.complain(f"{self.name!r}: {problem}", "name")

    def group(self, *path: str | int) -> dict[str, Any]:
        """The mapping at a path; {} after a complaint."""
        value: Any = self.sheet.data
        for step in path:
            value = value[step] if isinstance(step, int) else value.get(step, {})
        if isinstance(value, dict):
            return value
        if self.spaceless(value, *path):
            return {}
        example = {"sweep": "{model.depth: [2, 4]}", "cases": "{model.depth: 2}"}.get(str(path[0]))
        example = example or f"{{{next(iter(SECTIONS[str(path[0])].model_fields))}: ...}}"
        wanted = f"keys and values, such as {example}"
        self.complain(refuse(value, self.sheet.written(*path), wanted), *path)
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
        value: Any = self.sheet.data
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
            written = self.sheet.written(*path)
            whole = fits(value) and written == short(written)
            wanted = f"[{written}]" if whole else example
            count = value if key == "seeds" and whole and 1 < value <= MOST_LISTED else 0
            instead = f" (for {count} seeds write {list(range(count))})" if count else ""
            self.complain(f"{short(written)} is one value; write a list: {wanted}{instead}", *path)
        self.unclear.add(key)
        return []

    def distinct(self, values: list[Any], *path: str | int) -> list[Any]:
        """Values without repetition; each repetition is said once."""
        kept: list[Any] = []
        again: list[Any] = []
        seen: set[Any] = set()
        for value in values:
            if hashable(value) not in seen:
                seen.add(hashable(value))
                kept.append(value)
            elif value not in again:
                again.append(value)
        for value in again:
            count = values.count(value)
            self.notes.append(
                f"{self.sheet.at(*path)}: {show(value)} is listed {count} times and runs once"
            )
        return kept

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
            self.places[key] = self.sheet.place("sweep", key)

    def axis(self, key: str) -> list[Any]:
        example = f"[{show(DEFAULTS[key])}]" if DEFAULTS[key] != "" else '["..."]'
        return self.listed(key, example, lambda value: takes(key, value), "sweep", key)

    def read_cases(self) -> None:
        if "cases" not in self.sheet.data:
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
        seeds = self.sheet.data.get("seeds", [0])
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
        if "seeds" not in self.sheet.data:
            return [0]
        for i, seed in enumerate(self.listed("seeds", "[0, 1, 2]", is_seed, *path)):
            if is_seed(seed):
                seeds.append(seed)
            else:
                problem = refuse(seed, self.sheet.written(*path, i), SEED, is_seed)
                self.complain(problem, *path, i)
        return self.distinct(seeds, *path)
