"""Ctrl-C and termination: the parent alone decides, and no worker outlives it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
