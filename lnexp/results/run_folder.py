"""One run folder as one row of runs.csv."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from lnexp.config.schema import RunConfig
from lnexp.records import ENVIRONMENT, Autopsy, BrokenRecord, Status, read_json, read_numbers
from lnexp.results.tables import BrokenTable, stored_table
from lnexp.results.verdicts import Facts, Judgement, judge
from lnexp.rows import EventRow, LayerRow, StepRow

TABLES: dict[str, type] = {"steps": StepRow, "layers": LayerRow, "events": EventRow}
DEFAULTS = RunConfig().settings()
FIGURES = (
    "first_bad_step", "first_loss", "end_loss", "end_gap", "ln_v", "h1", "h2", "grad_ratio_step0",
    "grad_ratio_end", "update_ratio_end", "spike_score", "parameters", "steps_done", "seconds",
)  # fmt: skip
Columns = Mapping[str, list[str] | None]  # of each table; None: all
# What a verdict needs of each table.
JUDGED: Columns = {
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


Config = tuple[dict[str, Any], dict[str, int]]  # settings by their dotted names, and seeds


def read_run(
    folder: Path, point: dict[str, Any], locked: bool, config: Config | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Values by the names of COLUMNS (what is not known is left out), and notes.

    `config`: what `read_config` gave, where it was read before.
    """
    row: dict[str, Any] = {
        "run": folder.name,
        "seed_init": point.get("seed_init"),
        "seed_data": point.get("seed_data"),
        **{key: value for key, value in point["settings"].items() if key in DEFAULTS},
    }
    if not folder.is_dir():
        return row | {"status": "pending"}, []
    process, notes = read_process(folder, locked)
    row["status"] = process.status
    try:
        settings, seeds = config or read_config(folder)
        row |= settings
        if not seeds:  # an imported log stands in its sweep under a seed of 0
            row |= dict.fromkeys(("seed_init", "seed_data"))
        env = read_json(folder / "env.json")
        row |= read_numbers(folder / "env.json", env, ENVIRONMENT)
        if process.status != "running":
            *_, judgement, more = judge_run(folder, JUDGED, settings, env, process)
            notes += more
            row |= judgement.numbers
            row["verdict"] = judgement.verdict
            row["cause"] = "; ".join(cause.name for cause in judgement.causes)
            row["evidence"] = judgement.evidence
    except (BrokenRecord, BrokenTable) as problem:
        if process.status != "running":  # a run that has just begun lacks files, and may
            notes.append(str(problem))
    return row, notes


def read_process(folder: Path, locked: bool) -> tuple[Status, list[str]]:
    """status.json, else whether the sweep's lock says that the run goes on; and notes."""
    notes: list[str] = []
    status = None
    try:
        status = Status.read(folder)
    except BrokenRecord as problem:
        notes.append(str(problem))
    return status or Status("running" if locked else "interrupted"), notes


def judge_run(
    folder: Path,
    columns: Columns,
    settings: dict[str, Any],
    env: dict[str, Any],
    process: Status,
) -> tuple[dict[str, pd.DataFrame], Autopsy | None, Judgement, list[str]]:
    """The three tables by name, the autopsy, what they come to, and notes."""
    frames, notes = _read_tables(folder, columns)
    autopsy = None
    try:
        autopsy = Autopsy.read(folder)
    except BrokenRecord as problem:
        notes.append(str(problem))
    try:
        facts = Facts.of(settings, env)
    except (KeyError, TypeError, ValueError) as problem:
        raise BrokenRecord(f"{folder / 'env.json'}: no usable {problem}") from None
    return frames, autopsy, judge(**frames, facts=facts, process=process, autopsy=autopsy), notes


def _read_tables(folder: Path, columns: Columns) -> tuple[dict[str, pd.DataFrame], list[str]]:
    frames: dict[str, pd.DataFrame] = {}
    notes: list[str] = []
    for name, row_type in TABLES.items():
        path = folder / f"{name}.csv"
        try:
            frames[name], more = stored_table(path, row_type, columns[name])
        except OSError as problem:
            raise BrokenRecord(f"{path}: {problem.strerror}") from None
        notes += more
    return frames, notes


def read_config(folder: Path) -> Config:
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
        raise BrokenRecord(f"{path}: {problem.strerror}") from None
    except (yaml.YAMLError, AttributeError, TypeError, ValueError, KeyError):
        raise BrokenRecord(f"{path}: not the config of a run") from None
    return DEFAULTS | known, seeds
