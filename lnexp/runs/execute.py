"""A local pool of worker processes: spawned, one a core, each run seeded on its own.

Results do not depend on a run's place in the sweep or on the number of workers.
"""

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path
from traceback import format_exc

from filelock import FileLock, Timeout
from pebble import ProcessExpired, ProcessPool

from ..errors import UserError
from ..model.check import step_flops
from ..sweep import dump
from .interrupt import deaf_children, end_with_parent
from .plan import Plan, PlannedRun
from .rundir import Status, last_row, read_status, strict_json, write_atomically
from .worker import record_failure, train_run

POLL_SECONDS = 0.2


def is_done(run: PlannedRun, folder: Path) -> bool:
    """Finished with all its steps, or stopped by a non-finite value, and its rows are there."""
    status = read_status(folder)
    if status is None or status.status != "finished":
        return False
    last = last_row(folder)
    whole = last is not None and last.step + 1 == status.steps_done
    return whole and (status.stopped or status.steps_done >= run.config.train.steps)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process a sweep folder; a second start is told who holds it."""
    lock, holder = FileLock(folder / ".lock"), folder / ".lock.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0.5)  # a reader asks for the lock for a moment, to see if it is held
    except Timeout:
        raise UserError(
            f"{folder} is in use by {_holder(holder)}; wait, or write to another -o"
        ) from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UserError(f"{folder}: results cannot go there: {why}; write to another -o") from None
    try:
        me = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now().isoformat(" ", "seconds"),
        }
        write_atomically(holder, strict_json(me))
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _holder(path: Path) -> str:
    try:
        who = json.loads(path.read_text(encoding="utf-8"))
        return f"process {who['pid']} on {who['host']} since {who['since']}"
    except (OSError, ValueError, KeyError):
        return "another process"


def write_index(plan: Plan, folder: Path) -> None:
    """sweep.yaml and points.json; an earlier, different sweep.yaml is kept under a number."""
    folder.mkdir(parents=True, exist_ok=True)
    current, text = folder / "sweep.yaml", dump(plan.sweep.document)
    if current.exists() and current.read_text(encoding="utf-8") != text:
        number = 1
        while (kept := folder / f"sweep.{number}.yaml").exists():
            number += 1
        os.replace(current, kept)
    if not current.exists():
        write_atomically(current, text)
    write_atomically(folder / "points.json", strict_json(plan.index()))


class Watcher:
    """What the terminal may want to know; the default says nothing."""

    def running(self, names: Sequence[str]) -> None:
        """Called a few times a second with the runs in training."""

    def ended(self, run: PlannedRun, status: Status) -> None:
        """Called once a run."""


def run_plan(
    plan: Plan, out: Path, *, jobs: int, force: bool = False, watcher: Watcher | None = None
) -> dict[str, Status]:
    """Train what is not done yet; the caller holds the lock. Statuses of the runs trained now."""
    folder = plan.folder(out)
    watcher = watcher or Watcher()
    write_index(plan, folder)
    todo = [run for run in plan.runs if force or not is_done(run, folder / "runs" / run.name)]
    if not todo:
        return {}
    # The longest first, so that no worker is left alone with one at the end.
    todo.sort(key=lambda r: -step_flops(r.config, len(r.corpus.vocabulary)) * r.config.train.steps)
    statuses: dict[str, Status] = {}
    with ProcessPool(
        max_workers=min(jobs, len(todo)),
        initializer=end_with_parent,
        context=get_context("spawn"),  # never fork: torch's threads do not survive it
    ) as pool:
        try:
            futures: dict[Future, PlannedRun] = {}
            for run in todo:
                path = folder / "runs" / run.name
                if force and path.exists():
                    shutil.rmtree(path)
                work = [str(path), run.config, run.device, run.corpus.sha256]
                with deaf_children():  # the first call starts the workers
                    futures[pool.schedule(train_run, args=work)] = run
            pending = set(futures)
            while pending:
                over, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
                for future in over:
                    run = futures[future]
                    statuses[run.name] = _status(future, folder / "runs" / run.name)
                    watcher.ended(run, statuses[run.name])
                watcher.running([futures[f].name for f in futures if f in pending and f.running()])
        except BaseException:
            pool.stop()
            raise
    return statuses


def _status(future: Future, path: Path) -> Status:
    try:
        return future.result()
    except ProcessExpired as death:
        why = f"the worker process died: {_cause(death.exitcode)}"
        return record_failure(path, why, f"{why}\n")
    except Exception as error:  # pickling, a broken pool: this run's failure, not the sweep's
        return record_failure(path, f"{type(error).__name__}: {error}", format_exc())


def _cause(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        return name + (" (out of memory?)" if name == "SIGKILL" else "")
    return f"exit code {exitcode}"
