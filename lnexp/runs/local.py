"""Workers on this machine: a pool of spawned processes, one a core."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pebble import ProcessPool

from ..config import RunConfig
from ..model.memory import PROCESS
from .interrupt import SIGNALS, deaf_children
from .machine import share
from .plan import PlannedRun
from .stop import Lines, listen
from .together import ALONE, Together, groups
from .worker import train_run, train_runs


@dataclass(frozen=True)
class Crew:
    """Runs in training or waiting to be; each future gives a Status."""

    futures: Mapping[Future, PlannedRun]
    stop: Callable[[], None]  # asks the runs in training to leave at their next step boundary


# (sweep folder, runs) -> their crew; when it is left, no run of theirs is in training.
Executor = Callable[[Path, Sequence[PlannedRun]], AbstractContextManager[Crew]]


Work = tuple[str, RunConfig, str, str]  # folder, config, device and the text's SHA-256 of a run


def work(run: PlannedRun, folder: Path) -> Work:
    return str(folder / "runs" / run.name), run.config, run.device, run.corpus.sha256


@contextmanager
def workers(
    task: Callable[..., Any], todo: Sequence[Sequence[Any]], jobs: int
) -> Iterator[tuple[list[Future], Callable[[], None]]]:
    """Futures of task(*arguments) for all of `todo`, and what asks the workers to stop at their
    next step; whatever still works when this is left is killed."""
    spawn = get_context("spawn")  # never fork: torch's threads do not survive it
    with (
        closing(Lines(spawn)) as lines,
        ProcessPool(
            max_workers=min(jobs, len(todo)),
            initializer=listen,
            initargs=lines.heard,
            context=spawn,
        ) as pool,
    ):
        try:
            with deaf_children(*SIGNALS):  # the first call starts the workers
                futures: list[Future] = [pool.schedule(task, arguments) for arguments in todo]
            yield futures, lines.stop
        finally:
            pool.stop()
            lines.end()


class OneOf(Future):
    """A run's part of what several were sent as."""

    def __init__(self, whole: Future, at: int) -> None:
        super().__init__()
        self.running = whole.running
        self.at = at
        whole.add_done_callback(self._over)

    def _over(self, whole: Future) -> None:
        if whole.cancelled():
            self.cancel()
        elif error := whole.exception():
            self.set_exception(error)
        else:
            self.set_result(whole.result()[self.at])


@contextmanager
def local(
    folder: Path, todo: Sequence[PlannedRun], jobs: int, together: Together = ALONE
) -> Iterator[Crew]:
    several = groups(todo, jobs, together)
    at_once = min(jobs, len(several))

    def asked(runs: Sequence[PlannedRun]) -> tuple[Any, ...]:
        """The function and its arguments: a process is shared, its other memory divided."""
        memory = share(runs[0].device, at_once)
        if len(runs) == 1:
            return train_run, *work(runs[0], folder), memory
        memory = PROCESS + (memory - PROCESS) / len(runs)
        return train_runs, [(*work(run, folder), memory) for run in runs]

    with workers(_call, [asked(runs) for runs in several], jobs) as (futures, stop):
        crew: dict[Future, PlannedRun] = {}
        for future, runs in zip(futures, several, strict=True):
            own = [OneOf(future, at) for at in range(len(runs))] if runs[1:] else [future]
            crew.update(zip(own, runs, strict=True))
        yield Crew(crew, stop)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
