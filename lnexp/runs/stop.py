"""How a sweep's parent stops its workers: over two pipes, never by a signal.

A pipe whose end is closed is noticed by every process that holds the other one. A worker that is
killed leaves no lock behind, and a parent that dies closes both.
"""

import os
import threading
from multiprocessing import connection
from multiprocessing.context import SpawnContext

_asked = threading.Event()


def asked() -> bool:
    """In a worker: whether to leave at the next step boundary."""
    return _asked.is_set()


def ask() -> None:
    """In a worker: from now on asked() is true."""
    _asked.set()


def listen(stop: connection.Connection, end: connection.Connection) -> None:
    """In a worker: from now on `stop` makes asked() true, and `end` ends this process at once.

    A worker that outlived its parent would go on writing into a folder that the next call
    believes to be free.
    """

    def wait() -> None:
        connection.wait([stop, end])
        ask()
        connection.wait([end])
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


class Lines:
    """The parent's ends. `heard` are the workers', the arguments of listen()."""

    def __init__(self, context: SpawnContext) -> None:
        stop_heard, self._stop = context.Pipe(duplex=False)
        end_heard, self._end = context.Pipe(duplex=False)
        self.heard = (stop_heard, end_heard)

    def stop(self) -> None:
        self._stop.close()

    def end(self) -> None:
        self._end.close()

    def close(self) -> None:
        for line in (self._stop, self._end, *self.heard):
            line.close()
