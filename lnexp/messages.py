"""What a user is told: one problem a line, harmless to print, and not too many of them.

Free of torch and pandas.
"""

import contextlib
import re
import sys
from collections.abc import Iterable

MOST = 20  # problems told at once; the rest are counted

# Control characters move the cursor and hide text; bidi marks reorder what is read.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


class UserError(Exception):
    """Wrong usage, config or data. Each problem is one line: where, what was read, what to write.

    The command line prints the lines on standard error and exits with 2.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def one_line(text: str) -> str:
    """A complaint stays one line of plain letters, whatever keys and values it quotes."""
    line = " ".join(text.replace("\t", " ").splitlines())
    return UNPRINTABLE.sub(lambda mark: mark[0].encode("unicode_escape").decode(), line)


def refusal(problems: Iterable[str], source: str) -> UserError:
    """Every problem as one line; from the twentieth on they are counted, under `source`."""
    lines = list(dict.fromkeys(map(one_line, problems)))
    rest = len(lines) - MOST
    return UserError(*lines[:MOST], *([f"{one_line(source)}: and {rest} more"] * (rest > 0)))


def amount(count: int, noun: str) -> str:
    """'1 run', '2 runs'."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def short(text: str, longest: int = 60) -> str:
    """One line of at most so many characters."""
    line = " ".join(text.split()) or '""'
    return line if len(line) <= longest else line[: longest - 3] + "..."


def say(text: str) -> None:
    """On standard error: it informs, and never decides whether something is done."""
    with contextlib.suppress(OSError, ValueError):  # a closed pipe, a closed stream
        print(text, file=sys.stderr, flush=True)
