"""Workers on this machine: a pool of spawned processes, one a core."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from pebble import ProcessPool

from .interrupt import SIGNALS, deaf_children
from .plan import PlannedRun
from .stop import Lines, listen
from .worker import train_run


@dataclass(frozen=True)
class Crew:
    """Runs in training or waiting to be; each future gives a Status."""

    futures: Mapping[Future, PlannedRun]
    stop: Callable[[], None]  # asks the runs in training to leave at their next step boundary


# (sweep folder, runs) -> their crew; when it is left, no run of theirs is in training.
Executor = Callable[[Path, Sequence[PlannedRun]], AbstractContextManager[Crew]]


@contextmanager
def local(folder: Path, todo: Sequence[PlannedRun], jobs: int) -> Iterator[Crew]:
    spawn = get_context("spawn")  # never fork: torch's threads do not survive it
    with (
        Lines(spawn) as lines,
        ProcessPool(
            max_workers=min(jobs, len(todo)),
            initializer=listen,
            initargs=lines.heard,
            context=spawn,
        ) as pool,
    ):
        try:
            with deaf_children(*SIGNALS):  # the first call starts the workers
                futures: dict[Future, PlannedRun] = {
                    pool.schedule(train_run, _work(run, folder)): run for run in todo
                }
            yield Crew(futures, lines.stop)
        finally:
            pool.stop()
            lines.end()


def _work(run: PlannedRun, folder: Path) -> list:
    return [str(folder / "runs" / run.name), run.config, run.device, run.corpus.sha256]
