"""A run on another machine: trained into a folder of its own there, whose files go to the driver
as they grow.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from .. import __version__
from ..config import RunConfig
from ..data import Corpus
from . import stop
from .machine import share
from .rundir import Status
from .worker import train_run

POLL_SECONDS = 0.5
LAST = ("checkpoint.pt", "status.json")  # what they say must be covered by the rows sent before


@dataclass(frozen=True)
class Change:
    """The file is its first `offset` bytes and then these; None: it is gone."""

    file: str
    offset: int
    content: bytes | None


@dataclass(frozen=True)
class Order:
    """What a node needs to train a run: nothing of the driver's disk."""

    name: str
    config: RunConfig
    device: str
    sha256: str
    version: str  # of the driver's lnexp
    held: Mapping[str, bytes]  # the run's files as the driver has them
    gpus: float = 0.0  # that the cluster gives the run

    def may_take(self) -> float:
        """On this node, beside as many runs of its kind as the cluster puts there."""
        if self.device == "cuda":
            return share(self.device, max(1.0, 1 / self.gpus))
        return share(self.device, max(1.0, (os.cpu_count() or 1) / self.config.train.threads))


def train_here(
    order: Order, corpus: Corpus, stopping: Callable[[], bool]
) -> Iterator[list[Change] | Status]:
    """The run folder's changes as they come, and at last its status."""
    if order.version != __version__:
        raise RuntimeError(f"lnexp is {__version__} on this node and {order.version} here")
    if stopping():
        yield Status("interrupted")
        return
    with TemporaryDirectory(prefix="lnexp-") as scratch:
        folder = Path(scratch) / order.name
        folder.mkdir()
        for name, content in order.held.items():
            (folder / name).write_bytes(content)
        changes, statuses = Changes(folder), list[Status]()
        work = (str(folder), order.config, order.device, order.sha256, order.may_take(), corpus)
        thread = Thread(target=lambda: statuses.append(train_run(*work)), daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(POLL_SECONDS)
            if not stop.asked() and stopping():
                stop.ask()
            if found := changes.take():
                yield found
        if found := changes.take():
            yield found
        yield statuses[0]


class Changes:
    """What is new in a folder since the last look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen = {path.name: _mark(path.stat()) for path in folder.iterdir()}
        # A table that was there before may be emptied by a run that starts anew, and have grown
        # past its old size at the next look; one that this run wrote only grows.
        self.sent = set[str]()

    def take(self) -> list[Change]:
        # A snapshot is looked at before the rows and sent after them: rows may be ahead of it.
        late = [change for name in LAST if (change := self._of(name))]
        names = {path.name for path in self.folder.iterdir()} | set(self.seen)
        rest = sorted(name for name in names if name not in LAST and not name.endswith(".tmp"))
        return [change for name in rest if (change := self._of(name))] + late

    def _of(self, name: str) -> Change | None:
        path, before = self.folder / name, self.seen.get(name)
        try:
            with path.open("rb") as file:
                now = _mark(os.fstat(file.fileno()))  # of these bytes, whatever the name means next
                if now == before:
                    return None
                grown = name in self.sent and path.suffix == ".csv"
                offset = before[1] if before and grown and now[0] == before[0] else 0
                file.seek(offset)
                content = file.read()
        except FileNotFoundError:
            if self.seen.pop(name, None) is None:
                return None
            return Change(name, 0, None)
        self.sent.add(name)
        self.seen[name] = (now[0], offset + len(content), now[2])
        return Change(name, offset, content)


def _mark(found: os.stat_result) -> tuple[int, int, int]:
    """Which file it is, its size, and when it was written."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def apply(folder: Path, changes: list[Change]) -> None:
    """Make the driver's folder what the node's is; a whole file by rename."""
    folder.mkdir(parents=True, exist_ok=True)
    for change in changes:
        path = folder / change.file
        if change.content is None:
            path.unlink(missing_ok=True)
        elif change.offset == 0:
            draft = path.with_name(path.name + ".tmp")
            draft.write_bytes(change.content)
            draft.replace(path)
        else:
            with path.open("r+b") as file:
                file.seek(change.offset)
                file.truncate()
                file.write(change.content)


def held(folder: Path) -> dict[str, bytes]:
    """A run's files as they are here, without its plots/ and what its readers keep."""
    if not folder.is_dir():
        return {}
    files = (path for path in folder.iterdir() if path.is_file())
    return {
        path.name: path.read_bytes() for path in files if path.suffix not in (".tmp", ".parquet")
    }
