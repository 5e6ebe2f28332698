"""After training: the tables of lab/ that a sweep's claims read, a worker process a core."""

import csv
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from io import StringIO
from pathlib import Path

from tqdm import tqdm

from lnexp.files import write_whole
from lnexp.lab.instruments import INSTRUMENTS, lines_of
from lnexp.lab.schemas import TABLES
from lnexp.messages import amount, say
from lnexp.rows import header, line
from lnexp.runs.local import work, workers
from lnexp.runs.plan import Plan, PlannedRun
from lnexp.runs.rundir import read_status

Lines = dict[str, list[str]]  # run -> its lines of a table


def measure(
    plan: Plan, out: Path, jobs: int, again: Collection[str], tables: Sequence[str] | None = None
) -> list[str]:
    """What the tables (those that the sweep's claims read, or these) lack of the plan's finished
    runs, and the runs `again`; the caller holds the lock. Returns the runs whose measuring
    failed."""
    folder = plan.folder(out)
    names = plan.sweep.lab if tables is None else tables
    valid = {table: _valid(folder, table, again) for table in names}
    todo = [
        (table, run)
        for table, lines in valid.items()
        for run in plan.runs
        if run.name not in lines and _due(folder, table, run)
    ]
    for table, runs in Counter(table for table, _ in todo).items():
        say(f"lab/{table}.csv: measuring {amount(runs, 'run')}")
    return _measured(folder, todo, jobs, valid) if todo else []


def _measured(
    folder: Path, todo: list[tuple[str, PlannedRun]], jobs: int, lines: dict[str, Lines]
) -> list[str]:
    """Adds the runs' lines to `lines` and to the tables, as they come; returns the runs without."""
    failed = []
    # One crew for all tables: its start costs more than a small run's readings.
    asked = [(table, *work(run, folder)) for table, run in todo]
    with workers(lines_of, asked, jobs) as (futures, _):
        quiet = not sys.stderr.isatty()
        ended = zip(todo, futures, strict=True)
        bar = tqdm(ended, desc="lab", unit="run", total=len(todo), disable=quiet)
        for (table, run), future in bar:
            try:
                lines[table][run.name] = future.result()
                _write(folder, table, lines[table])
            except Exception as error:  # or the worker's death: no other run's concern
                say(f"lab/{table}.csv: {run.name} not measured: {error}")
                failed.append(run.name)
    return list(dict.fromkeys(failed))


def _due(folder: Path, table: str, run: PlannedRun) -> bool:
    """Finished, and not stopped by a value that is not finite: its weights are of its last step."""
    status = read_status(folder / "runs" / run.name)
    whole = status is not None and status.status == "finished" and not status.stopped
    return whole and INSTRUMENTS[table].applies(run.config)


def _valid(folder: Path, table: str, again: Collection[str]) -> Lines:
    """Lines that still hold; none where the table has other columns."""
    names = header(TABLES[table])
    try:
        rows = list(csv.reader(StringIO(_path(folder, table).read_text(encoding="utf-8"))))
    except OSError:
        return {}
    if not rows or rows[0] != names:
        return {}
    lines: Lines = {}
    steps = names.index("steps_done")
    for cells in rows[1:]:
        status = read_status(folder / "runs" / cells[0])
        if cells[0] not in again and status and cells[steps] == str(status.steps_done):
            lines.setdefault(cells[0], []).append(line(cells))
    return lines


def _write(folder: Path, table: str, lines: Lines) -> None:
    path = _path(folder, table)
    path.parent.mkdir(exist_ok=True)
    rows = "".join("".join(lines[run]) for run in sorted(lines))
    write_whole(path, line(header(TABLES[table])) + rows)


def _path(folder: Path, table: str) -> Path:
    return folder / "lab" / f"{table}.csv"
