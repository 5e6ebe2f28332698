"""The instruments and their tables: a new one is one entry here and its row type in labrows.py."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..config import RunConfig
from ..errors import UserError
from ..labrows import TABLES
from ..rows import header, line
from ..rules import WITHOUT_NORM
from ..runs.rundir import read_status
from ..runs.worker import text_of
from .batch import batch
from .drift import drift
from .norms import norms
from .profile import profile
from .skip import depth, sampled_skip, skip
from .subject import Subject


@dataclass(frozen=True)
class Instrument:
    measure: Callable[[Subject], Iterable[Any]]
    applies: Callable[[RunConfig], bool] = lambda config: True


INSTRUMENTS = {
    "batch": Instrument(batch),
    "norms": Instrument(norms, lambda config: config.model.placement not in WITHOUT_NORM),
    "skip": Instrument(skip),
    "depth": Instrument(depth),
    "sampled_skip": Instrument(sampled_skip),
    "drift": Instrument(drift),
    "profile": Instrument(profile),
}


def lines_of(
    table: str, folder: str, config: RunConfig, device: str, data_sha256: str
) -> list[str]:
    """A run's lines of a table; what a worker process does."""
    torch.set_num_threads(config.train.threads)
    path = Path(folder)
    status = read_status(path)
    steps_done = status.steps_done if status else 0
    names = header(TABLES[table])
    try:
        subject = Subject(path, steps_done, config, text_of(config.data, data_sha256), device)
        rows = INSTRUMENTS[table].measure(subject)
        return [line(getattr(row, name) for name in names) for row in rows]
    except UserError as error:  # its lines must cross to the parent as one
        raise RuntimeError("; ".join(error.problems)) from None
