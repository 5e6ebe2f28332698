"""Claims as a config holds them become Claim objects, or plain lines that say what is wrong; and
when each was first stated, in claims.json of the sweep's folder.

Free of torch and pandas, so that both halves may import it.
"""

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from lnexp.claims.claims import (
    FORMS,
    CauseName,
    Claim,
    Form,
    LabMetric,
    LayerMetric,
    Misspelt,
    Op,
    Verdict,
)
from lnexp.config.hints import check, unknown
from lnexp.config.rules import is_list, show
from lnexp.config.schema import KEYS
from lnexp.files import strict_json, write_whole
from lnexp.messages import one_line, short
from lnexp.rows import Part

Place = Callable[..., str]  # ("claims", 0, "expect") -> "file.yaml:12"

IDS = re.compile(r"[A-Za-z0-9._-]{1,60}")
CLAIM_KEYS = tuple(Claim.model_fields)
METRICS = tuple(dict.fromkeys([*LayerMetric.model_fields, *LabMetric.model_fields]))
METRIC = (
    "a column of runs.csv such as end_loss, {column, layer, part, step} of layers.csv, or "
    "file.csv:column of lab/"
)
SETTINGS = "settings, such as {model.placement: post}"
# What each key takes, in words.
WANTED = {
    "verdict": "a verdict or a list of them",
    "cause": "a cause or a list of them",
    "share": 'a share in quotes, such as "> 0.5"',
    "every": "true or false",
    "by": "a step number, at least 1",
    "op": 'one of ">", ">=", "<", "<=" in quotes',
    "value": "a number",
    "within": "a number above 0",
    "less_than": f"a number, or {SETTINGS}",
    "over": "a setting, such as model.depth",
    "between": "two numbers, the smaller one first: [-0.6, -0.4]",
    "best_over": "a setting, such as train.lr",
    "tune_seeds": "a list of seeds, such as [0, 1]",
    "column": "the name of a column",
    "layer": "a whole number; -1 is the last block",
    "part": "one of " + ", ".join(get_args(Part)),
    "step": "a step number, or last",
    "file": "the name of a file in lab/",
    "at": "columns and values, such as {block: 3}",
    **dict.fromkeys(("than", "from", "as"), SETTINGS),
    **dict.fromkeys(("metric", "less", "difference", "same", "slope"), METRIC),
}
WORDS = {
    "verdict": get_args(Verdict),
    "cause": get_args(CauseName),
    "op": get_args(Op),
    "part": get_args(Part),
}


def parse_claims(raw: Sequence[Any], place: Place) -> tuple[list[Claim], list[str]]:
    """The claims that are sound, and a line for each fault of the others."""
    claims: list[Claim] = []
    problems: list[str] = []
    ids: set[str] = set()
    for i, value in enumerate(raw):
        if claim := _Parser(value, i, place, problems).claim(ids):
            claims.append(claim)
    return claims, problems


class _Parser:
    """One claim; every fault is gathered with its place, the claim's id and the key."""

    def __init__(self, value: Any, at: int, place: Place, problems: list[str]) -> None:
        self.value, self.at, self.place, self.problems = value, at, place, problems
        given = value.get("id") if isinstance(value, dict) else None
        self.id = given if isinstance(given, str) and given else f"claim {at + 1}"
        self.before = len(problems)

    def complain(self, problem: str, *path: str | int) -> None:
        keys = [step for step in path if isinstance(step, str)]
        name = ": ".join([short(self.id), ".".join(keys)] if keys else [short(self.id)])
        where = self.place("claims", self.at, *path)
        self.problems.append(one_line(f"{where}: claims: {name}: {problem}"))

    def claim(self, ids: set[str]) -> Claim | None:
        if not isinstance(self.value, dict):
            self.complain("is no group of keys; write id, says, where and expect")
            return None
        for key in self.value:
            if key not in CLAIM_KEYS:
                self.complain(_unknown(key, CLAIM_KEYS), key)
        texts = {key: self.text(key) for key in ("id", "says", "source")}
        if texts["id"] and not IDS.fullmatch(texts["id"]):
            self.complain("use letters, digits, '.', '_', '-', at most 60 of them", "id")
        elif texts["id"] and texts["id"] in ids:
            self.complain("two claims have this id; give each its own", "id")
        ids.add(texts["id"])
        where = self.settings(self.value.get("where", {}), "where", several=True)
        expect = self.expect()
        if expect is not None:
            self.same_cells(where, expect)
        if len(self.problems) > self.before or expect is None:
            return None
        return Claim.model_validate({**texts, "where": where, "expect": expect})

    def text(self, key: str) -> str:
        value = self.value.get(key, "")
        if key not in self.value and key != "source":
            self.complain(f"{key} is missing; write {key}: ...")
        elif not isinstance(value, str):
            self.complain(f"{_written(value)} is no text; write it in quotes", key)
        elif not value.strip() and key != "source":
            self.complain("is empty; write a few words", key)
        return value if isinstance(value, str) else ""

    def settings(self, value: Any, *path: str, several: bool = False) -> dict[str, Any]:
        """Settings with each value as its key holds it; `several`: tuples of possible values."""
        if not isinstance(value, dict):
            self.complain(f"{_written(value)} does not fit; write {SETTINGS}", *path)
            return {}
        held: dict[str, Any] = {}
        for key, given in value.items():
            if key not in KEYS:
                self.complain(unknown(key, ""), *path, key)
                continue
            many = isinstance(given, list) and (
                not is_list(key) or any(isinstance(item, list) for item in given)
            )
            if many and not (several and given):
                why = "is an empty list" if several else "is a list"
                self.complain(f"{why}; write one value", *path, key)
                continue
            values = given if many else [given]
            checked = [check(key, item, _written(item)) for item in values]
            for _, problem in checked:
                if problem:
                    self.complain(problem, *path, key)
            clean = tuple(item for item, _ in checked)
            held[key] = clean if several else clean[0]
        return held

    def expect(self) -> Form | None:
        if "expect" not in self.value:
            self.complain("expect is missing; write expect: {verdict: learned}")
            return None
        given = self.value["expect"]
        if not isinstance(given, dict):
            fault = f"{_written(given)} does not fit; write expect: {{verdict: learned}}"
            self.complain(fault, "expect")
            return None
        leads = [key for key in given if key in FORMS]
        if len(leads) != 1:
            self.complain(_which_form(given, leads), "expect")
            return None
        form = FORMS[leads[0]]
        clean, faulty = dict(given), set[str]()
        for key in ("than", "from", "as", "less_than"):
            if key in _keys(form) and isinstance(given.get(key), dict):
                before = len(self.problems)
                clean[key] = self.settings(given[key], "expect", key)
                faulty |= {key} if len(self.problems) > before else set()
        try:
            return form.model_validate(clean)
        except ValidationError as error:
            for path, problem in _faults(error, form, leads[0]):
                if faulty.isdisjoint(path[:1]):
                    self.complain(problem, "expect", *path)
            return None

    def same_cells(self, where: dict[str, Any], expect: Form) -> None:
        """A comparison of cells with themselves says nothing."""
        for name in ("than", "base", "other", "less_than"):
            other = getattr(expect, name, None)
            if not isinstance(other, dict):
                continue
            key = type(expect).model_fields[name].alias or name
            if all(where.get(k) == (v,) for k, v in other.items()):
                self.complain("names the cells of where themselves", "expect", key)
            elif expect.best_over in other:
                self.complain(f"sets {expect.best_over}, which best_over chooses", "expect", key)


def _keys(form: type[Form]) -> list[str]:
    return [field.alias or name for name, field in form.model_fields.items()]


def _which_form(given: dict[str, Any], leads: list[str]) -> str:
    if leads:
        return f"{' and '.join(leads)} are two claims; write one for each"
    near = [alike[0] for key in given if (alike := get_close_matches(key, FORMS, n=1))]
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"says nothing to expect; write one of {', '.join(FORMS)}{hint}"


def _faults(
    error: ValidationError, form: type[Form], lead: str
) -> list[tuple[tuple[str, ...], str]]:
    """(path, plain words), one a key."""
    problems: dict[tuple[str, ...], str] = {}
    for fault in error.errors():
        key = str(fault["loc"][0]) if fault["loc"] else lead
        nested = [str(step) for step in fault["loc"][1:] if step in WANTED]
        inner = nested[-1] if nested else key
        value, kind = fault["input"], fault["type"]
        path = (key, inner) if nested else (key,)
        own: Any = fault.get("ctx", {}).get("error")
        if kind == "extra_forbidden":
            keys = _keys(form) if len(fault["loc"]) == 1 else METRICS
            problem = _unknown(str(fault["loc"][-1]), keys)
        elif kind == "missing":
            missing = str(fault["loc"][-1])
            path = path[:1] if nested else ()
            problem = f"{missing} is missing; write {WANTED[missing]}"
        elif isinstance(own, Misspelt):
            problem = _misspelt(own.word, own.words, own.noun)
        elif own is not None:
            problem = str(own)
        elif inner in WORDS and isinstance(value, str):
            problem = _misspelt(value, WORDS[inner], inner)
        else:
            problem = f"{_written(value)} does not fit; write {WANTED[inner]}"
        problems.setdefault(path, problem)
    return list(problems.items())


def _misspelt(word: str, words: Sequence[str], noun: str) -> str:
    if noun == "setting":
        return f"{short(word)}: {unknown(word, '')}"
    near = get_close_matches(word, words, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(words)}"
    return f"{short(word)} is no {noun}; {hint}"


def _unknown(key: str, keys: Sequence[str]) -> str:
    near = get_close_matches(key, keys, n=1)
    return f"no such key; {f'did you mean {near[0]}?' if near else 'there are ' + ', '.join(keys)}"


def _written(value: Any) -> str:
    value = list(value) if isinstance(value, tuple) else value
    return short(".nan" if value != value else "an empty value" if value is None else show(value))


FILE = "claims.json"
BEFORE, AFTER = "stated before", "added after"


def claim_hash(claim: Claim) -> str:
    """SHA-256 of what the claim says, where and what it expects; its id and source may change."""
    meaning = claim.model_dump(mode="json", include={"says", "where", "expect"})
    text = json.dumps(meaning, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


def claims_hash(claims: Sequence[Claim]) -> str:
    """SHA-256 of all claims, whatever their order."""
    return sha256("".join(sorted(map(claim_hash, claims))).encode()).hexdigest()


def record_claims(sweep: Path, claims: Sequence[Claim], now: datetime) -> None:
    """Keep when each claim was first seen, and how many runs had rows by then.

    Call it before the first run starts. Entries stay for good: a claim that changes is a new one.
    """
    seen = {entry["sha256"]: entry for entry in _entries(sweep)}
    begun = sum(1 for _ in sweep.glob("runs/*/steps.csv"))
    for claim in claims:
        digest = claim_hash(claim)
        first = {"sha256": digest, "first_seen": now.isoformat(timespec="seconds")}
        entry = seen.get(digest, {**first, "runs_begun": begun})
        seen[digest] = {**entry, "id": claim.id}
    value = {"schema": 1, "sha256": claims_hash(claims), "claims": list(seen.values())}
    write_whole(sweep / FILE, strict_json(value))


def stated(sweep: Path, claims: Sequence[Claim]) -> dict[str, str]:
    """'stated before' or 'added after' the first run, by the claim's id.

    A claim that was never recorded counts as added after.
    """
    before = {entry["sha256"] for entry in _entries(sweep) if entry["runs_begun"] == 0}
    return {claim.id: BEFORE if claim_hash(claim) in before else AFTER for claim in claims}


def _entries(sweep: Path) -> list[dict[str, Any]]:
    """The whole entries of claims.json; none where it is missing or damaged."""
    try:
        value = json.loads((sweep / FILE).read_text(encoding="utf-8"))
        entries = value["claims"]
        return [e for e in entries if isinstance(e["sha256"], str) and type(e["runs_begun"]) is int]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []
