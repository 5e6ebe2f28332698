"""lnexp rescue: what would have saved a run, tried out."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from ..analysis.load import find_run
from ..console import say
from ..lab.rescue import Rescue
from ..labrows import RescueRow
from ..lines import amount
from ..runs.interrupt import interruptible
from ..runs.local import Executor
from ..runs.lock import locked
from ..runs.plan import Plan, PlannedRun
from .lab import failed_in, plain_row, tell_failed, write_rows
from .run import INTERRUPTED


def rescue(
    run: Path, tries: Sequence[str], out: Path | None, jobs: int, executor: Executor, as_json: bool
) -> int:
    """Exit code: 0 done, 1 a run failed to execute, 130 interrupted."""
    work = Rescue(find_run(run), tries, out)
    for note in work.notes:
        say(f"note: {note}")
    where = f"the snapshot at step {work.start}" if work.start else "the beginning"
    say(f"{work.origin.name}: {amount(len(work.trials), 'run')} from {where}, one change each")
    failed: list[str] = []
    try:
        with interruptible() as interruption, ExitStack() as locks:
            locks.enter_context(locked(work.folder))
            work.prepare()

            def train(plan: Plan, todo: Sequence[PlannedRun]) -> None:
                folder = work.folder.parent
                failed.extend(failed_in(plan, folder, todo, jobs, executor, interruption))

            work.train(train)
            rows = work.rows()
            write_rows(work.folder / "lab" / "rescue.csv", RescueRow, rows, work.origin.name)
    except KeyboardInterrupt:
        say("interrupted: what is finished is kept; the same command goes on")
        return INTERRUPTED
    if as_json:
        found = {"schema": 1, "trials": [plain_row(asdict(row)) for row in rows]}
        print(json.dumps(found, indent=1, allow_nan=False))
    else:
        from rich.console import Console

        from ..present.rescue import sheet

        Console(highlight=False).print(sheet(rows, work.case.judgement.verdict))
    return tell_failed(failed)
