"""Words on standard error: they inform, and never decide whether something is done."""

import contextlib
import sys


def say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a closed pipe, a closed stream
        print(text, file=sys.stderr, flush=True)
