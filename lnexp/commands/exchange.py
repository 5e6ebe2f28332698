"""lnexp export: results in the formats of other tools, from the CSVs alone; and lnexp import: a log
of another tool as a run folder, so that verdicts and plots serve it."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

from lnexp import __version__
from lnexp.config.document import dump
from lnexp.config.names import clean_name, wrong_name
from lnexp.exchange.logs import Imported, Log, as_rows, read_log
from lnexp.exchange.writers import WRITERS
from lnexp.files import strict_json, write_whole
from lnexp.messages import UserError, amount, one_line, say
from lnexp.results.load import load
from lnexp.rows import Record
from lnexp.runs.rundir import RunDir, locked

SWEEP = "imported"
QUESTION = "Logs of other tools."
AXIS = "data.path"  # the log's file: two logs never stand as two seeds of one setting


def export(path: Path, to: str, out: Path | None) -> None:
    if to not in WRITERS:
        raise UserError(f"--to {to}: write one of {', '.join(WRITERS)}")
    writer = WRITERS[to]
    if writer.module and find_spec(writer.module) is None:
        raise UserError(
            f'export --to {to} needs {writer.module}: pip install "lnexp[{writer.extra}]"'
        )
    results = load(path)
    folder = out or path / "export" / to
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty; write another folder with -o, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    written = writer.write(results, folder)
    for note in results.notes:
        say(one_line(f"note: {note}"))
    for file in written:
        print(file)


def import_(
    path: Path, out: Path, name: str, wishes: Sequence[str], baseline: float | None, force: bool
) -> None:
    if baseline is not None and not (isfinite(baseline) and baseline > 0):
        raise UserError(f"--baseline {baseline:g}: write a loss in nats, such as 3.25")
    log = read_log(path)
    imported = as_rows(path, log, _wishes(wishes))
    run = name or _name(path)
    if why := wrong_name(run):
        raise UserError(f"{run}: {why}; write --name RUN")
    sweep = out / SWEEP
    with locked(sweep):
        points = _points(sweep)
        folder = sweep / "runs" / run
        if folder.exists() and not force:
            raise UserError(f"{folder} is there; write another --name, or --force to replace it")
        shutil.rmtree(folder, ignore_errors=True)
        others = [point for point in points["runs"] if point["run"] != run]
        again = any(point["settings"].get(AXIS) == str(path) for point in others)
        label = f"{path} ({run})" if again else str(path)
        _write(folder, path, log, imported, baseline, label)
        entry = {"run": run, "seed_init": 0, "seed_data": 0, "settings": {AXIS: label}}
        write_whole(sweep / "points.json", strict_json({**points, "runs": [*others, entry]}))
        write_whole(sweep / "sweep.yaml", dump({"name": SWEEP, "question": QUESTION}))
    columns = ", ".join(f"{ours}={theirs}" for ours, theirs in imported.columns.items())
    unused = [f"not used: {', '.join(imported.unused)}"] if imported.unused else []
    for note in (f"read {columns}", *unused, *imported.notes):
        say(one_line(f"note: {note}"))
    row = load(folder).runs.iloc[0]
    evidence = f": {row['evidence']}" if row["evidence"] else ""
    print(folder)
    print(one_line(f"{amount(len(imported.rows), 'row')}, {row['verdict']}{evidence}"))


def _wishes(words: Sequence[str]) -> dict[str, str]:
    """['loss=train/loss'] -> {'loss': 'train/loss'}"""
    names = {}
    for word in words:
        ours, equals, theirs = word.partition("=")
        if not (ours and equals and theirs):
            raise UserError(f"--map {word}: write OURS=THEIRS, such as --map loss=train/loss")
        names[ours] = theirs
    return names


def _name(path: Path) -> str:
    """The file's stem; trainer_state.json and the like are told apart by their folder."""
    inside = path.resolve().parent.name
    telling = path.stem not in ("trainer_state", "log", "train", "metrics", "log_history")
    return clean_name(path.stem if telling or not inside else inside)


def _points(sweep: Path) -> dict[str, Any]:
    """points.json as it is, or a new one; a sweep that was trained here is left alone."""
    path = sweep / "points.json"
    if not path.exists():
        if any((sweep / name).exists() for name in ("runs", "sweep.yaml")):
            raise UserError(f"{sweep}: no folder of imported runs; write to another -o")
        start = {"schema": 1, "name": SWEEP, "question": QUESTION, "imported": True}
        return {**start, "axes": [AXIS], "runs": []}
    try:
        points = json.loads(path.read_text(encoding="utf-8"))
        if points["imported"] is True and isinstance(points["runs"], list):
            return points
    except (ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{sweep} is a sweep of its own; write to another -o")


def _write(
    folder: Path, path: Path, log: Log, imported: Imported, baseline: float | None, label: str
) -> None:
    """Of the model and its settings only what the log says: a learning rate."""
    rates = [row.lr for row in imported.rows if row.lr is not None and isfinite(row.lr)]
    config = {
        "imported": {"file": str(path), "format": log.format},
        "data": {"path": label},
        **({"train": {"lr": max(rates)}} if rates else {}),
        "seed": {"init": 0, "data": 0},
    }
    env = {
        "schema": 1,
        "lnexp": __version__,
        "imported": {
            "file": str(path),
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "format": log.format,
            "columns": imported.columns,
            "unused": imported.unused,
            "notes": imported.notes,
        },
        "h1": baseline,
    }
    first, last = imported.rows[0].step, imported.rows[-1]
    with RunDir(folder).begin(dump(config), env) as run:
        for row in imported.rows:
            run.write(Record(row))
    status = {
        "schema": 1,
        "status": "finished",  # a log ends where it ends; nothing tells whether the process did
        "steps_done": last.step + (first == 0),  # counted from 0, or from 1
        "seconds": last.seconds,
    }
    write_whole(folder / "status.json", strict_json(status))
