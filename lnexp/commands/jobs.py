"""How many runs at a time, and where."""

import os
from functools import partial
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    from ..runs.local import Executor


def workers(jobs: str) -> int:
    """-j N or auto, the cores that this process may use."""
    if jobs == "auto":
        affinity = getattr(os, "sched_getaffinity", None)
        return len(affinity(0)) if affinity else os.cpu_count() or 1
    if not jobs.isascii() or not jobs.isdigit() or int(jobs) < 1:
        raise UserError(f"-j {jobs}: write a number of runs at a time, 1 or more, or auto")
    return int(jobs)


def executor(name: str, address: str, gpus_per_run: float, jobs: str) -> "Executor":
    """--executor local or ray."""
    if name == "local":
        for option, given in (("--address", address), ("--gpus-per-run", gpus_per_run)):
            if given:
                raise UserError(f"{option} goes with --executor ray")
        from ..runs.local import local

        return partial(local, jobs=workers(jobs))
    if name != "ray":
        raise UserError(f"--executor {name}: write local or ray")
    if not (0 <= gpus_per_run <= 1 or gpus_per_run.is_integer() and gpus_per_run > 0):
        raise UserError(
            f"--gpus-per-run {gpus_per_run:g}: write a share, such as 0.25, or a whole number"
        )
    from ..runs.cluster import cluster

    return cluster(address, gpus_per_run, None if jobs == "auto" else workers(jobs))
