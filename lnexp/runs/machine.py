"""The memory of this machine, and a run's share of it."""

import os
from math import inf
from pathlib import Path

import torch

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
