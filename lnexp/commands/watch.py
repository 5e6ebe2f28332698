"""lnexp show --watch: the table of a sweep, redrawn while `lnexp run` works on it."""

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live

from ..analysis.load import Results, load
from ..analysis.runscsv import is_locked
from ..errors import UserError
from ..present.live import ASCII_BARS, BARS, live
from .read import print_tables
from .resumable import INTERRUPTED

SECONDS = 1.0  # between two looks
SHARE = 5  # reading takes at most one part in so many of the time


def watch(path: Path) -> int:
    """Until no sweep there is in training any more; then the ordinary tables.

    Exit code: 0 the training ended, 130 interrupted.
    """
    if not sys.stdout.isatty():
        raise UserError("--watch redraws a terminal, which standard output is not; leave it out")
    console = Console(highlight=False)
    bars = BARS if can_print(BARS, console.encoding) else ASCII_BARS
    results, running = load(path), True
    try:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as screen:
            while running:
                running = in_training(results)
                began = time.monotonic()
                results = load(path)  # after the look at the lock: what it ended with is there
                screen.update(live(results, console.size.height, bars), refresh=True)
                if running:
                    time.sleep(max(SECONDS, SHARE * (time.monotonic() - began)))
            screen.update("", refresh=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    print_tables(results)
    return 0


def in_training(results: Results) -> bool:
    """Whether a process works on one of the sweeps."""
    firsts = results.runs.drop_duplicates("sweep")["folder"]
    return any(is_locked(Path(folder).parent.parent) for folder in firsts)


def can_print(letters: str, encoding: str) -> bool:
    try:
        letters.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
