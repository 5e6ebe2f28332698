"""Logs of other tools become run folders that the reading half serves."""

import csv
import json
from math import inf, isnan, nan
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from lnexp.exchange.logs import as_rows, read_log
from lnexp.figures.drawing import SweepFrames
from lnexp.figures.plots import PICTURES
from lnexp.results.load import load
from lnexp.results.verdicts import constant_baseline
from lnexp.terminal.summary import as_tex
from tests.cli import lnexp
from tests.exchange.logs import csv_log, loss_at, text_log, trainer_state


def rows_of(path: Path, **wishes: str):
    return as_rows(path, read_log(path), wishes)


def run_of(folder: Path, name: str):
    runs = load(folder / "results" / "imported").runs
    return runs[runs["run"] == name].iloc[0]


def test_a_text_log_gives_its_iterations_and_its_evaluations(tmp_path):
    found = rows_of(text_log(tmp_path / "a.log"))
    assert [row.step for row in found.rows] == list(range(0, 401, 10))
    assert [row.loss for row in found.rows] == [loss_at(s) for s in range(0, 401, 10)]
    evaluated = {row.step: row.val_loss for row in found.rows if row.val_loss is not None}
    assert evaluated == {s: round(loss_at(s) + 0.1, 4) for s in range(0, 401, 100)}
    assert found.unused == ["time", "mfu"]


def test_evaluations_alone_are_a_log_too(tmp_path):
    path = tmp_path / "a.log"
    path.write_text(
        "step 0: train loss 4.2, val loss 4.3\nstep 250: train loss 2.1, val loss nan\n"
    )
    first, last = rows_of(path).rows
    assert (first.loss, first.val_loss) == (4.2, 4.3)
    assert last.loss == 2.1 and last.val_loss is not None and isnan(last.val_loss)


@pytest.mark.parametrize(
    "line, step, loss, norm",
    [
        ("step 00012/00100 (1.20%) | loss: 2.5 | grad norm: 0.25 | dt: 12.5ms", 12, 2.5, 0.25),
        ("step   11/18865 | loss 11.009 (-1.2z)| norm 1.5 | 42.7% bf16 MFU", 11, 11.009, 1.5),
        ("step:7/100 train_loss:3.1 train_time:12ms", 7, 3.1, None),
        ("2024-01-02 10:11:12,345 INFO iter 5: loss inf, lr 1e-3", 5, inf, None),
    ],
)
def test_lines_of_other_scripts_are_read(tmp_path, line, step, loss, norm):
    path = tmp_path / "a.log"
    path.write_text(f"at step 3 the loss was 9\n{line}\n")
    (row,) = rows_of(path).rows
    assert (row.step, row.loss, row.grad_norm) == (step, loss, norm)


def test_a_trainer_state_joins_training_and_evaluation_of_a_step(tmp_path):
    found = rows_of(trainer_state(tmp_path / "trainer_state.json"))
    last = found.rows[-1]
    assert (last.step, last.loss, last.val_loss) == (500, loss_at(500), loss_at(500) + 0.1)
    assert last.lr == 0 and last.grad_norm == 1.5
    assert found.unused == ["epoch", "eval_runtime"]  # and train_loss, an average, is no loss
    assert any("closing row" in note for note in found.notes)


def test_nan_inf_and_what_was_not_measured_stay_apart(tmp_path):
    cells = ["0,1.5,0.1", "1,nan,0.1", "2,inf,", "3,-inf,0.1", "4,,0.1", "5,NaN,null"]
    found = rows_of(csv_log(tmp_path / "a.csv", cells))
    assert [repr(row.loss) for row in found.rows] == ["1.5", "nan", "inf", "-inf", "None", "nan"]
    assert [row.lr for row in found.rows] == [0.1, 0.1, None, 0.1, 0.1, None]
    assert any("1 step without a loss" in note for note in found.notes)
    lines = tmp_path / "a.jsonl"
    values = [1.5, nan, inf, -inf, None, "nan"]
    told = [json.dumps({"step": i, "loss": v}) for i, v in enumerate(values)]
    lines.write_text("\n".join(told) + "\n")
    assert [row.loss for row in rows_of(lines).rows] == pytest.approx(
        [1.5, nan, inf, -inf, None, nan], nan_ok=True
    )


def test_nested_json_lines_are_read_by_path(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"iter": 0, "train": {"loss": 4.0, "lr": 0.1}}\n{"iter": 1, "train": {"lo')
    found = rows_of(path)
    assert found.columns == {"step": "iter", "loss": "train/loss", "lr": "train/lr"}
    assert len(found.rows) == 1 and any("half-written" in note for note in found.notes)


def test_a_resumed_log_keeps_the_later_rows_and_says_so(tmp_path):
    cells = [f"{s},{4 - s / 10},1" for s in range(10)] + [f"{s},9,1" for s in (6, 7)]
    found = rows_of(csv_log(tmp_path / "a.csv", cells))
    assert [row.step for row in found.rows] == list(range(8))  # 8 and 9 are of the old branch
    assert [row.loss for row in found.rows][-3:] == [3.5, 9, 9]
    assert any("4 earlier rows left out" in note for note in found.notes)


def test_map_names_a_column_and_wins_over_what_would_be_chosen(tmp_path):
    path = csv_log(tmp_path / "a.csv", ["0,4.0,1.0,7"], "iter,loss,nll,g")
    found = rows_of(path, loss="nll", grad_norm="g")
    assert found.rows[0].loss == 1.0 and found.rows[0].grad_norm == 7
    assert found.unused == ["loss"]


BAD = {
    "no such file": (None, [], "no such file"),
    "no log": ("hello\nworld\n", [], "no training log"),
    "empty": ("", [], "no training log"),
    "not a number": ("step,loss\n0,4\n1,oops\n", [], "a.csv:3: loss is oops, not a number"),
    "no step": ("epoch,loss\n0,4\n", [], "which is the step? it has epoch, loss"),
    "no loss": ("step,acc\n0,4\n", [], "--map loss=NAME"),
    "a loss without a number": ("step,loss\n0,\n", [], "loss is empty in every row"),
    "half a step": ("step,loss\n0.5,4\n", [], "0.5, not a step"),
    "cells": ("step,loss\n0,4,5\n1,2\n", [], "a.csv:2: 3 cells under 2 names"),
    "a name twice": ("step,loss,loss\n0,4,5\n", [], "stands twice"),
    "no JSON": ('{"step": 0, "loss": 1}\n{oops\n{"step": 1}\n', [], "a.csv:2: not JSON"),
    "map to what": ("step,loss\n0,4\n", ["--map", "los=loss"], "no column los"),
    "map from what": ("step,loss\n0,4\n", ["--map", "loss=x"], "has no x; it has step, loss"),
    "map": ("step,loss\n0,4\n", ["--map", "loss"], "OURS=THEIRS"),
    "baseline": ("step,loss\n0,4\n", ["--baseline", "-1"], "nats"),
    "name": ("step,loss\n0,4\n", ["--name", "a/b"], "--name"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_log_that_cannot_be_used_is_one_line_and_leaves_nothing(tmp_path, case):
    text, words, what = BAD[case]
    if text is not None:
        (tmp_path / "a.csv").write_text(text)
    said = lnexp("import", "a.csv", *words, cwd=tmp_path)
    assert said.code == 2 and what in said.err and "Traceback" not in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert not (tmp_path / "results" / "imported" / "points.json").exists()


def test_without_a_baseline_learned_is_an_end_below_095_of_the_first_and_is_marked(tmp_path):
    text_log(tmp_path / "fell.log")
    flat = [f"{s},{4 + 0.01 * (s % 3)},1" for s in range(100)]
    csv_log(tmp_path / "flat.csv", flat)
    for name in ("fell.log", "flat.csv"):
        assert lnexp("import", name, cwd=tmp_path).code == 0
    fell, flat = run_of(tmp_path, "fell"), run_of(tmp_path, "flat")
    assert fell["verdict"] == "learned" and "no baseline" in fell["evidence"]
    assert flat["verdict"] == "plateau" and "no baseline" in flat["evidence"]
    assert fell.isna()["end_gap"] and fell.isna()["model.placement"]  # not known, not a default
    assert fell["steps_done"] == 401


def test_a_baseline_gives_the_gap(tmp_path):
    noise = 0.02 * np.random.default_rng(0).normal(size=100)
    csv_log(tmp_path / "a.csv", [f"{s},{4 + n},1" for s, n in enumerate(noise)])
    assert lnexp("import", "a.csv", "--baseline", 5, cwd=tmp_path).code == 0
    row = run_of(tmp_path, "a")
    assert row["verdict"] == "learned" and row["end_gap"] == pytest.approx(-1, abs=0.02)
    assert "no baseline" not in row["evidence"]


def test_the_level_is_what_is_given_or_the_first_finite_loss():
    loss = np.array([np.nan, 4.0, 3.0])
    assert constant_baseline(loss, None).level.tolist() == [4.0] * 3
    assert constant_baseline(loss, None).bar == pytest.approx(-0.05 * 4)
    assert constant_baseline(loss, 5.0).level.tolist() == [5.0] * 3


@pytest.mark.parametrize(
    "cells, verdict, words",
    [
        ([f"{s},{4 - s / 100 if s != 60 else 'nan'},1" for s in range(80)], "nonfinite", "60"),
        ([f"{10 * s},{4 + s / 10},1" for s in range(80)], "diverged", "above"),
        ([f"{10 * s},{2 if 30 < s < 60 else 4},1" for s in range(90)], "lost", "by step 360"),
        ([f"{10 * s},{2 + 2 / (s + 1) + (s == 70)},1" for s in range(90)], "spiked", "step 700"),
        ([f"{s},4,1" for s in range(12)], "too_short", "12"),
    ],
)
def test_verdicts_speak_of_the_steps_of_the_log(tmp_path, cells, verdict, words):
    csv_log(tmp_path / "a.csv", cells)
    assert lnexp("import", "a.csv", cwd=tmp_path).code == 0
    row = run_of(tmp_path, "a")
    assert row["verdict"] == verdict and words in row["evidence"]


def test_show_plot_and_explain_serve_imported_runs(tmp_path):
    text_log(tmp_path / "a.log")
    trainer_state(tmp_path / "out" / "checkpoint-500" / "trainer_state.json", bad=400)
    assert lnexp("import", "a.log", cwd=tmp_path).code == 0
    said = lnexp("import", "out/checkpoint-500/trainer_state.json", cwd=tmp_path)
    assert said.code == 0 and "nonfinite" in said.out and "step 400" in said.out
    table = lnexp("show", "results/imported", cwd=tmp_path)
    assert table.code == 0 and "a.log" in table.out and "1 nonfinite" in table.out
    words = lnexp("explain", "results/imported/runs/a", cwd=tmp_path).out
    assert "no baseline" in words and "imported from a.log" in words and "seeds" not in words
    assert lnexp("plot", "results/imported", "--format", "png", cwd=tmp_path).code == 0
    assert (tmp_path / "results" / "imported" / "plots" / "loss.png").exists()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ((), "gap: none, since no baseline was given;"),
        (("--baseline", "4"), "gap: loss minus the baseline that was given;"),
    ],
)
def test_no_reader_shows_a_seed_or_letter_frequencies_of_a_log(option, words, tmp_path):
    text_log(tmp_path / "a.log")
    assert lnexp("import", "a.log", *option, cwd=tmp_path).code == 0
    results = load(tmp_path / "results" / "imported")
    shown = as_tex(results)
    told = [line for line in shown.splitlines() if line.startswith("a.log")][-1].split(" & ")
    assert (told[0], told[1].strip()) == ("a.log", "") and words in shown and "letter" not in shown
    assert ("Baseline: 4.000 nats" in shown) == bool(option)
    cached = (tmp_path / "results" / "imported" / "runs.csv").read_text().splitlines()[1]
    assert cached.startswith("a,,,")
    sweep = SweepFrames(results.runs, results.steps(), results.layers(), ["data.path"], "imported")
    figures = [PICTURES[kind](sweep) for kind in ("loss", "end_gap", "verdicts")]
    texts = [text.get_text() for figure in figures for text in figure.findobj(Text)]
    assert texts and not any("letter" in text or "seed 0" in text for text in texts)
    page = tmp_path / "report.html"
    assert lnexp("report", "results/imported", "--html", str(page), cwd=tmp_path).code == 0
    assert words in page.read_text(encoding="utf-8")


def test_an_imported_run_is_never_overwritten_and_two_logs_are_never_one_cell(tmp_path):
    text_log(tmp_path / "a.log")
    assert lnexp("import", "a.log", cwd=tmp_path).code == 0
    said = lnexp("import", "a.log", cwd=tmp_path)
    assert said.code == 2 and "--force" in said.err
    assert lnexp("import", "a.log", "--force", cwd=tmp_path).code == 0
    assert lnexp("import", "a.log", "--name", "b", cwd=tmp_path).code == 0
    data = json.loads(lnexp("show", "results/imported", "--json", cwd=tmp_path).out)
    assert len(data["runs"]) == 2 and [cell["runs"] for cell in data["cells"]] == [1, 1]


def test_a_sweep_that_was_trained_under_that_name_is_left_alone(tmp_path):
    text_log(tmp_path / "a.log")
    sweep = tmp_path / "results" / "imported"
    sweep.mkdir(parents=True)
    (sweep / "points.json").write_text('{"axes": [], "runs": []}')
    said = lnexp("import", "a.log", cwd=tmp_path)
    assert said.code == 2 and "a sweep of its own" in said.err
    assert (sweep / "points.json").read_text() == '{"axes": [], "runs": []}'


def test_a_program_that_expects_step_loss_grad_norm_and_lr_can_read_steps_csv(tmp_path):
    trainer_state(tmp_path / "trainer_state.json")
    assert lnexp("import", "trainer_state.json", "--name", "t", cwd=tmp_path).code == 0
    path = tmp_path / "results" / "imported" / "runs" / "t" / "steps.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(10, 501, 10))
    assert all(float(row[name]) >= 0 for row in rows for name in ("loss", "grad_norm", "lr"))
