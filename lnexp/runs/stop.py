"""How a sweep stops: Ctrl-C and termination reach the parent alone, which decides, and stops its
workers over two pipes, never by a signal.

A pipe whose end is closed is noticed by every process that holds the other one. A worker that is
killed leaves no lock behind, and a parent that dies closes both: no worker outlives it.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnContext
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
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


class StopPipes:
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
        for end in (self._stop, self._end, *self.heard):
            end.close()


class Interruption:
    """SIGINT or SIGTERM: the first is only noted inside `gently`, else it raises KeyboardInterrupt.

    After one that raised, the process is ending: further ones are ignored.
    """

    def __init__(self) -> None:
        self.asked = False
        self._gentle = False

    @contextmanager
    def gently(self) -> Iterator[None]:
        """Here the first signal is noted, for work that ends itself soon; the second raises."""
        self._gentle = True
        try:
            yield
        finally:
            self._gentle = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        first, self.asked = not self.asked, True
        if first and self._gentle:
            return
        _ignore()  # what follows must not be cut short
        raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """SIGINT and SIGTERM (of `timeout`, of schedulers, of a shutdown) ask for an interruption.

    After one they stay ignored, through the shutdown of the process as well.
    """
    interruption = Interruption()
    before = {number: signal.signal(number, interruption.handle) for number in SIGNALS}
    try:
        yield interruption
    finally:
        if interruption.asked:
            _ignore()
        else:
            for number, handler in before.items():
                signal.signal(number, handler)


def _ignore() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def deaf_children(*signals: signal.Signals) -> Iterator[None]:
    """Processes started inside never see Ctrl-C, nor `signals`, not even while they import: a
    blocked signal is inherited, a handler is not."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # its start, which the first worker's brings, unblocks them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *signals})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
