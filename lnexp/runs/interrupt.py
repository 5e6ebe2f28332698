"""Ctrl-C and termination: the parent alone decides, and no worker outlives it."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, parent_process
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _interrupt(number: int, frame: FrameType | None) -> None:
    for further in SIGNALS:  # the first one is enough: what follows must not be cut short
        signal.signal(further, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM (of `timeout`, of schedulers, of a shutdown) raise KeyboardInterrupt.

    After one the process is ending: further ones stay ignored, through its shutdown as well.
    """
    before = {number: signal.signal(number, _interrupt) for number in SIGNALS}
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        _restore(before)
        raise
    _restore(before)


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextmanager
def deaf_children() -> Iterator[None]:
    """Processes started inside never see Ctrl-C, not even while they import: a blocked signal is
    inherited, a handler is not."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """In a worker: when the parent dies, however it dies, this process ends at once.

    Otherwise it would go on writing into a folder that the next call believes to be free.
    """
    parent = parent_process()
    if parent is None:
        return

    def wait() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
