"""A sweep's runs, each seeded on its own, by workers here (local.py) or elsewhere (cluster.py).

Results do not depend on a run's place in the sweep, on the number of workers or on where they are.
"""

import os
import shutil
import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from time import monotonic
from traceback import format_exc
from typing import Any

from pebble import ProcessExpired

from lnexp.config.document import read
from lnexp.config.schema import Train
from lnexp.config.sweep import dump
from lnexp.files import strict_json, write_whole
from lnexp.model.check import step_flops
from lnexp.records import Status
from lnexp.runs.local import Crew, Executor, local
from lnexp.runs.plan import Plan, PlannedRun
from lnexp.runs.rundir import last_row, read_status
from lnexp.runs.stop import Interruption
from lnexp.runs.worker import record_failure

POLL_SECONDS = 0.2
GRACE_SECONDS = 8.0  # to reach a step boundary and to write a snapshot; a slower run is killed


@dataclass(frozen=True)
class Earlier:
    """What earlier calls left of a run, read once."""

    status: Status | None  # None: it is not over, or there is no status that can be read
    ended_as: str  # finished, failed, interrupted; pending: it never began
    done: bool  # nothing is left to train


def earlier_run(run: PlannedRun, folder: Path) -> Earlier:
    status = read_status(folder)
    if status is None:
        return Earlier(None, "interrupted" if folder.exists() else "pending", False)
    return Earlier(status, status.status, _is_done(run.config.train, folder, status))


def earlier_runs(plan: Plan, out: Path) -> dict[str, Earlier]:
    """Of each run's name."""
    runs = plan.folder(out) / "runs"
    return {run.name: earlier_run(run, runs / run.name) for run in plan.runs}


def _is_done(train: Train, folder: Path, status: Status) -> bool:
    """It has all its steps, or was stopped by a non-finite value or by train.max_seconds; and its
    rows are there."""
    if status.status == "failed":
        return False
    last = last_row(folder)
    if last is None or last.step + 1 != status.steps_done:
        return False
    enough = status.steps_done >= train.steps
    if status.status == "interrupted":
        return not enough and status.seconds >= train.max_seconds
    return enough or status.stopped


def write_index(plan: Plan, folder: Path, grows: bool = False) -> None:
    """sweep.yaml and points.json; an earlier, different sweep.yaml is kept under a number.

    Of a sweep that `grows` while it runs, one with other cases of the same keys is not kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    current, text = folder / "sweep.yaml", dump(plan.sweep.document)
    if grows and current.exists() and _same_but_for_cases(current, plan.sweep.document):
        write_whole(current, text)
    if current.exists() and current.read_text(encoding="utf-8") != text:
        numbered = (folder / f"sweep.{number}.yaml" for number in count(1))
        os.replace(current, next(path for path in numbered if not path.exists()))
    if not current.exists():
        write_whole(current, text)
    write_whole(folder / "points.json", strict_json(plan.index()))


def _same_but_for_cases(path: Path, document: dict[str, Any]) -> bool:
    """Or but for their values."""
    earlier = read(path).value
    if not (isinstance(earlier, dict) and earlier.get("cases")):
        return False
    one, other = ({**d, "cases": list(d["cases"][0])} for d in (earlier, document))
    return one == other


class Watcher:
    """What the terminal may want to know; the default says nothing."""

    def running(self, names: Sequence[str]) -> None:
        """Called a few times a second with the runs in training."""

    def ended(self, run: PlannedRun, status: Status) -> None:
        """Called once a run."""

    def stopping(self) -> None:
        """Called when the runs in training are asked to leave at their step boundary."""


def run_plan(
    plan: Plan,
    out: Path,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    todo: Sequence[PlannedRun] | None = None,
    force: bool = False,
    fail_fast: bool = False,
    grows: bool = False,
    watcher: Watcher | None = None,
    interruption: Interruption | None = None,
) -> dict[str, Status]:
    """Train `todo`, by default what is not done yet, `jobs` at a time or by `executor`; the caller
    holds the lock.

    Returns the statuses of the runs trained now. Raises KeyboardInterrupt where `interruption`
    was asked for, after every run in training has left its rows and a snapshot.
    """
    folder = plan.folder(out)
    interruption = interruption or Interruption()
    write_index(plan, folder, grows)
    if todo is None:
        earlier = earlier_runs(plan, out)
        todo = [run for run in plan.runs if force or not earlier[run.name].done]
    if not todo:
        return {}
    # The longest first, so that no worker is left alone with one at the end.
    todo = sorted(
        todo, key=lambda r: -step_flops(r.config, len(r.corpus.vocabulary)) * r.config.train.steps
    )
    for run in todo:
        if force and (path := folder / "runs" / run.name).exists():
            shutil.rmtree(path)
    executor = executor or partial(local, jobs=jobs)
    with interruption.gently(), executor(folder, todo) as crew:
        statuses = _gather(crew, folder, fail_fast, watcher or Watcher(), interruption)
    if interruption.asked:
        raise KeyboardInterrupt
    return statuses


def _gather(
    crew: Crew, folder: Path, fail_fast: bool, watcher: Watcher, interruption: Interruption
) -> dict[str, Status]:
    """Wait for the runs, or, once they are to stop, a little while for those in training."""
    statuses: dict[str, Status] = {}
    futures = crew.futures
    pending, latest, failed = set(futures), inf, False
    while pending and monotonic() < latest:
        over, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
        for future in over:
            run = futures[future]
            statuses[run.name] = _status(future, run, folder / "runs" / run.name)
            failed = failed or statuses[run.name].status == "failed"
            watcher.ended(run, statuses[run.name])
        watcher.running([futures[f].name for f in futures if f in pending and f.running()])
        if pending and latest == inf and (interruption.asked or (fail_fast and failed)):
            crew.stop()
            watcher.stopping()
            pending = {future for future in pending if future.running()}
            latest = monotonic() + GRACE_SECONDS
    return statuses


def _status(future: Future, run: PlannedRun, path: Path) -> Status:
    try:
        return future.result()
    except ProcessExpired as death:
        earlier = earlier_run(run, path)
        if earlier.status and earlier.done:
            return earlier.status
        why = f"the worker process died: {_cause(death.exitcode)}"
        return record_failure(path, why, f"{why}\n")
    except Exception as error:  # pickling, a broken pool: this run's failure, not the sweep's
        return record_failure(path, f"{type(error).__name__}: {error}", format_exc())


def _cause(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        return name + (" (out of memory?)" if name == "SIGKILL" else "")
    return f"exit code {exitcode}"
