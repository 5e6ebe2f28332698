"""Commands that may be interrupted and called again."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from ..console import say

INTERRUPTED = 130
P = ParamSpec("P")


def resumable(command: Callable[P, int]) -> Callable[P, int]:
    """Ctrl-C ends it with its own exit code and one sentence."""

    @wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            say("interrupted: what is finished is kept; the same command goes on")
            return INTERRUPTED

    return guarded
