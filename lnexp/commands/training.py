"""What the instruments that train have in common: their sweep and their table of lab/."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lnexp.files import write_whole
from lnexp.messages import amount, say
from lnexp.rows import header, line
from lnexp.runs.execute import run_plan
from lnexp.runs.local import Executor
from lnexp.runs.lock import locked
from lnexp.runs.plan import Plan, PlannedRun
from lnexp.runs.stop import Interruption, interruptible
from lnexp.terminal.progress import Progress


@dataclass
class Work:
    """The training of a sweep in one call."""

    out: Path
    jobs: int
    executor: Executor
    grows: bool  # the sweep gets more cases while it runs
    interruption: Interruption
    failed: list[str] = field(default_factory=list)  # runs that failed to execute

    def train(self, plan: Plan, todo: Sequence[PlannedRun]) -> None:
        with Progress(plan.folder(self.out), len(plan.runs), todo, self.jobs) as progress:
            statuses = run_plan(
                plan,
                self.out,
                executor=self.executor,
                todo=todo,
                grows=self.grows,
                watcher=progress,
                interruption=self.interruption,
            )
        self.failed += [name for name, status in statuses.items() if status.status == "failed"]

    def exit_code(self) -> int:
        """1 where a run failed to execute, which is said."""
        if self.failed:
            say(f"{amount(len(self.failed), 'run')} failed; error.txt in each folder says why")
        return 1 if self.failed else 0


@contextmanager
def at_work(folder: Path, jobs: int, executor: Executor, grows: bool = False) -> Iterator[Work]:
    """Alone in a sweep's folder. Raises KeyboardInterrupt once every run has left a snapshot."""
    with interruptible() as interruption, locked(folder):
        yield Work(folder.parent, jobs, executor, grows, interruption)


def write_rows(path: Path, kind: type, rows: Sequence[Any], first: str = "") -> None:
    """The table anew; with `first`, rows that begin with another first cell stay in it."""
    names, kept = header(kind), []
    if first and path.exists():
        head, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [text for text in lines if head == line(names) and not text.startswith(f"{first},")]
    path.parent.mkdir(exist_ok=True)
    found = [line(getattr(row, name) for name in names) for row in rows]
    write_whole(path, line(names) + "".join(kept + found))
