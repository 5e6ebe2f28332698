"""One run folder as one row of runs.csv."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from lnexp.config.schema import RunConfig
from lnexp.origin.record import Autopsy, parse
from lnexp.results.tables import BrokenTable, stored_table
from lnexp.results.verdicts import Facts, Judgement, Outcome, judge
from lnexp.rows import EventRow, LayerRow, StepRow

TABLES: dict[str, type] = {"steps": StepRow, "layers": LayerRow, "events": EventRow}
DEFAULTS = RunConfig().settings()
FACTS = {"ln_v": float, "h1": float, "h2": float, "parameters": int}
OUTCOME = {
    "first_bad_step": int, "steps_done": int, "seconds": float, "skipped": int,
    "adam_below_eps": float, "adam_underflowed": float,
}  # fmt: skip
FIGURES = (
    "first_bad_step", "first_loss", "end_loss", "end_gap", "ln_v", "h1", "h2", "grad_ratio_step0",
    "grad_ratio_end", "update_ratio_end", "spike_score", "parameters", "steps_done", "seconds",
)  # fmt: skip
# What a verdict needs of each table.
JUDGED: dict[str, list[str] | None] = {
    "steps": [
        "step", "lr", "loss", "unigram_loss", "val_loss", "grad_norm", "weight_norm",
        "update_norm", "skipped", "nonfinite_grads",
    ],
    "layers": ["step", "layer", "part", "grad_norm", "update_norm", "token_cosine"],
    "events": None,
}  # fmt: skip
COLUMNS = (
    "run", "seed_init", "seed_data", *DEFAULTS, "status", "verdict", "cause", *FIGURES, "evidence",
)  # fmt: skip
YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where libyaml is there


class BrokenRun(Exception):
    """A file of a run folder that cannot be used; says why in one line."""


def read_run(folder: Path, point: dict[str, Any], locked: bool) -> tuple[dict[str, Any], list[str]]:
    """Values by the names of COLUMNS (what is not known is left out), and notes."""
    row: dict[str, Any] = {
        "run": folder.name,
        "seed_init": point.get("seed_init"),
        "seed_data": point.get("seed_data"),
        **{key: value for key, value in point["settings"].items() if key in DEFAULTS},
    }
    if not folder.is_dir():
        return row | {"status": "pending"}, []
    notes: list[str] = []
    try:
        outcome = read_outcome(folder)
    except BrokenRun as problem:
        notes.append(str(problem))
        outcome = None
    status = outcome.status if outcome else "running" if locked else "interrupted"
    row["status"] = status
    try:
        settings, seeds = read_config(folder)
        row |= settings
        if not seeds:  # an imported log stands in its sweep under a seed of 0
            row |= dict.fromkeys(("seed_init", "seed_data"))
        env = read_json(folder / "env.json")
        row |= _numbers(folder / "env.json", env, FACTS)
        if status != "running":
            judgement, more = judge_run(folder, settings, env, outcome or Outcome(status))
            notes += more
            row |= judgement.numbers
            row["verdict"] = judgement.verdict
            row["cause"] = "; ".join(cause.name for cause in judgement.causes)
            row["evidence"] = judgement.evidence
    except (BrokenRun, BrokenTable) as problem:
        if status != "running":  # a run that has just begun lacks files, and may
            notes.append(str(problem))
    return row, notes


def judge_run(
    folder: Path, settings: dict[str, Any], env: dict[str, Any], outcome: Outcome
) -> tuple[Judgement, list[str]]:
    frames, notes = read_tables(folder, JUDGED)
    autopsy, more = read_autopsy(folder)
    return judge_tables(folder, frames, settings, env, outcome, autopsy), notes + more


def judge_tables(
    folder: Path,
    frames: dict[str, pd.DataFrame],
    settings: dict[str, Any],
    env: dict[str, Any],
    outcome: Outcome,
    autopsy: Autopsy | None,
) -> Judgement:
    try:
        facts = Facts.of(settings, env)
    except (KeyError, TypeError, ValueError) as problem:
        raise BrokenRun(f"{folder / 'env.json'}: no usable {problem}") from None
    return judge(frames["steps"], frames["layers"], frames["events"], facts, outcome, autopsy)


def read_tables(
    folder: Path, columns: dict[str, list[str] | None]
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """The three tables by name, and notes."""
    frames: dict[str, pd.DataFrame] = {}
    notes: list[str] = []
    for name, row_type in TABLES.items():
        path = folder / f"{name}.csv"
        try:
            frames[name], more = stored_table(path, row_type, columns[name])
        except OSError as problem:
            raise BrokenRun(f"{path}: {problem.strerror}") from None
        notes += more
    return frames, notes


def read_autopsy(folder: Path) -> tuple[Autopsy | None, list[str]]:
    """autopsy.json; None where there is none, or (which is noted) none that can be read."""
    path = folder / "autopsy.json"
    if not path.exists():
        return None, []
    try:
        return parse(read_json(path)), []
    except BrokenRun as problem:
        return None, [str(problem)]
    except (KeyError, TypeError, ValueError, AttributeError):
        return None, [f"{path}: not the autopsy of a run"]


def read_config(folder: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Every setting by its dotted name (a later version's new key has its default), and seeds.

    Of a watched or an imported run what is known alone, and no seeds.
    """
    path = folder / "config.yaml"
    try:
        nested = yaml.load(path.read_bytes(), Loader=YAML)
        flat = {
            f"{section}.{key}": value
            for section, keys in nested.items()
            if section != "seed"
            for key, value in keys.items()
        }
        known = {key: value for key, value in flat.items() if key in DEFAULTS}
        if "watched" in nested or "imported" in nested:
            return known, {}
        seeds = {f"seed_{key}": int(nested["seed"][key]) for key in ("init", "data")}
    except OSError as problem:
        raise BrokenRun(f"{path}: {problem.strerror}") from None
    except (yaml.YAMLError, AttributeError, TypeError, ValueError, KeyError):
        raise BrokenRun(f"{path}: not the config of a run") from None
    return DEFAULTS | known, seeds


def read_outcome(folder: Path) -> Outcome | None:
    """status.json; None where there is none."""
    path = folder / "status.json"
    if not path.exists():
        return None
    said = read_json(path)
    status, unmoved, error = said.get("status"), said.get("unmoved") or [], said.get("error")
    known = status in ("finished", "failed", "interrupted")
    if not (known and isinstance(unmoved, list) and isinstance(error, str | None)):
        raise BrokenRun(f"{path}: not the status of a run")
    return Outcome(status=status, unmoved=unmoved, error=error, **_numbers(path, said, OUTCOME))


LARGEST = 2**63 - 1  # what a column of integers holds


def _numbers(path: Path, said: dict[str, Any], kinds: dict[str, type]) -> dict[str, Any]:
    """The named entries as numbers; None where there is none."""
    try:
        found = {
            name: None if said.get(name) is None else kind(said[name])
            for name, kind in kinds.items()
        }
        if any(isinstance(value, int) and abs(value) > LARGEST for value in found.values()):
            raise ValueError
        return found
    except (TypeError, ValueError, OverflowError):
        raise BrokenRun(f"{path}: {', '.join(kinds)} must be numbers") from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise BrokenRun(f"{path}: {problem.strerror}") from None
    except (ValueError, RecursionError):
        raise BrokenRun(f"{path}: not JSON") from None
    if not isinstance(value, dict):
        raise BrokenRun(f"{path}: not a JSON object")
    return value
