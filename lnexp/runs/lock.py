"""One writer a sweep folder. Free of torch."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from lnexp.files import strict_json, write_whole
from lnexp.messages import UserError


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
