"""A run folder that somebody's own loop left: what is not known of it stays unknown."""

import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import yaml

from lnexp.explain.explain import explain
from lnexp.explain.show import as_json, in_words
from lnexp.figures.drawing import SweepFrames
from lnexp.figures.plots import LACKS, PICTURES
from lnexp.results.load import load
from lnexp.rows import LayerRow, StepRow
from lnexp.terminal.summary import as_tex, tables
from tests.results.folders import write_run

CONFIG = {
    "watched": {"model": "GPT2LMHeadModel", "optimizers": ["AdamW"]},
    "model": {"depth": 6},
    "train": {"optimizer": "adamw", "lr": 1e-3, "loss_scale": "none"},
    "measure": {"level": "light", "every": 1},
}


def watched(tmp_path, loss, baseline=None, **status):
    """A folder whose loss runs so, beside a baseline or without one."""
    rows = [StepRow(i, None, 0.1 * i, 1e-3, float(x), baseline) for i, x in enumerate(loss)]
    folder = write_run(tmp_path, "mine", steps=rows, **status)
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    env = {"watched": True, "tensors": 10, "parameters": 1000, "baseline": baseline}
    (folder / "env.json").write_text(json.dumps(env))
    return folder


def verdict(folder) -> tuple[str, str]:
    (row,) = load(folder).runs.to_dict("records")
    return row["verdict"], row["evidence"]


FALL = np.concatenate([np.linspace(5, 3, 40), np.full(60, 3.0)])
FLAT = np.full(100, 5.0) + 0.001 * np.sin(np.arange(100))


@pytest.mark.parametrize(
    ("loss", "name", "share"),
    [(FALL, "learned", "0.6"), (FLAT, "plateau", "1"), (FLAT * 0.96, "plateau", "1")],
)
def test_without_a_baseline_learned_is_below_095_of_the_first_loss_and_says_so(
    loss, name, share, tmp_path
):
    found, evidence = verdict(watched(tmp_path, loss))
    assert found == name
    assert f"no baseline: end loss {share} of the first, learned below 0.95" in evidence


def test_without_a_baseline_there_is_no_gap(tmp_path):
    (row,) = load(watched(tmp_path, FALL)).runs.to_dict("records")
    assert row["end_gap"] is None or np.isnan(row["end_gap"])


@pytest.mark.parametrize(("end", "name"), [(2.8, "learned"), (2.9, "plateau")])
def test_with_a_baseline_learned_is_a_gap_of_a_twentieth_of_it(end, name, tmp_path):
    loss = np.concatenate([np.linspace(5, end, 40), np.full(60, end)])
    found, evidence = verdict(watched(tmp_path, loss, baseline=3.0))
    assert found == name and "no baseline" not in evidence


def test_a_nan_is_nonfinite_and_a_rise_has_diverged(tmp_path):
    loss = np.where(np.arange(100) == 50, np.nan, FALL)
    assert verdict(watched(tmp_path, loss, first_bad_step=50))[0] == "nonfinite"
    assert verdict(watched(tmp_path, np.linspace(5, 9, 100)))[0] == "diverged"
    assert verdict(watched(tmp_path, np.full(100, np.nan), first_bad_step=0))[0] == "nonfinite"


def test_settings_and_seeds_that_nobody_knows_are_left_out(tmp_path):
    folder = watched(tmp_path, FALL, baseline=3.1)
    (row,) = load(folder).runs.to_dict("records")
    assert row["model.depth"] == 6 and row["train.lr"] == 1e-3
    assert not any(row[key] for key in ("model.placement", "model.norm", "model.init"))
    words = as_json(explain(folder))
    assert json.loads(words)["settings"].keys() == {
        "model.depth", "train.optimizer", "train.lr", "train.loss_scale",
        "measure.level", "measure.every",
    }  # fmt: skip
    assert "seed" not in json.loads(words)["diagnosis"]


@pytest.mark.parametrize("baseline", [None, 3.0])
@pytest.mark.parametrize("loss", [FALL, FLAT, FALL * np.nan, np.linspace(5, 9, 100), FALL[:5], []])
def test_every_reader_copes_with_it(loss, baseline, tmp_path):
    folder = watched(tmp_path, loss, baseline)
    assert in_words(explain(folder)).renderables
    assert tables(load(folder)).renderables


def test_words_speak_of_the_baseline_not_of_letters(tmp_path):
    said = as_json(explain(watched(tmp_path, FALL, baseline=3.5)))
    assert "0.5 nats below the baseline" in said and "letter" not in said


@pytest.mark.parametrize(
    ("baseline", "words"),
    [
        (3.5, "gap: loss minus the baseline that was given;"),
        (None, "gap: none, since no baseline was given;"),
    ],
)
def test_the_tables_say_what_a_gap_is_measured_from(baseline, words, tmp_path):
    shown = as_tex(load(watched(tmp_path, FALL, baseline)))
    assert words in shown and "letter" not in shown
    own = as_tex(load(write_run(tmp_path, "own")))
    assert "gap: loss minus that of guessing by letter frequency;" in own


def test_level_full_of_a_watched_loop_has_no_picture_of_matrices_or_sublayers(tmp_path):
    results = load(watched(tmp_path, FALL))
    rows = [LayerRow(0, layer, "mlp", act_rms=1.0, grad_norm=1.0) for layer in range(3)]
    layers = pd.DataFrame(map(asdict, rows)).assign(run="mine", sweep="")
    sweep = SweepFrames(results.runs, results.steps(), layers, [], "mine")
    assert not LACKS["stream_by_layer"](sweep)
    for kind in ("matrix_by_layer", "branch_by_layer"):
        assert "lnexp's own models" in LACKS[kind](sweep)
        assert PICTURES[kind](sweep)
