"""Size of reports, and how long a browser takes to draw them.

    python scripts/bench/report.py [RESULTS]...

Beside the results named, 100 made-up runs of 100 blocks and 60 steps. From opening the file until
its last chart stands, in Chromium; the median of five. Needs the extra `browser`.
"""

import shutil
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, sync_playwright
from plot import write_sweep

from lnexp.commands.report import report

RUNS, BLOCKS, STEPS, TIMES = 100, 100, 60, 5
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
READY = "html[data-ready=yes]"


def seconds(browser: Browser, file: Path) -> float:
    page = browser.new_page()
    began = time.perf_counter()
    page.goto(file.as_uri())
    page.wait_for_selector(READY)
    took = time.perf_counter() - began
    page.close()
    return took


def main() -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))))
    with TemporaryDirectory() as scratch, sync_playwright() as play:
        made = Path(scratch) / "made_up"
        write_sweep(made, RUNS, STEPS, 1, full=False, depths=(BLOCKS,))
        browser = play.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        for results in (*map(Path, sys.argv[1:]), made):
            file = Path(scratch) / f"{results.name}.html"
            began = time.perf_counter()
            report(results, file, False, None)
            wrote = time.perf_counter() - began
            drawn = statistics.median(seconds(browser, file) for _ in range(TIMES))
            size = file.stat().st_size / 1e6
            print(
                f"{results.name:<20} {size:5.2f} MB  made in {wrote:5.1f} s  drawn {drawn:5.2f} s"
            )
        browser.close()


if __name__ == "__main__":
    main()
