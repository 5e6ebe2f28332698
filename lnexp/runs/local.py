"""Workers on this machine: a pool of spawned processes, one a core, and each run's share of its
memory."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from pebble import ProcessPool

from lnexp.config.schema import RunConfig
from lnexp.runs.plan import PlannedRun
from lnexp.runs.stop import SIGNALS, StopPipes, deaf_children, listen
from lnexp.runs.worker import train_run

FIT = 0.8  # of its share: what a run needs is known within a quarter, and others are here too
LIMITS = (  # what a container may take
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def memory(device: str) -> float:
    """Bytes; inf where the system does not say."""
    if device == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        whole = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # Windows
        return inf
    return min([whole, *(limit for path in LIMITS if (limit := _limit(path)))])


def _limit(path: Path) -> float | None:
    try:
        return float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # not here, or "max"
        return None


def share(device: str, at_once: float) -> float:
    """Bytes that each of so many runs on this machine may take."""
    return FIT * memory(device) / at_once


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
        closing(StopPipes(spawn)) as pipes,
        ProcessPool(
            max_workers=min(jobs, len(todo)),
            initializer=listen,
            initargs=pipes.heard,
            context=spawn,
        ) as pool,
    ):
        try:
            with deaf_children(*SIGNALS):  # the first call starts the workers
                futures: list[Future] = [pool.schedule(task, arguments) for arguments in todo]
            yield futures, pipes.stop
        finally:
            pool.stop()
            pipes.end()


@contextmanager
def local(folder: Path, todo: Sequence[PlannedRun], jobs: int) -> Iterator[Crew]:
    at_once = min(jobs, len(todo))
    arguments = [(*work(run, folder), share(run.device, at_once)) for run in todo]
    with workers(train_run, arguments, jobs) as (futures, stop):
        yield Crew(dict(zip(futures, todo, strict=True)), stop)
