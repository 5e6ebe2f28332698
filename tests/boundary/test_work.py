"""lnexp boundary end to end on runs of a fraction of a second."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from lnexp.boundary.reading import ramp_edge
from lnexp.runs import local
from tests.cases.conftest import NoPool
from tests.cli import Said, lnexp
from tests.runs.small import rows, write_config

TINY = """
data: {source: markov, length: 2000}
model: {depth: 2, width: 8, heads: 1, context: 8, init: xavier}
train: {steps: 20, batch_size: 16}
sweep: {model.placement: [none, post]}
seeds: [0, 1, 2]
"""
SEARCH = ("--knob", "train.lr", "--low", "1e-2", "--high", "1e4", "--points", "4",
          "--resolution", "2")  # fmt: skip


@pytest.fixture
def search(tmp_path, monkeypatch):
    """`lnexp boundary`, trained in this process."""
    monkeypatch.setattr(local, "ProcessPool", NoPool)
    write_config(tmp_path, TINY)

    def search(*words: object) -> Said:
        return lnexp("boundary", "small.yaml", *SEARCH, *words, cwd=tmp_path)

    return search


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> tuple[Path, Said]:
    """What one search left and said; not to be changed."""
    folder = tmp_path_factory.mktemp("first")
    write_config(folder, TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "ProcessPool", NoPool)
        said = lnexp("boundary", "small.yaml", *SEARCH, cwd=folder)
    assert said.code == 0, said.err
    return folder / "results", said


@pytest.fixture
def searched(first, tmp_path) -> Path:
    """A copy of it, where `search` goes on."""
    return shutil.copytree(first[0], tmp_path / "results")


def table(folder) -> list[dict[str, str]]:
    path = folder / "small-boundary" / "lab" / "boundary.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_cell_has_its_bracket_and_its_cost_is_said(first):
    results, said = first
    assert "2 cells, scan of train.lr at 0.01, 1, 100, 10000; at most 3 seeds a value" in said.err
    found = table(results)
    assert [row["cell"] for row in found] == ["model.placement=none", "model.placement=post"]
    none = found[0]
    assert none["stable"] == "below" and float(none["beyond"]) <= 2.001 * float(none["edge"])
    assert "a full grid" in said.out
    stable, unstable = (
        [int(n) for n in none[f"{where}_unstable"].split(" of ")] for where in ("edge", "beyond")
    )
    assert 2 * stable[0] <= stable[1] and 2 * unstable[0] > unstable[1]


def test_a_second_call_trains_nothing_and_one_of_finer_resolution_only_what_is_new(
    search, searched, monkeypatch
):
    before, found = rows(searched, "small-boundary"), table(searched)
    train = local.train_run
    monkeypatch.setattr(local, "train_run", None)
    assert search().code == 0 and table(searched) == found
    monkeypatch.setattr(local, "train_run", train)
    assert search("--resolution", "1.2").code == 0
    after = rows(searched, "small-boundary")
    assert len(after) > len(before) and all(after[name] == before[name] for name in before)
    assert float(table(searched)[0]["edge"]) >= float(found[0]["edge"])


def test_interrupted_after_any_round_it_goes_on_to_the_same_answer(
    search, first, tmp_path, monkeypatch
):
    train, calls = local.train_run, []

    def stops(*work):
        calls.append(work)
        if len(calls) in (5, 21, 30):
            raise KeyboardInterrupt
        return train(*work)

    monkeypatch.setattr(local, "train_run", stops)
    codes = [search().code for _ in range(4)]
    assert codes[:3] == [130] * 3 and codes[3] == 0
    assert rows(tmp_path / "results", "small-boundary") == rows(first[0], "small-boundary")
    calm, broken = table(first[0]), table(tmp_path / "results")
    for one in (*calm, *broken):
        one.pop("seconds")
    assert calm == broken


def test_its_sweep_lists_its_points_as_cases_and_no_round_leaves_a_copy(searched):
    folder = searched / "small-boundary"
    assert not list(folder.glob("sweep.*.yaml"))
    index = json.loads((folder / "points.json").read_text())
    assert index["axes"] == ["model.placement", "train.lr"]
    done = sorted(run["run"] for run in index["runs"])
    assert done == sorted(path.name for path in (folder / "runs").iterdir())
    again = lnexp("run", folder / "sweep.yaml", "--dry-run", "-o", searched)
    assert again.code == 0 and not set(again.out.split()) & set(done)
    shown = lnexp("show", folder)
    assert shown.code == 0 and "pending" not in shown.out


def test_another_knob_keeps_the_first_ones_rows_and_the_earlier_sweep(search, searched):
    words = ("--knob", "model.depth", "--low", "1", "--high", "3")
    assert search(*words, "--points", "2").code == 0
    assert {row["knob"] for row in table(searched)} == {"train.lr", "model.depth"}
    assert (searched / "small-boundary" / "sweep.1.yaml").exists()


def test_slow_runs_at_the_edge_are_extended_and_never_called_unstable(search, tmp_path):
    """At learning rates this small nothing is learned in 20 steps: too short to decide."""
    said = search("--low", "1e-6", "--high", "1e4", "--points", "2", "--resolution", "1e11")
    assert said.code == 0 and "may only be slow: extended" in said.err
    found = rows(tmp_path / "results", "small-boundary").items()
    assert max(len(t) - 1 for name, t in found if "steps.csv" in name) == 80  # four times 20
    (row, _) = table(tmp_path / "results")
    assert int(row["undecided"]) > 0 and row["edge_unstable"] in ("", "0 of 0", "0 of 1", "0 of 2")


@pytest.mark.parametrize(
    ("lr", "gap", "bad_step", "edge"),
    [
        (np.arange(1, 41), np.linspace(0, -1, 40), None, None),  # learning all along
        (np.arange(1, 41), np.r_[np.linspace(0, -1, 20), np.full(20, 3.0)], None, 24),
        (np.arange(1, 41), np.linspace(0, -1, 40), 30, 30),  # the step before the bad one
        (np.arange(1, 41), np.zeros(40), 0, 0),  # not even the first
    ],
)
def test_a_ramp_ends_where_the_loss_leaves_its_best_for_good(lr, gap, bad_step, edge):
    """A median of ten is above the best from its sixth bad value on: four steps late."""
    assert ramp_edge(lr, gap, bad_step) == edge


def test_a_ramp_is_one_run_a_seed_and_says_where_each_cell_broke(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "ProcessPool", NoPool)
    write_config(tmp_path, TINY)
    words = ("boundary", "small.yaml", "--knob", "train.lr", "--high", "1e3", "--ramp")
    said = lnexp(*words, "-s", "train.steps=60", cwd=tmp_path)
    assert said.code == 0, said.err
    with (tmp_path / "results/small-ramp/lab/ramp.csv").open(encoding="utf-8", newline="") as file:
        none, post = csv.DictReader(file)
    assert none["broke"] == none["runs"] == post["runs"] == "3"
    assert 0 < float(none["edge"]) < 1e3 and "3 of 3" in said.out
    again = lnexp(*words, "-s", "train.steps=60", "--low", "1", cwd=tmp_path)
    assert again.code == 2 and "without --low" in again.err
    lower = [w if w != "1e3" else "10" for w in words]
    assert lnexp(*lower, "-s", "train.steps=60", cwd=tmp_path).code == 0
    assert (tmp_path / "results/small-ramp/sweep.1.yaml").exists()  # the earlier range is kept


@pytest.mark.parametrize(
    "words, says",
    [
        (("--knob", "lr"), "did you mean train.lr?"),
        (("--knob", "train.batch_size"), "one of train.lr"),
        (("--low", "0"), "0 < low < high"),
        (("--low", "1e9"), "0 < low < high"),
        (("--points", "1"), "--points 1"),
        (("--resolution", "1"), "--resolution 1"),
        (("-s", "train.lr=[1e-3, 1e-2]"), "varies the knob already"),
        (("--knob", "model.depth", "--low", "1.5"), "whole numbers"),
    ],
)
def test_a_wrong_word_is_one_line_and_nothing_is_written(search, tmp_path, words, says):
    said = search(*words)
    assert said.code == 2 and says in said.err and "Traceback" not in said.err
    assert not (tmp_path / "results").exists()
