"""lnexp report: results as one HTML file, or as a page that follows them. Without torch."""

import time
from pathlib import Path

from lnexp.claims.judge import judged
from lnexp.commands.jobs import INTERRUPTED
from lnexp.messages import UserError, say
from lnexp.results.load import Results, load

PAUSE = 2.0  # seconds between two looks at the results, and three times what a page took


def report(path: Path, html: Path | None, watch: bool, port: int | None) -> int:
    """Exit code: 0 written, 130 the watching was ended."""
    if watch and html is not None:
        raise UserError("--watch --html: a watched page is served, not written; write one of them")
    if port is not None and not watch:
        raise UserError(f"--port {port}: only with --watch")
    if watch:
        return _watch(path, port or 0)
    from lnexp.report.page import render, write
    from lnexp.report.runs import stamp_of

    results = load(path)
    newest = stamp_of(results, folders(path, results)).newest
    page = render(results, judged(results), folders(path, results), newest)
    target = html or path / "report.html"
    write(page, target)
    for note in results.notes:
        say(f"note: {note}")
    print(target)
    return 0


def folders(path: Path, results: Results) -> dict[str, Path]:
    """Of each sweep; that of a run folder alone is two above it."""
    if (path / "points.json").is_file():
        return {name: path for name in results.axes}
    if (path / "config.yaml").is_file():
        return {name: path.resolve().parent.parent for name in results.axes}
    return {name: path / name for name in results.axes}


def _watch(path: Path, port: int) -> int:
    from lnexp.report.page import render
    from lnexp.report.runs import SectionCache, stamp_of
    from lnexp.report.server import Served, serving

    remembered, served = SectionCache(), Served()
    notes = set[str]()

    def tell_once(text: str) -> None:  # the page is made again and again
        if text not in notes:
            notes.add(text)
            say(text)

    def look(last: str) -> str:
        """The stamp of the results; a page is made where it is not the last one."""
        results = load(path)
        where = folders(path, results)
        stamp = stamp_of(results, where)
        if stamp.text != last:
            claims = judged(results, tell_once)
            parts = (results, claims, where, stamp.newest)
            served.put(render(*parts, stamp=stamp.text, reader=remembered), stamp.text)
        return stamp.text

    with serving(served, port) as address:
        try:
            last = look("")
            print(address, flush=True)
            while True:
                began = time.monotonic()
                try:
                    last = look(last)
                except UserError as problem:  # a file that is just being written: try again
                    tell_once(f"note: {problem}")
                time.sleep(max(PAUSE, 3 * (time.monotonic() - began)))
        except KeyboardInterrupt:
            return INTERRUPTED
