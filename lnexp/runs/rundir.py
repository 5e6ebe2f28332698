"""One run's folder: config first, status last, by rename. One writer a folder, and one process a
sweep's folder, by its lock.

A run killed at any moment leaves no status.json; the rows already written stay whole.
"""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, TextIO

from filelock import FileLock, Timeout

from lnexp.files import naming, strict_json, write_whole
from lnexp.messages import UserError
from lnexp.records import Autopsy, BrokenRecord, Status
from lnexp.rows import EventRow, LayerRow, LayerRows, Record, StepRow, header, line


def read_status(folder: Path) -> Status | None:
    """None: not over, or no readable status is there."""
    try:
        return Status.read(folder)
    except BrokenRecord:
        return None


class RunDir:
    """The open folder of a run in training."""

    FILES = {"steps.csv": StepRow, "layers.csv": LayerRow, "events.csv": EventRow}
    CELLS = {name: attrgetter(*header(row_type)) for name, row_type in FILES.items()}

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, TextIO] = {}

    def begin(self, config_yaml: str, env: Mapping[str, Any]) -> Self:
        """A fresh start: what an earlier, unfinished try left in the folder goes."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name in (Status.FILE, "error.txt", "checkpoint.pt", Autopsy.FILE):
            (self.path / name).unlink(missing_ok=True)
        self._describe(config_yaml, env)
        for name, row_type in self.FILES.items():
            file = (self.path / name).open("w", encoding="utf-8", newline="")
            self._files[name] = file
            with naming(self.path / name):
                file.write(line(header(row_type)))
                file.flush()
        return self

    def resume(
        self,
        config_yaml: str,
        env: Mapping[str, Any],
        steps: int,
        cells: Mapping[str, str | None] = MappingProxyType({}),
    ) -> Self:
        """Go on after row `steps` - 1: later rows go, and that row gets the `cells` that are texts.

        Raises UserError where a table has other columns than this version writes.
        """
        tables = {}
        for name, row_type in self.FILES.items():
            tables[name] = _rows_before(self.path / name, header(row_type), steps, cells)
        for name in (Status.FILE, "error.txt"):
            (self.path / name).unlink(missing_ok=True)
        self._describe(config_yaml, env)
        for name, text in tables.items():
            write_whole(self.path / name, text)
            self._files[name] = (self.path / name).open("a", encoding="utf-8", newline="")
        return self

    def _describe(self, config_yaml: str, env: Mapping[str, Any]) -> None:
        write_whole(self.path / "config.yaml", config_yaml)
        write_whole(self.path / "env.json", strict_json(env))

    def write(self, record: Record) -> None:
        """A step's rows, whole, flushed once."""
        tables = ([record.step], record.layers, record.events)
        for name, rows in zip(self.FILES, tables, strict=True):
            if rows:
                if isinstance(rows, LayerRows):
                    text = "".join(rows.lines())
                else:
                    text = "".join([line(self.CELLS[name](row)) for row in rows])
                with naming(self.path / name):
                    self._files[name].write(text)
                    self._files[name].flush()
        if record.autopsy is not None:
            write_whole(self.path / Autopsy.FILE, strict_json(record.autopsy))

    def finish(self, status: Status) -> None:
        self.close()
        write_whole(self.path / Status.FILE, strict_json(asdict(status)))

    def close(self) -> None:
        while self._files:
            name, file = self._files.popitem()
            with naming(self.path / name):
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._files:
            # What a failed write left in a buffer fails here again; it has been told.
            with suppress(OSError) if error else nullcontext():
                self.close()


def _rows_before(path: Path, names: list[str], steps: int, new: Mapping[str, str | None]) -> str:
    """A table's text with its header and the whole rows of steps below `steps`."""
    text = path.read_text(encoding="utf-8")
    first, *rows = text[: text.rfind("\n") + 1].splitlines(keepends=True) or [line(names)]
    if first != line(names):
        raise UserError(
            f"{path} has other columns ({first.strip()}) than this version writes "
            f"({','.join(names)}); --force trains anew"
        )
    rows = [row for row in rows if int(row.split(",", 1)[0]) < steps]
    new = {name: text for name, text in new.items() if name in names and text is not None}
    if new and rows and rows[-1].startswith(f"{steps - 1},"):
        cells = rows[-1].rstrip("\n").split(",")
        for name, text in new.items():
            cells[names.index(name)] = text
        rows[-1] = ",".join(cells) + "\n"
    return first + "".join(rows)


@dataclass(frozen=True)
class LastRow:
    step: int
    seconds: float
    loss: float


def last_row(folder: Path) -> LastRow | None:
    """The last whole row of steps.csv, read from its end; None: there is none."""
    try:
        with (folder / "steps.csv").open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 1000))
            tail = file.read().decode("utf-8", "replace")
        names = header(StepRow)
        cells = dict(zip(names, tail[: tail.rfind("\n")].splitlines()[-1].split(","), strict=True))
        return LastRow(int(cells["step"]), float(cells["seconds"]), float(cells["loss"]))
    except (OSError, ValueError, IndexError):
        return None


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
        write_whole(holder, strict_json(me))
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
