"""The report in a real browser: what a reader clicks, types and sees. Needs the extra `browser`."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lnexp.explain.explain import explain
from tests.cli import lnexp
from tests.figures.plot_frames import H1, LN_V, Made, four_fates, learning, norms, quickstart
from tests.origin.autopsies import autopsy, birth, write_autopsy
from tests.report.made_folders import write_made, write_noise
from tests.results.folders import write_points

pytestmark = pytest.mark.slow
sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
READY = "html[data-ready=yes]"
COUNT_CANVASES = """
window.canvases = 0;
const create = document.createElement;
document.createElement = function (name, options) {
  if (name === "canvas") window.canvases++;
  return create.call(this, name, options);
};"""


@pytest.fixture(scope="module")
def browser() -> Iterator:
    if CHROMIUM is None:
        pytest.fail("no Chromium or Chrome on this machine: install one to test the report in it")
    with sync_api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


def hundred() -> Made:
    """Eight runs of a hundred blocks; the odd ones go NaN, as in the experiment on 100 layers."""
    import numpy as np

    made = Made(["model.depth"])
    for seed in range(8):
        rng = np.random.default_rng(seed)
        bad = seed % 2
        loss = [*learning(20, 3.2, rng), *([np.nan] if bad else learning(20, 3.0, rng))]
        grads = norms(100, len(loss), 1e-6) * rng.uniform(0.5, 2, (len(loss), 100))
        if bad:
            grads[-1] = np.nan
            grads[-2, :36] = 0
        step = len(loss) - 1 if bad else None
        made.run({"model.depth": 100}, seed=seed, loss=loss, grads=grads, first_bad_step=step)
    return made


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory) -> dict[str, Path]:
    """Shapes of reports: the quickstart's, a hundred layers, four fates, no run at all."""
    root = tmp_path_factory.mktemp("browser")
    made = {"quickstart": quickstart(steps=60), "hundred": hundred(), "fates": four_fates()}
    found = {name: write_made(one, root / name) for name, one in made.items()}
    run = found["hundred"] / "runs" / "run1"
    write_autopsy(run, autopsy(birth(module="blocks.13.mlp.body.w2"), step=20))
    write_points(root / "none", [])
    (root / "none" / "sweep.yaml").write_text("name: none\n")
    found["none"] = root / "none"
    for path in found.values():
        assert lnexp("report", path).code == 0
    return found


@pytest.fixture
def open_page(browser, sweeps):
    """Opens a report; at the end no error was logged and no address but the file's was asked."""
    opened = []

    def open_page(name: str, hash: str = "", **options):
        context = browser.new_context(**({"viewport": {"width": 1200, "height": 900}} | options))
        page = context.new_page()
        wrong: list[str] = []
        address = (sweeps[name] / "report.html").as_uri()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None
        )
        page.on(
            "request", lambda r: None if r.url.split("#")[0] == address else wrong.append(r.url)
        )
        page.goto(address + hash)
        page.wait_for_selector(READY, state="attached")
        opened.append((context, wrong))
        return page

    yield open_page
    for context, wrong in opened:
        context.close()
        assert [text for text in wrong if not text.startswith(("data:", "blob:"))] == []


def column(page, name: str) -> list[str]:
    """The texts of a column of the table of runs, of the rows that are shown."""
    heads = [text.rstrip(" ↕↑↓") for text in page.locator("#table thead th").all_inner_texts()]
    at = heads.index(name) + 1
    return page.locator(f"#table tbody tr:not([hidden]) > :nth-child({at})").all_inner_texts()


def until(page, holds, times: int = 100) -> bool:
    """Whether it comes to hold; the page forbids the evaluation that wait_for_function needs."""
    for _ in range(times):
        if holds():
            return True
        page.wait_for_timeout(50)
    return False


def source(page, name: str) -> dict:
    """The columns of a chart's data source."""
    return page.evaluate(
        """name => { for (const d of Bokeh.documents) for (const r of d.roots()[0].renderers)
        if (r.data_source.name === name) return Object.fromEntries(Object.entries(
        r.data_source.data).map(([k, v]) => [k, [...v].map(x => Array.isArray(x) ||
        ArrayBuffer.isView(x) ? [...x] : x)])); }""",
        name,
    )


@pytest.mark.parametrize("name", ["quickstart", "hundred", "fates", "none"])
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_never_scrolls_sideways(open_page, name, width):
    page = open_page(name, viewport={"width": width, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_head_sorts_both_ways_numbers_by_size(open_page):
    page = open_page("quickstart")
    head = page.get_by_role("button", name="depth", exact=True)
    for way in ("ascending", "descending"):
        head.click()
        depths = [int(text) for text in column(page, "depth")]
        assert depths == sorted(depths, reverse=way == "descending") and len(depths) == 36
        assert page.locator(f"th[aria-sort={way}]").inner_text().startswith("depth")
    assert (
        page.locator("th[aria-sort=none]").count() == page.locator("#table th button").count() - 1
    )


def test_what_is_nan_sorts_behind_every_number_and_what_is_not_known_last(open_page):
    page = open_page("fates")
    page.get_by_role("button", name="loss", exact=True).click()
    assert column(page, "loss")[-2:] == ["nan", "nan"]
    page.get_by_role("button", name="first bad step", exact=True).click()
    assert column(page, "first bad step") == ["0", "7", "-", "-"]


def test_settings_verdicts_and_words_filter_the_table_and_the_curves(open_page):
    page = open_page("quickstart")
    page.get_by_label("model.depth").select_option("24")
    assert (
        set(column(page, "depth")) == {"24"}
        and "12 of 36 runs" in page.locator("#shown").inner_text()
    )
    assert len(source(page, "lines")["run"]) == 12
    page.get_by_label("words").fill("run30")
    assert column(page, "run") == ["run30"] and source(page, "lines")["run"] == ["run30"]
    page.get_by_role("button", name="show all").click()
    assert until(page, lambda: len(column(page, "run")) == 36)


def test_a_cell_of_the_map_shows_its_runs(open_page):
    page = open_page("quickstart")
    page.locator(".map .show").first.click()
    shown = column(page, "run")
    assert 0 < len(shown) < 36 and "one cell" in page.locator("#cell").inner_text()
    page.locator("#cell").click()
    assert len(column(page, "run")) == 36


def test_a_run_opens_with_the_words_of_explain_by_mouse_and_by_address(open_page, sweeps):
    page = open_page("hundred")
    page.get_by_role("link", name="run1", exact=True).click()
    told = explain(sweeps["hundred"] / "runs" / "run1")
    article = page.locator("article.run:visible")
    assert article.count() == 1 and told.diagnosis in article.inner_text()
    assert all(line in article.inner_text() for line in told.origin)
    born = article.locator("svg.network .born")
    assert born.count() >= 1 and "Inf born" in article.locator("svg.network").inner_html()
    again = open_page("hundred", "#run/hundred/run3")
    assert again.locator("article.run:visible h3").inner_text() == "run3"


def test_the_keyboard_alone_sorts_opens_a_run_and_moves_the_slider(open_page):
    page = open_page("fates")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.get_by_role("button", name="run", exact=True).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert column(page, "run")[0] == "run3"
    while page.evaluate("document.activeElement.tagName") != "A":
        page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Enter")
    focused = "document.activeElement.textContent"
    assert until(page, lambda: page.evaluate(focused) == "run3")
    assert page.locator("article.run:visible h3").inner_text() == "run3"
    page.locator("#step").focus()
    before = page.locator("#step-words").inner_text()
    page.keyboard.press("ArrowLeft")
    after = page.locator("#step-words").inner_text()
    assert before.startswith("step 39") and after.startswith("step 38")


def test_the_slider_shows_the_layers_of_its_step_and_every_kind_of_value(open_page):
    page = open_page("fates", "#run/fates/run2")
    for step, marker, words in ((6, "circle", "smallest"), (7, "triangle", "Inf"), (8, "x", "NaN")):
        page.locator("#step").fill(str(step))
        assert set(source(page, "dots")["marker"]) == {marker}
        assert words in page.locator("#step-words").inner_text()
    page.locator("#chosen").select_option("run3")
    markers = source(page, "dots")["marker"]
    assert (markers.count("inverted_triangle"), markers.count("circle")) == (5, 5)
    assert "5 exactly 0" in page.locator("#step-words").inner_text()
    assert "exactly 0: 200 of 400 cells" in page.locator("#heat-legend").inner_text()


def test_a_curve_ends_in_a_mark_where_it_stops_being_finite(open_page):
    page = open_page("fates")
    marks = source(page, "marks")
    found = set(zip(marks["run"], marks["x"], marks["marker"], strict=True))
    assert found == {("run1", 0, "x"), ("run2", 7, "triangle"), ("run2", 8, "x")}
    finite = [y for ys in source(page, "lines")["ys"] for y in ys]
    assert min(marks["y"]) > max([*finite, LN_V, H1])


def test_a_dark_page_is_dark_charts_included_and_readable(open_page):
    page = open_page("quickstart", color_scheme="dark")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(20, 24, 29)"
    fills = page.evaluate("Bokeh.documents.map(d => d.roots()[0].background_fill_color)")
    inks = page.evaluate("Bokeh.documents.map(d => d.roots()[0].left[0].major_label_text_color)")
    assert set(fills) == {"#14181d", "#8a9099"} and set(inks) == {"#e8eaed"}
    page.emulate_media(color_scheme="light")
    ground = "Bokeh.documents[0].roots()[0].background_fill_color"
    assert until(page, lambda: page.evaluate(ground) == "#ffffff")


def test_print_shows_whole_tables_and_no_controls(open_page):
    page = open_page("quickstart")
    page.emulate_media(media="print")
    assert not page.locator("#filters").is_visible() and not page.locator("nav").is_visible()
    box = page.locator(".tall").evaluate("e => [e.scrollHeight, e.clientHeight]")
    assert box[0] == box[1]


def test_a_watched_page_refreshes_itself_and_keeps_its_filters(browser, tmp_path):
    sweep = write_made(four_fates(), tmp_path / "live")
    words = [sys.executable, "-c", "from lnexp.cli import main; main()", "report", sweep, "--watch"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as shown:
        try:
            assert shown.stdout is not None
            address = shown.stdout.readline().strip()
            page = browser.new_page()
            asked: set[str] = set()
            page.on("request", lambda request: asked.add(request.url))
            page.goto(address)
            page.wait_for_selector(READY, state="attached")
            page.locator("select[data-filter]").first.select_option("stalled")
            assert column(page, "run") == ["run3"]
            status = sweep / "runs" / "run0" / "status.json"
            status.write_text('{"status": "failed", "error": "made up"}')
            header = page.locator("header p").first
            assert until(page, lambda: "1 failed" in header.inner_text(), 400)
            page.wait_for_selector(READY, state="attached")
            assert column(page, "run") == ["run3"]
            assert {url for url in asked if not url.startswith("data:")} == {address}
            page.close()
        finally:
            shown.send_signal(signal.SIGINT)
    assert shown.returncode == 130


def test_a_hundred_runs_of_a_hundred_blocks_open(browser, tmp_path):
    sweep = write_noise(tmp_path / "large", 100, 45, range(100))
    assert lnexp("report", sweep).code == 0
    assert (sweep / "report.html").stat().st_size < 5e6
    page = browser.new_page()
    page.add_init_script(COUNT_CANVASES)
    page.goto((sweep / "report.html").as_uri())
    page.wait_for_selector(READY, state="attached")
    assert len(column(page, "run")) == 100 and len(source(page, "lines")["run"]) == 100
    # A canvas a cell made a page ten times as slow.
    assert page.evaluate("window.canvases") < len(source(page, "cells")["text"]) / 10
    page.close()
