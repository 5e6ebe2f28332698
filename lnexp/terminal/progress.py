"""The sweep in the terminal: one bar, and one line a running worker. Quiet when not a terminal."""

import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from types import TracebackType
from typing import Self

from tqdm import tqdm

from lnexp.messages import say
from lnexp.records import Status
from lnexp.runs.execute import Watcher
from lnexp.runs.plan import PlannedRun
from lnexp.runs.rundir import last_row


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
