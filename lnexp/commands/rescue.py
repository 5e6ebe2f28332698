"""lnexp rescue: what would have saved a run, tried out."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lnexp.commands.jobs import resumable
from lnexp.commands.training import at_work, write_rows
from lnexp.files import strict_json
from lnexp.lab.schemas import RescueRow
from lnexp.messages import amount, say
from lnexp.rescue.work import Rescue
from lnexp.results.load import find_run
from lnexp.runs.local import Executor


@resumable
def rescue(
    run: Path, tries: Sequence[str], out: Path | None, jobs: int, executor: Executor, as_json: bool
) -> int:
    """Exit code: 0 done, 1 a run failed to execute, 130 interrupted."""
    saved = Rescue(find_run(run), tries, out)
    for note in saved.notes:
        say(f"note: {note}")
    where = f"the snapshot at step {saved.start}" if saved.start else "the beginning"
    runs = amount(len(saved.trials), "run")
    say(f"{saved.origin.name}: {runs} from {where}, one change each")
    with at_work(saved.folder, jobs, executor) as work:
        saved.prepare()
        saved.train(work.train)
        rows = saved.rows()
        write_rows(saved.folder / "lab" / "rescue.csv", RescueRow, rows, saved.origin.name)
    if as_json:
        print(strict_json({"schema": 1, "trials": list(map(asdict, rows))}), end="")
    else:
        from rich.console import Console

        from lnexp.rescue.reading import sheet

        Console(highlight=False).print(sheet(rows, saved.case.judgement.verdict))
    return work.exit_code()
