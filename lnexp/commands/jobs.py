"""How many runs at a time and where, and commands that may be interrupted and called again."""

import os
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, ParamSpec

from lnexp.messages import UserError, say

if TYPE_CHECKING:
    from lnexp.runs.local import Executor

INTERRUPTED = 130  # the exit code after Ctrl-C
P = ParamSpec("P")


def workers(jobs: str) -> int:
    """-j N or auto, the cores that this process may use."""
    if jobs == "auto":
        affinity = getattr(os, "sched_getaffinity", None)
        return len(affinity(0)) if affinity else os.cpu_count() or 1
    if not jobs.isascii() or not jobs.isdigit() or int(jobs) < 1:
        raise UserError(f"-j {jobs}: write a number of runs at a time, 1 or more, or auto")
    return int(jobs)


def named_executor(name: str, address: str, gpus_per_run: float, jobs: str) -> "Executor":
    """--executor local or ray."""
    if name == "local":
        for option, given in (("--address", address), ("--gpus-per-run", gpus_per_run)):
            if given:
                raise UserError(f"{option} goes with --executor ray")
        from lnexp.runs.local import local

        return partial(local, jobs=workers(jobs))
    if name != "ray":
        raise UserError(f"--executor {name}: write local or ray")
    if not (0 <= gpus_per_run <= 1 or gpus_per_run.is_integer() and gpus_per_run > 0):
        raise UserError(
            f"--gpus-per-run {gpus_per_run:g}: write a share, such as 0.25, or a whole number"
        )
    from lnexp.runs.cluster import cluster

    return cluster(address, gpus_per_run, None if jobs == "auto" else workers(jobs))


def resumable(command: Callable[P, int]) -> Callable[P, int]:
    """Ctrl-C ends it with its own exit code and one sentence."""

    @wraps(command)
    def until_interrupted(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            say("interrupted: what is finished is kept; the same command goes on")
            return INTERRUPTED

    return until_interrupted
