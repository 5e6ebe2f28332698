import json
import subprocess
import sys
from io import StringIO
from math import inf, nan

import numpy as np
import pytest
from rich.console import Console

from lnexp.commands import read as command
from lnexp.config.schema import Model, RunConfig, Train
from lnexp.explain.explain import explain
from lnexp.explain.show import as_json, horizon, in_words
from lnexp.files import plain
from tests.origin.autopsies import autopsy, birth, write_autopsy
from tests.results.folders import curve, step_rows, write_points, write_run

CONFIG = RunConfig(
    model=Model(depth=6, placement="post", init="xavier", residual=False),
    train=Train(lr=8e-4, warmup=20, steps=100),
)


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


@pytest.fixture
def run(tmp_path):
    loss, unigram = curve(np.full(8, 0.5))
    loss[7] = nan
    norms = [1.0, 1.0, 1.0, 1.0, 1.0, 50.0, 60.0, inf]
    folder = write_run(
        tmp_path / "demo", "bad", CONFIG, step_rows(loss, unigram, grad_norm=norms),
        first_bad_step=7,
    )  # fmt: skip
    write_autopsy(folder, autopsy(birth(kind="nan", module="[bold]x"), loss="nan"))
    return folder


def printed(folder, width=100):
    console = Console(width=width, file=StringIO())
    console.print(in_words(explain(folder)))
    return console.file.getvalue()


def test_the_words_stand_in_sections_in_the_order_a_reader_asks(run):
    text = printed(run)
    titles = [
        "Evidence", "Where the first bad value was born", "What left its usual range, in order",
        "Worth trying", "Not known",
    ]  # fmt: skip
    places = [text.index(f"\n{title}\n") for title in titles]
    assert places == sorted(places)
    assert text.startswith("NaN was born in the forward pass of step 7")
    assert "  step 5: gradient norm rose to 50, 50 times its usual 1" in text


def test_names_are_never_read_as_markup(run):
    assert "[bold]x" in printed(run)


def test_the_words_carry_the_settings_they_hold_for(run):
    assert horizon(explain(run).case) == (
        "bad: nonfinite, placement post, norm layernorm, depth 6, width 64, init xavier, "
        "optimizer adamw, lr 0.0008, warmup 20, precision fp32, without residual, "
        "8 of 100 steps, seeds 0 (init) and 0 (data)"
    )


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_word_is_there_at_any_width(run, width):
    assert set(printed(run, width).split()) >= {"Evidence", "Worth", "trying"}
    assert max(map(len, printed(run, width).splitlines())) <= width


def test_suggestions_of_the_same_figures_share_a_line(run):
    assert "train.lr: 0.0003 or train.warmup: 100  (the gradients grew to 50" in printed(run, 200)


def test_the_json_is_strict_and_holds_what_the_words_say(run):
    explanation = explain(run)
    value = json.loads(as_json(explanation), parse_constant=refuse)
    assert value["diagnosis"] == explanation.diagnosis
    assert (value["verdict"], value["status"], value["steps"]) == ("nonfinite", "finished", 8)
    assert value["numbers"]["end_loss"] == "nan"
    assert value["numbers"]["grad_ratio_end"] is None
    assert value["settings"]["train.clip"] == "inf"
    assert value["autopsy"]["origin"]["kind"] == "nan"
    assert value["autopsy"]["loss"] == "nan"
    assert list(value["autopsy"]) == [
        "step", "reproduced", "nature", "origin", "propagated", "loss", "grad_norm", "optimizer",
        "shadow",
    ]  # fmt: skip
    (row,) = value["chain"]
    assert (row["step"], row["series"], row["value"], row["usual"]) == (5, "grad_norm", 50, 1)
    assert row["layer"] is None and row["words"].startswith("gradient norm rose")
    assert {"key", "value", "because"} == set(value["suggestions"][0])


def test_a_number_that_is_not_finite_is_a_word():
    assert plain({"a": [nan, inf, -inf, np.float64(2), np.int64(3), None, "x"]}) == {
        "a": ["nan", "inf", "-inf", 2.0, 3, None, "x"]
    }


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_run_that_left_nothing_but_its_config_is_explained(tmp_path, status):
    folder = write_run(tmp_path / "demo", "none", CONFIG, status=status, error="OSError: full")
    for name in ("env.json", "steps.csv"):
        (folder / name).unlink()
    value = json.loads(as_json(explain(folder)), parse_constant=refuse)
    assert value["status"] == status and value["verdict"] == ""
    assert "env.json" in value["notes"][0]
    assert "Notes" in printed(folder)


def test_a_pending_point_has_words_and_json(tmp_path):
    write_points(tmp_path / "demo", [("later", 2, {"model.depth": 8})])
    folder = tmp_path / "demo" / "runs" / "later"
    assert "later: pending, depth 8, 0 steps, seeds 2 (init) and 2 (data)" in printed(folder)
    assert json.loads(as_json(explain(folder)))["settings"] == {"model.depth": 8}


def test_the_command_prints_words_or_json(run, capsys):
    command.explain(run, json=False)
    assert capsys.readouterr().out.startswith("NaN was born")
    command.explain(run, json=True)
    assert json.loads(capsys.readouterr().out)["run"] == "bad"


def test_explaining_never_loads_torch_or_matplotlib():
    code = "import sys, lnexp.commands.read, lnexp.explain.show; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "matplotlib"} & set(done.stdout.split())
