"""How many runs at a time."""

import os

from ..errors import UserError


def workers(jobs: str) -> int:
    """-j N or auto, the cores that this process may use."""
    if jobs == "auto":
        affinity = getattr(os, "sched_getaffinity", None)
        return len(affinity(0)) if affinity else os.cpu_count() or 1
    if not jobs.isascii() or not jobs.isdigit() or int(jobs) < 1:
        raise UserError(f"-j {jobs}: write a number of runs at a time, 1 or more, or auto")
    return int(jobs)
