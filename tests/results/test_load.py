import os
import subprocess
import sys
from math import isnan, nan

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock

from lnexp.config.schema import Data, Model, RunConfig
from lnexp.messages import UserError
from lnexp.results import runs_csv
from lnexp.results.load import find_run, load
from lnexp.results.run_folder import COLUMNS
from lnexp.rows import LayerRow
from tests.results.folders import curve, step_rows, write_points, write_run

LEARNED = np.full(60, -0.5)


def config(depth):
    return RunConfig(model=Model(depth=depth), data=Data(source="file", path="007"))


@pytest.fixture
def sweep(tmp_path):
    """One learned run, one that went NaN, one pending; and one folder that is no point any more."""
    folder = tmp_path / "results" / "demo"
    points = [
        ("d2-s0", 0, {"model.depth": 2}),
        ("d8-s0", 0, {"model.depth": 8}),
        ("d8-s1", 1, {"model.depth": 8}),
    ]
    write_points(folder, points, question="Why [bold]?")
    layers = [LayerRow(0, 0, "attn", 0.3), LayerRow(0, 1, "attn", 0.6)]
    write_run(folder, "d2-s0", config(2), step_rows(*curve(LEARNED)), layers)
    loss, unigram = curve(LEARNED)
    loss[3] = nan
    write_run(folder, "d8-s0", config(8), step_rows(loss[:4], unigram[:4]), first_bad_step=3)
    write_run(folder, "old", config(3))
    return folder


def test_runs_come_in_grid_order_with_the_columns_of_runs_csv(sweep):
    results = load(sweep)
    assert list(results.runs) == ["sweep", "folder", *COLUMNS]
    assert results.runs["run"].tolist() == ["d2-s0", "d8-s0", "d8-s1"]
    assert results.runs["verdict"].tolist() == ["learned", "nonfinite", ""]
    assert results.runs["status"].tolist() == ["finished", "finished", "pending"]
    assert results.axes == {"demo": ["model.depth"]}
    assert [folder.name for folder in results.dropped] == ["old"]
    assert results.notes == []


def test_a_pending_run_has_its_axes_and_empty_numbers(sweep):
    pending = load(sweep).runs.iloc[2]
    assert (pending["model.depth"], pending["seed_init"]) == (8, 1)
    empty = ("end_loss", "first_bad_step", "steps_done", "model.width", "h1")
    assert all(pending[name] is pd.NA for name in empty)


def test_nan_and_not_measured_are_told_apart_in_runs_csv(sweep):
    for _ in range(2):  # computed, then read from runs.csv
        runs = load(sweep).runs
        assert isnan(runs["end_loss"][1]) and runs["end_loss"][1] is not pd.NA
        assert runs["grad_ratio_end"][1] is pd.NA
        assert runs["grad_ratio_end"][0] == 0.5


def test_runs_csv_gives_back_the_frame_it_was_made_from(sweep):
    first, second = load(sweep).runs, load(sweep).runs
    pd.testing.assert_frame_equal(first, second)
    assert second["train.betas"][0] == [0.9, 0.95]
    assert second["data.path"][0] == "007"
    assert second["train.clip"][0] == float("inf")
    assert bool(second["model.residual"][0]) is True


def test_a_finished_run_is_judged_once(sweep, monkeypatch):
    load(sweep)
    asked = []
    monkeypatch.setattr(runs_csv, "read_run", lambda *a: asked.append(a[0].name) or ({}, []))
    load(sweep)
    assert asked == ["d8-s1"]  # pending: looked at anew each time


def test_a_run_that_finishes_later_is_judged_then(sweep):
    load(sweep)
    write_run(sweep, "d8-s1", config(8), step_rows(*curve(LEARNED)))
    assert load(sweep).runs["verdict"].tolist() == ["learned", "nonfinite", "learned"]


def test_a_newer_status_makes_its_row_anew(sweep):
    load(sweep)
    loss, unigram = curve(np.zeros(60))
    write_run(sweep, "d2-s0", config(2), step_rows(loss, unigram))
    later = (sweep / "runs.csv").stat().st_mtime_ns + 10**9
    os.utime(sweep / "runs" / "d2-s0" / "status.json", ns=(later, later))
    assert load(sweep).runs["verdict"][0] == "plateau"
    assert "plateau" in (sweep / "runs.csv").read_text()


def test_newer_rules_make_all_verdicts_anew(sweep, monkeypatch):
    load(sweep)
    text = (sweep / "runs.csv").read_text()
    (sweep / "runs.csv").write_text(text.replace("learned", "spiked"))
    os.utime(sweep / "runs.csv", ns=(1, 1))
    assert load(sweep).runs["verdict"][0] == "learned"


def test_a_changed_grid_reorders_and_drops(sweep):
    load(sweep)
    write_points(sweep, [("d8-s0", 0, {"model.depth": 8}), ("d2-s0", 0, {"model.depth": 2})])
    results = load(sweep)
    assert results.runs["run"].tolist() == ["d8-s0", "d2-s0"]
    lines = (sweep / "runs.csv").read_text().splitlines()
    assert [text.split(",")[0] for text in lines[1:]] == ["d8-s0", "d2-s0"]


def test_a_broken_runs_csv_is_made_anew(sweep):
    load(sweep)
    whole = (sweep / "runs.csv").read_text()
    (sweep / "runs.csv").write_text(whole[: len(whole) // 2])
    assert load(sweep).runs["verdict"].tolist() == ["learned", "nonfinite", ""]
    assert (sweep / "runs.csv").read_text() == whole
    (sweep / "runs.csv").unlink()
    load(sweep)
    assert (sweep / "runs.csv").read_text() == whole


def test_a_folder_that_cannot_be_written_is_read_all_the_same(sweep, monkeypatch):
    def refuse(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr(runs_csv.os, "replace", refuse)
    assert load(sweep).runs["verdict"][0] == "learned"
    assert sorted(p.name for p in sweep.iterdir()) == ["points.json", "runs"]


def test_a_run_without_status_is_running_only_while_the_lock_is_held(sweep):
    write_run(sweep, "d8-s1", config(8), step_rows(*curve(LEARNED)), status=None)
    assert load(sweep).runs["status"][2] == "interrupted"
    assert not (sweep / ".lock").exists()
    with FileLock(sweep / ".lock"):
        running = load(sweep).runs.iloc[2]
    assert running["status"] == "running" and running["end_loss"] is pd.NA
    interrupted = load(sweep).runs.iloc[2]
    assert (interrupted["status"], interrupted["verdict"]) == ("interrupted", "")
    assert interrupted["end_gap"] == pytest.approx(-0.5, abs=0.05)
    with FileLock(sweep / ".lock", timeout=0):
        pass  # looking left it free


def test_steps_and_layers_are_tidy_with_only_the_asked_columns(sweep):
    steps = load(sweep).steps(["step", "loss"])
    assert list(steps) == ["run", "sweep", "step", "loss"]
    assert steps.groupby("run", observed=True).size().to_dict() == {"d2-s0": 60, "d8-s0": 4}
    bad = steps[(steps["run"] == "d8-s0") & (steps["step"] == 3)]["loss"].iloc[0]
    assert bad is not pd.NA and isnan(bad)
    layers = load(sweep).layers()
    assert layers["grad_norm"].tolist() == [0.3, 0.6]
    assert layers["act_rms"].isna().all()
    assert set(layers["sweep"]) == {"demo"}
    assert list(load(sweep).events())[:3] == ["run", "sweep", "step"]


def test_an_unknown_column_is_named(sweep):
    with pytest.raises(KeyError, match="steps.csv has no column los"):
        load(sweep).steps(["los"])


def test_many_sweeps_are_loaded_at_once(sweep):
    other = sweep.parent / "zweites"
    write_points(other, [("d2-s0", 0, {"model.depth": 2})])
    write_run(other, "d2-s0", config(2), step_rows(*curve(LEARNED)))
    results = load(sweep.parent)
    assert results.runs["sweep"].tolist() == ["demo"] * 3 + ["zweites"]
    assert len(results.steps(["loss"])) == 60 + 4 + 60
    (other / "points.json").write_text("{")
    results = load(sweep.parent)
    assert results.runs["sweep"].tolist() == ["demo"] * 3
    assert "not a list of points" in results.notes[0]


def test_one_run_folder_is_one_row(sweep):
    results = load(sweep / "runs" / "d8-s0")
    assert results.runs["run"].tolist() == ["d8-s0"]
    assert results.runs["verdict"].tolist() == ["nonfinite"]
    assert results.axes == {"demo": ["model.depth"]}
    assert len(results.steps()) == 4


def test_a_run_folder_that_is_in_no_sweep_is_loaded_by_its_config(sweep, tmp_path):
    dropped = load(sweep / "runs" / "old").runs
    assert dropped["model.depth"].tolist() == [3]
    alone = tmp_path / "copied"
    (sweep / "runs" / "d2-s0").rename(alone)
    results = load(alone)
    assert results.runs["verdict"].tolist() == ["learned"]
    assert len(results.steps()) == 60


def test_a_wrong_path_is_told_what_was_looked_for(sweep, tmp_path):
    with pytest.raises(UserError, match="nowhere: not found; expected results/, a sweep folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no results here.*the sweep folder is .*demo"):
        load(sweep / "runs")
    with pytest.raises(UserError, match="no results here"):
        load(sweep / "points.json")
    (sweep / "points.json").write_text("[]")
    with pytest.raises(UserError, match="not a list of points"):
        load(sweep)


def test_a_run_is_found_by_the_beginning_or_a_part_of_its_name(sweep):
    runs = sweep / "runs"
    assert find_run(runs / "d2-s0") == runs / "d2-s0"  # as it stands
    assert find_run(runs / "d8-s1") == runs / "d8-s1"  # pending: no folder yet
    assert find_run(sweep / "d8-s1") == runs / "d8-s1"
    assert find_run(sweep / "d2") == find_run(runs / "d2") == runs / "d2-s0"
    assert find_run(sweep / "s1") == runs / "d8-s1"
    assert find_run(sweep / "ol") == runs / "old"  # on disk, no point any more


def test_where_several_runs_or_none_fit_they_are_named(sweep):
    with pytest.raises(UserError) as caught:
        find_run(sweep / "d8")
    assert caught.value.problems[1:] == ("  d8-s0", "  d8-s1")
    with pytest.raises(UserError, match="no run of .*demo has d9 in its name"):
        find_run(sweep / "d9")
    write_points(sweep, [(f"d8-s{i}", i, {"model.depth": 8}) for i in range(9)])
    with pytest.raises(UserError) as caught:
        find_run(sweep / "d8")
    assert len(caught.value.problems) == 7 and caught.value.problems[-1] == "  and 4 more"


def test_a_sweep_named_without_its_folder_of_results_is_understood(sweep, monkeypatch):
    monkeypatch.chdir(sweep.parent.parent)
    for look in (load, find_run):
        with pytest.raises(UserError, match="demo: not found; did you mean results/demo[?]"):
            look("demo")
    assert str(find_run("nowhere")) == "nowhere"


def test_a_half_written_last_line_is_left_out_and_said(sweep):
    path = sweep / "runs" / "d2-s0" / "steps.csv"
    text = path.read_text()
    path.write_text(text + "60,1,")
    results = load(sweep)
    assert "half-written" in results.notes[0] and str(path) in results.notes[0]
    assert len(results.steps(["step"])) == 64
    assert len(results.notes) == 1


@pytest.mark.parametrize("name", ["config.yaml", "env.json", "steps.csv", "status.json"])
@pytest.mark.parametrize("damage", ["gone", "garbage"])
def test_a_broken_run_is_noted_each_time_and_takes_nothing_down(sweep, name, damage):
    path = sweep / "runs" / "d2-s0" / name
    path.unlink() if damage == "gone" else path.write_text("a: [b\n1,2\n")
    for _ in range(2):
        results = load(sweep)
        assert results.runs["verdict"].tolist()[:2] == ["", "nonfinite"]
        assert results.runs["model.depth"].tolist() == [2, 8, 8]
        said = name != "status.json" or damage == "garbage"
        assert [str(path) in note for note in results.notes] == [True] * said
        results.steps()


def test_an_older_config_gets_the_defaults_of_newer_keys(sweep):
    path = sweep / "runs" / "d2-s0" / "config.yaml"
    path.write_text("model: {depth: 2, later: 1}\ntrain: {lr: 0.01}\nseed: {init: 0, data: 0}\n")
    run = load(sweep).runs.iloc[0]
    assert (run["model.width"], run["train.lr"]) == (64, 0.01)


def test_an_empty_sweep_has_every_column(tmp_path):
    write_points(tmp_path / "empty", [])
    results = load(tmp_path / "empty")
    assert list(results.runs) == ["sweep", "folder", *COLUMNS] and len(results.runs) == 0
    assert len(results.layers(["step"])) == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("status.json", '{"status": "finished", "steps_done": "many"}'),
        ("status.json", '{"status": "eaten"}'),
        ("status.json", "[]"),
        ("env.json", '{"ln_v": 4, "h1": 3, "h2": 2, "floor": 2, "parameters": "x"}'),
        ("env.json", '{"ln_v": 4, "h1": "x", "h2": 2, "floor": 2}'),
        ("config.yaml", "model: {depth: x}\nseed: {init: 0, data: 0}"),
        ("steps.csv", "step,loss,los\n0,1,2\n"),
    ],
)
def test_files_that_say_nonsense_are_noted_and_never_guessed_at(sweep, name, text):
    path = sweep / "runs" / "d2-s0" / name
    path.write_text(text)
    results = load(sweep)
    assert results.runs["verdict"].tolist()[:2] == ["", "nonfinite"]
    assert str(sweep / "runs" / "d2-s0") in results.notes[0]


def test_the_reading_half_never_imports_torch():
    code = (
        "import sys, lnexp.results.load, lnexp.terminal.summary; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
