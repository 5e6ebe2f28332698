"""What commands that train have in common: the sweep's lock, its table of lab/, and its bar in the
terminal, with a line a running worker; quiet when not a terminal.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import get_terminal_size
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from lnexp.config.names import find
from lnexp.config.sweep import Sweep, load_sweep
from lnexp.files import write_whole
from lnexp.messages import UserError, amount, say
from lnexp.records import Status
from lnexp.rows import header, line
from lnexp.runs.execute import Watcher, run_plan
from lnexp.runs.local import Executor
from lnexp.runs.plan import Plan, PlannedRun
from lnexp.runs.rundir import last_row, locked
from lnexp.runs.stop import Interruption, interruptible


class Progress(Watcher):
    """Reads how far each run is from its steps.csv, so that it works across processes."""

    def __init__(self, folder: Path, total: int, todo: Sequence[PlannedRun], jobs: int):
        self.folder, self.jobs = folder, min(jobs, len(todo))
        self.steps = {run.name: run.config.train.steps for run in todo}
        self.shown = sys.stderr.isatty()
        # A terminal that does not tell its size has 80 x 24, not the 0 x 0 that it says.
        width, height = get_terminal_size()
        self.bar = tqdm(
            total=total,
            initial=total - len(todo),
            desc="runs",
            unit="run",
            disable=not self.shown,
            ncols=width,
            nrows=height,
            bar_format="{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed} < {remaining}",
        )
        self.lines = [
            tqdm(
                position=i + 1,
                bar_format="  {desc}",
                disable=not self.shown,
                ncols=width,
                nrows=height,
                leave=False,
            )
            for i in range(self.jobs)
        ]

    def running(self, names: Sequence[str]) -> None:
        if not self.shown:
            return
        for bar, name in zip(self.lines, [*names, *[""] * self.jobs], strict=False):
            at = last_row(self.folder / "runs" / name) if name else None
            where = f"step {at.step + 1}/{self.steps[name]}  loss {at.loss:.3f}" if at else ""
            bar.set_description_str(f"{name}  {where}" if name else "")
        self.bar.refresh()

    def ended(self, run: PlannedRun, status: Status) -> None:
        self.bar.update()
        if status.status == "failed":
            self.bar.clear()
            say(f"failed: {run.name}: {status.error}")  # when it happens, terminal or not
        elif status.error:
            self.bar.clear()
            say(f"{status.status}: {run.name}: {status.error}")

    def stopping(self) -> None:
        self.bar.clear()
        say("stopping: each run ends its step and keeps a snapshot; Ctrl-C again ends at once")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for bar in (*reversed(self.lines), self.bar):
            bar.close()


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
