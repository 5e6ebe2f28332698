"""lnexp rescue: what would have saved a run, tried out."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lnexp.commands.jobs import resumable
from lnexp.commands.training import training_in, write_rows
from lnexp.files import strict_json
from lnexp.lab.schemas import RescueRow
from lnexp.messages import amount, say
from lnexp.rescue.reading import from_words, rescue_sheet
from lnexp.rescue.work import Rescue
from lnexp.results.load import find_run
from lnexp.runs.local import Executor
from lnexp.terminal.sheet import display


@resumable
def rescue(
    run: Path,
    tries: Sequence[str],
    out: Path | None,
    jobs: int,
    as_json: bool,
    executor: Executor | None = None,
) -> int:
    """Exit code: 0 done, 1 a run failed to execute, 130 interrupted."""
    trials = Rescue(find_run(run), tries, out)
    for note in trials.notes:
        say(f"note: {note}")
    runs = amount(len(trials.trials), "run")
    say(f"{trials.origin.name}: {runs} from {from_words(trials.start)}, one change each")
    with training_in(trials.folder, jobs, executor) as training:
        trials.prepare()
        trials.train(training.train)
        rows = trials.rows()
        write_rows(trials.folder / "lab" / "rescue.csv", RescueRow, rows, trials.origin.name)
    if as_json:
        print(strict_json({"schema": 1, "trials": list(map(asdict, rows))}), end="")
    else:
        display(rescue_sheet(rows, trials.case.judgement.verdict))
    return training.exit_code()
