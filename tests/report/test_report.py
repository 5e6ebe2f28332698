"""The report: every run is in it, user text is shown as text, and nothing is fetched."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from lnexp.commands.report import folders
from lnexp.explain.explain import MEANING, explain
from lnexp.explain.show import sections
from lnexp.report.page import CAUSE_RULES, FORMULAS, VERDICT_RULES, render
from lnexp.report.runs import read_section
from lnexp.results.load import load
from lnexp.results.verdicts import VERDICTS
from tests.cli import lnexp
from tests.figures.plot_frames import four_fates, mixed, one_run
from tests.figures.test_thin import decoded
from tests.origin.autopsies import autopsy, birth, write_autopsy
from tests.report.made_folders import config, write_made, write_noise, write_run
from tests.results.folders import write_points

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@dataclass
class Seen(HTMLParser):
    """What a browser would make of the page."""

    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    inside: dict[str, list[str]] = field(default_factory=dict)  # script and style, by id or tag
    at: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag, attrs):
        found = {name: value or "" for name, value in attrs}
        self.tags.append((tag, found))
        if tag in ("script", "style"):
            self.at = found.get("id", tag)

    def handle_endtag(self, tag):
        self.at = "" if tag in ("script", "style") else self.at

    def handle_data(self, data):
        if self.at:
            self.inside.setdefault(self.at, []).append(data)
        else:
            self.text.append(data)

    def json(self, name: str):
        return json.loads("".join(self.inside[name]), parse_constant=pytest.fail)

    @property
    def words(self) -> str:
        return " ".join("".join(self.text).split())

    def count(self, tag: str, **attributes: str) -> int:
        wanted = attributes.items()
        return sum(
            t == tag and all(a.get(k.rstrip("_")) == v for k, v in wanted) for t, a in self.tags
        )


def see(page: str) -> Seen:
    seen = Seen()
    seen.feed(page)
    return seen


def page_of(path: Path, **more) -> str:
    from lnexp.claims.judge import judged

    results = load(path)
    return render(results, judged(results), folders(path, results), 0.0, **more)


@pytest.fixture(scope="module")
def fates(tmp_path_factory) -> Path:
    """Healthy, NaN from step 0, Inf at step 7 then NaN, exactly zero; the third with an autopsy."""
    sweep = write_made(four_fates(), tmp_path_factory.mktemp("report") / "fates")
    born = birth("backward", "inf", "blocks.2.attn.body.wo")
    write_autopsy(sweep / "runs" / "run2", autopsy(born))
    return sweep


@pytest.fixture(scope="module")
def seen(fates) -> Seen:
    return see(page_of(fates))


def test_the_four_fates_are_all_there_each_with_its_verdict_and_its_words(fates, seen):
    data = seen.json("data")
    assert [run["name"] for run in data["runs"]] == ["run0", "run1", "run2", "run3"]
    assert [run["outcome"] for run in data["runs"]][1:] == ["nonfinite", "nonfinite", "stalled"]
    assert seen.count("article", class_="run") == 4
    for i in range(4):
        told = explain(fates / "runs" / f"run{i}")
        assert told.diagnosis in seen.words
        for lines in sections(told).values():
            assert all(" ".join(line.split()) in seen.words for line in lines)


def test_nan_inf_and_exact_zeros_are_in_the_curves_and_maps(seen):
    runs = seen.json("data")["runs"]
    assert runs[1]["curve"]["loss"] == ["nan"]
    assert runs[2]["curve"]["loss"][7:] == ["inf", "nan"]
    maps = [decoded(run["gradients"]) for run in runs]
    assert np.isfinite(maps[0]).all() and (maps[0] > 0).all()
    assert np.isnan(maps[1]).all()
    assert np.isinf(maps[2][:, 7]).all() and np.isnan(maps[2][:, 8]).all()
    assert (maps[3][:5] == 0).all() and (maps[3][5:9] > 0).all()  # embedding and four blocks


def test_a_map_holds_the_root_of_the_summed_squares_of_a_layers_parts(seen):
    """3-4-5: attention and MLP make up the block's norm."""
    told = seen.json("data")["runs"][0]["gradients"]
    blocks = decoded(told)[[row for row, (a, _) in enumerate(told["layers"]) if 0 <= a < 2]]
    assert np.allclose(blocks[:, 0], [1.2, 1.0], rtol=1e-3)


def test_the_birth_is_drawn_and_its_way_named(seen):
    assert "Inf born" in seen.words and "backward ▲" in seen.words
    assert "block 3 of 6" in seen.words


def test_runs_of_every_status_are_listed(tmp_path):
    page = see(page_of(write_made(mixed(), tmp_path / "mixed")))
    outcomes = [run["outcome"] for run in page.json("data")["runs"]]
    assert len(outcomes) == 10 and {"failed", "pending", "nonfinite"} <= set(outcomes)
    assert page.count("article", class_="run") == 10
    assert "Not trained yet" in page.words and "The process failed" in page.words
    assert page.json("data")["runs"][-1]["curve"] == {}


@pytest.mark.parametrize("steps", [1, 3])
def test_a_short_run_and_one_without_readings_have_a_page(tmp_path, steps):
    for grads in (True, False):
        made = one_run(steps=steps, depth=1, grads=grads)
        sweep = write_made(made, tmp_path / f"one{grads}")
        for path in (sweep, sweep / "runs" / "run0"):
            (run,) = see(page_of(path)).json("data")["runs"]
            assert len(run["curve"]["steps"]) == steps and bool(run["gradients"]) == grads


def test_a_sweep_without_runs_has_a_page(tmp_path):
    write_points(tmp_path / "empty", [], question="Nothing?")
    page = see(page_of(tmp_path / "empty"))
    assert "Nothing?" in page.words and "empty has no runs" in page.words


def test_several_sweeps_share_a_page(tmp_path, fates):
    for name in ("a", "b"):
        write_made(one_run(), tmp_path / name, question=f"Is it {name}?")
    page = see(page_of(tmp_path))
    assert "Is it a?" in page.words and "Is it b?" in page.words
    assert [run["cell"] for run in page.json("data")["runs"]] == [0, 1]
    assert len({a["id"] for t, a in page.tags if t == "article"}) == 2


@pytest.fixture(scope="module")
def evil(tmp_path_factory) -> Path:
    sweep = tmp_path_factory.mktemp("evil") / "<script>alert(3)"
    folder = write_run(sweep, "a", config(), status="failed", error=EVIL)
    write_run(sweep, "b", config(1, **{"data.path": EVIL}))
    write_points(sweep, [("a", 0, {"model.depth": 4}), ("b", 1, {"model.depth": 4})], question=EVIL)
    env = json.loads((folder / "env.json").read_text())
    (folder / "env.json").write_text(json.dumps(env | {"device_name": EVIL}))
    claim = {"id": "one", "says": EVIL, "source": EVIL, "expect": {"verdict": "learned"}}
    (sweep / "sweep.yaml").write_text(json.dumps({"name": EVIL, "claims": [claim]}))
    return sweep


def test_user_text_is_shown_letter_by_letter_wherever_it_stands(evil):
    page = see(page_of(evil))
    harmless = [a for t, a in page.tags if t == "script"]
    assert len(harmless) == 4 and page.count("img") == 0
    assert not any(
        "alert(" in "".join(code) for name, code in page.inside.items() if name == "script"
    )
    for where in ("Question", "one", "The process failed"):
        assert where in page.words
    assert page.words.count(EVIL) >= 5  # question, claim, source, error, environment, sweep.yaml
    assert "lnexp: <script>alert(3)" in page.words


def test_nothing_on_the_page_is_fetched(seen):
    for tag, attributes in seen.tags:
        assert not {"srcset", "action", "background", "poster", "data"} & set(attributes)
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#")[:1] == "#" or attributes[name].startswith("data:"), tag
    style = "".join(seen.inside["style"]) + "".join(a.get("style", "") for _, a in seen.tags)
    assert "url(" not in style and "@import" not in style
    (policy,) = (a["content"] for t, a in seen.tags if a.get("http-equiv"))
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy


def test_every_control_has_a_name_and_every_head_can_be_sorted(seen):
    heads = [a for t, a in seen.tags if t == "th" and "aria-sort" in a]
    assert len(heads) > 8 and {a["aria-sort"] for a in heads} == {"none"}
    assert seen.count("input", type="range") == 1 and seen.count("output", for_="step") == 1


def test_an_ordinary_page_asks_for_nothing_and_a_watched_one_for_itself(fates):
    assert "watch(" not in page_of(fates).split("function watch(stamp)")[1]
    assert 'watch("abc")' in page_of(fates, stamp="abc")


def test_a_hundred_runs_of_a_hundred_blocks_stay_under_five_megabytes(tmp_path):
    """The largest that such a page can be: each run has the whole map that it may have."""
    sweep = write_noise(tmp_path / "large", 100, 60, [0])
    write_points(sweep, [(f"noise-d100-s{i}", i, {"model.depth": 4}) for i in range(100)])
    known = {}

    def reader(folder: Path, cells: int):
        return known.setdefault(cells, read_section(sweep / "runs" / "noise-d100-s0", cells))

    page = page_of(sweep, reader=reader)
    assert len(page.encode()) < 5e6
    runs = see(page).json("data")["runs"]
    assert len(runs) == 100 and decoded(runs[99]["gradients"]).shape == (100, 45)
    assert "45 columns for 60 readings" in page


def test_what_was_thinned_is_said_and_what_was_not(tmp_path, seen):
    assert "Every reading is drawn" in seen.words
    page = see(page_of(write_noise(tmp_path / "long", 2, 400, [0])))
    assert "of 400 steps drawn" in page.words and "240 columns for 400 readings" in page.words
    assert "made from all readings" in page.words


def test_each_formula_stands_in_the_page_of_metrics():
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    plain = " ".join(re.sub(r"[*`]", "", text).split())
    for term, words in FORMULAS.items():
        assert words in plain, term
    for term, words in (VERDICT_RULES | CAUSE_RULES).items():
        assert f"| {term} | {words}" in plain, term


# The command.


def test_the_file_is_written_beside_the_results_by_rename(fates):
    said = lnexp("report", fates)
    assert (said.code, said.out.strip()) == (0, str(fates / "report.html"))
    assert not list(fates.glob(".report*")) and (fates / "report.html").read_text() == page_now(
        fates
    )


def page_now(sweep: Path) -> str:
    """What a second call writes: the same, as long as nothing changed."""
    assert lnexp("report", sweep).code == 0
    return (sweep / "report.html").read_text()


def test_html_names_another_file_and_a_folder_that_is_missing_is_told(fates, tmp_path):
    assert lnexp("report", fates, "--html", tmp_path / "mine.html").code == 0
    assert (tmp_path / "mine.html").read_text().startswith("<!doctype html>")
    said = lnexp("report", fates, "--html", tmp_path / "no" / "mine.html")
    assert said.code == 2 and "cannot be written: no such file" in said.err
    said = lnexp("report", fates, "--html", tmp_path)
    assert said.code == 2 and "cannot be written" in said.err
    assert lnexp("report", tmp_path / "nowhere").code == 2


def test_every_verdict_and_cause_has_its_rule_on_the_page():
    assert list(VERDICT_RULES) == list(VERDICTS)
    assert set(MEANING) == set(CAUSE_RULES)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--watch", "--html", "a.html"), "write one of them"),
        (("--port", "8000"), "only with --watch"),
    ],
)
def test_options_that_do_not_go_together_are_refused(fates, words, why):
    said = lnexp("report", fates, *words)
    assert said.code == 2 and why in said.err and len(said.err.splitlines()) == 1


def ask(address: str, method: str = "GET", **headers: str) -> tuple[str, str]:
    request = urllib.request.Request(address, method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers["ETag"], answer.read().decode()


def test_a_watched_page_follows_the_results_and_ends_quietly(tmp_path):
    sweep = write_made(one_run(steps=3), tmp_path / "live")
    run = sweep / "runs" / "run0"
    (run / "status.json").unlink()
    with (run / "steps.csv").open("a") as file:
        file.write("3,24,0.3")  # half a line, as a run that is going on may leave
    code = "from lnexp.cli import main; main()"
    words = [sys.executable, "-c", code, "report", str(sweep), "--watch"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as shown:
        try:
            assert shown.stdout is not None and shown.stderr is not None
            address = shown.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
            first, page = ask(address)
            assert "1 run: 1 interrupted" in see(page).words and ask(address, "HEAD") == (first, "")
            for bad in ({"Host": "evil.example:80"},):
                with pytest.raises(urllib.error.HTTPError):
                    ask(address, **bad)
            (run / "status.json").write_text('{"status": "failed", "error": "made up"}')
            for _ in range(200):
                if ask(address, "HEAD")[0] != first:
                    break
                time.sleep(0.1)
            assert "made up" in see(ask(address)[1]).words
        finally:
            shown.send_signal(signal.SIGINT)
            rest = shown.stderr.read() if shown.stderr else ""
    assert (shown.returncode, rest) == (130, "")
    assert not (sweep / "report.html").exists()


def test_a_port_that_is_taken_is_told_in_one_line(fates):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = lnexp("report", fates, "--watch", "--port", port)
    assert said.code == 2 and f"--port {port}: address already in use" in said.err
