"""What the instruments that train have in common: their sweep and their table of lab/."""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from ..console import say
from ..lines import amount
from ..progress import Progress
from ..rows import header, line
from ..runs.execute import run_plan
from ..runs.interrupt import Interruption
from ..runs.local import Executor
from ..runs.plan import Plan, PlannedRun
from ..runs.rundir import write_atomically


def failed_in(
    plan: Plan,
    out: Path,
    todo: Sequence[PlannedRun],
    jobs: int,
    executor: Executor,
    interruption: Interruption,
) -> list[str]:
    """Train a sweep that grows while it runs; the runs that failed to execute."""
    with Progress(plan.folder(out), len(plan.runs), todo, jobs) as progress:
        statuses = run_plan(
            plan,
            out,
            executor=executor,
            todo=todo,
            grows=True,
            watcher=progress,
            interruption=interruption,
        )
    return [name for name, status in statuses.items() if status.status == "failed"]


def tell_failed(failed: Sequence[str]) -> int:
    """Exit code: 1 where a run failed to execute."""
    if failed:
        say(f"{amount(len(failed), 'run')} failed; error.txt in each folder says why")
    return 1 if failed else 0


def write_rows(path: Path, kind: type, rows: Sequence[Any], first: str = "") -> None:
    """The table anew; with `first`, rows that begin with another first cell stay in it."""
    names, kept = header(kind), []
    if first and path.exists():
        head, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [text for text in lines if head == line(names) and not text.startswith(f"{first},")]
    path.parent.mkdir(exist_ok=True)
    found = [line(getattr(row, name) for name in names) for row in rows]
    write_atomically(path, line(names) + "".join(kept + found))


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """Strict JSON: a non-finite number is a word."""
    return {
        key: str(value) if isinstance(value, float) and not isfinite(value) else value
        for key, value in row.items()
    }
