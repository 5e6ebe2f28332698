"""lnexp.load and the plots on one's own axes: the page's examples run as they are printed."""

import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest

import lnexp
from lnexp.config.schema import Model, RunConfig
from lnexp.rows import EventRow, LayerRow, StepRow, header
from tests.results.folders import curve, step_rows, write_points, write_run

PAGE = Path(__file__).parents[2] / "docs" / "notebook.md"


@pytest.fixture
def results(tmp_path):
    sweep, points = tmp_path / "results" / "quickstart", []
    for depth in (2, 4):
        for placement in ("pre", "post"):
            for seed in (0, 1):
                run = f"{placement}{depth}s{seed}"
                setting = {"model.depth": depth, "model.placement": placement}
                points.append((run, seed, setting | {"model.residual": True}))
                loss, unigram = curve(np.linspace(0.5, -0.5, 30), seed)
                parts = [(layer, part) for layer in range(depth) for part in ("attn", "mlp")]
                layers = [LayerRow(s, *at, 0.1, 1.0, 0.01, 0.0) for s in range(30) for at in parts]
                config = RunConfig(model=Model(depth=depth, placement=placement))
                events = [EventRow(3, "forward", "spike")]
                write_run(sweep, run, config, step_rows(loss, unigram), layers, events)
    write_points(sweep, points, axes=("model.depth", "model.placement", "model.residual"))
    return tmp_path


def test_the_four_tables_are_tidy_and_read_when_asked_for(results):
    data = lnexp.load(results / "results" / "quickstart")
    assert len(data.runs) == 8 and set(data.runs["verdict"]) == {"learned"}
    assert list(data.steps.columns) == ["run", "sweep", *header(StepRow)]
    assert list(data.layers.columns) == ["run", "sweep", *header(LayerRow)]
    assert list(data.events.columns) == ["run", "sweep", *header(EventRow)]
    assert (len(data.steps), len(data.layers), len(data.events)) == (240, 30 * 48, 8)
    assert data.steps is data.steps  # read once
    assert data.notes == []
    (results / "results/quickstart/runs/pre2s0/steps.csv").write_text("a table of another kind\n")
    fresh = lnexp.load(results / "results")
    assert len(fresh.steps) == 210 and "pre2s0" in fresh.notes[0]


def test_importing_lnexp_loads_neither_torch_nor_pandas():
    code = "import sys, lnexp; print(lnexp.load.__name__, *sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("load ")
    assert not {"torch", "pandas", "matplotlib", "numpy"} & set(said.stdout.split())


def test_the_examples_of_the_page_run_as_printed(results, monkeypatch, capsys):
    matplotlib.use("Agg")
    monkeypatch.chdir(results)
    place: dict = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S):
        exec(compile(code, str(PAGE), "exec"), place)
    pictures = {"loss.png", "deep.png", "phase.png", "verdicts.png"}
    assert pictures == {path.name for path in results.glob("*.png")}
    assert "largest stable lr at least 0.001" in capsys.readouterr().out
    assert "matplotlib.pyplot" in sys.modules and not sys.modules["matplotlib.pyplot"].get_fignums()


def test_frames_for_a_notebook_agree_with_pandas(results):
    from lnexp.figures.notebook import curves, points, profile

    data = lnexp.load(results / "results")
    found = curves(data.runs, data.steps, "loss", by="model.depth").set_index(["series", "step"])
    deep = data.runs.loc[data.runs["model.depth"] == 4, "run"]
    rows = data.steps[(data.steps["step"] == 7) & data.steps["run"].isin(deep)]["loss"]
    got = found.loc[("depth 4", 7)]
    assert (got["median"], got["n"], got["m"]) == (np.median(rows), 4, 4)
    ends = points(data.runs, "end_gap", "model.depth").set_index("run")
    assert ends["value"].to_dict() == pytest.approx(
        dict(zip(data.runs["run"], data.runs["end_gap"], strict=True))
    )
    by_layer = profile(data.layers[data.layers["run"] == "pre2s0"], [0, 12])
    assert sorted(set(by_layer["when"])) == [0, 12]
    assert by_layer["median"].to_numpy(dtype=float) == pytest.approx(np.hypot(0.1, 0.1))
    assert isinstance(by_layer, pd.DataFrame)
