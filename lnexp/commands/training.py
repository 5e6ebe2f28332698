"""What commands that train have in common: one call's training of a plan; of the instruments that
train a sweep of their own also the config, alone in its folder, and the table of lab/."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lnexp.config.names import find
from lnexp.config.sweep import Sweep, load_sweep
from lnexp.files import write_whole
from lnexp.messages import UserError, amount, say
from lnexp.records import Status
from lnexp.rows import header, line
from lnexp.runs.execute import run_plan
from lnexp.runs.local import Executor
from lnexp.runs.plan import Plan, PlannedRun
from lnexp.runs.rundir import locked
from lnexp.runs.stop import Interruption, interruptible
from lnexp.terminal.progress import Progress


@dataclass
class Training:
    """The training that one call does, with its progress in the terminal."""

    out: Path
    jobs: int
    interruption: Interruption
    executor: Executor | None = None  # None: local, `jobs` at a time
    grows: bool = False  # the sweep gets more cases while it runs
    failed: list[str] = field(default_factory=list)  # runs that failed to execute

    def train(self, plan: Plan, todo: Sequence[PlannedRun], **how: Any) -> Mapping[str, Status]:
        """The statuses of the runs `todo`; `how`: force, fail_fast."""
        with Progress(plan.folder(self.out), len(plan.runs), todo, self.jobs) as progress:
            statuses = run_plan(
                plan,
                self.out,
                jobs=self.jobs,
                executor=self.executor,
                todo=todo,
                grows=self.grows,
                watcher=progress,
                interruption=self.interruption,
                **how,
            )
        self.failed += [name for name, status in statuses.items() if status.status == "failed"]
        return statuses

    def exit_code(self) -> int:
        """1 where a run failed to execute, which is said."""
        if self.failed:
            say(f"{amount(len(self.failed), 'run')} failed; error.txt in each folder says why")
        return 1 if self.failed else 0


@contextmanager
def training_in(
    folder: Path, jobs: int, executor: Executor | None = None, *, grows: bool = False
) -> Iterator[Training]:
    """Alone in a sweep's folder. Raises KeyboardInterrupt once every run has left a snapshot."""
    with interruptible() as interruption, locked(folder):
        yield Training(folder.parent, jobs, interruption, executor, grows)


def one_sweep(config: str, overrides: Sequence[str]) -> Sweep:
    """The sweep of one config. Raises UserError where the words name several."""
    paths = find([config])
    if len(paths) != 1:
        raise UserError(f"{config}: {len(paths)} configs; name one")
    return load_sweep(paths[0], overrides)


def write_rows(path: Path, kind: type, rows: Sequence[Any], first: str = "") -> None:
    """The table anew; with `first`, rows that begin with another first cell stay in it."""
    names, others = header(kind), []
    if first and path.exists():
        head, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        others = [
            text for text in lines if head == line(names) and not text.startswith(f"{first},")
        ]
    path.parent.mkdir(exist_ok=True)
    own = [line(getattr(row, name) for name in names) for row in rows]
    write_whole(path, line(names) + "".join(others + own))
