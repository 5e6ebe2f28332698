"""B12: one NaN among logged steps. B13: figures without a screen, many runs, failing plots."""

import gc
import hashlib
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from lnexp.commands import read as command
from lnexp.figures import plots
from lnexp.figures.canvas import house_style
from lnexp.figures.drawing import SweepFrames
from lnexp.figures.plots import PICTURES, plot_sweep
from lnexp.results.load import load
from tests.cases.trained import SIZE, config, told
from tests.figures import plot_frames
from tests.results.folders import step_rows, write_points, write_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bad_step(tmp_path):
    """30 steps read every 10, the loss of step 14 alone NaN, in a sweep of one run."""
    write_points(tmp_path / "s", [("a", 0, {"model.depth": SIZE["depth"]})])

    def fault(state):
        state.model.head.register_forward_hook(
            lambda module, given, out: out * math.nan if state.steps_done == 14 else None
        )

    run = config(measure={"every": 10}, steps=30, on_nonfinite="continue")
    return told(tmp_path / "s" / "runs" / "a", run, fault)


def test_a_nan_between_two_readings_is_a_row_an_event_and_a_mark_never_averaged_away(bad_step):
    loss = bad_step.numbers("loss")
    assert len(loss) == 30 and [i for i, v in enumerate(loss) if not math.isfinite(v)] == [14]
    read = [i for i, v in enumerate(bad_step.numbers("weight_norm")) if not math.isnan(v)]
    assert set(read) - {14} <= {0, 10, 20, 29}  # thinned, the loss never
    assert {e["step"] for e in bad_step.table("events") if e["kind"] == "nan"} == {"14"}
    assert bad_step.row["verdict"] == "nonfinite" and bad_step.row["first_bad_step"] == 14
    results = load(bad_step.folder.parents[1])
    with house_style():
        figure = PICTURES["loss"](
            SweepFrames(results.runs, results.steps(), results.layers(), [], name="s")
        )
    labels = [" ".join(words.split()) for words in figure.axes[0].get_legend_handles_labels()[1]]
    assert any("NaN at step 14 (1 run)" in words for words in labels)
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "X"]
    assert [list(mark.get_xdata()) for mark in marks if len(mark.get_xdata())] == [[13]]
    curve = max(figure.axes[0].lines, key=lambda line: len(line.get_xdata()))
    assert math.isnan(curve.get_ydata()[14]) and math.isfinite(curve.get_ydata()[15])


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent.name != "plots"
    }


def test_plots_that_fail_cost_no_result(tmp_path, monkeypatch, capsys):
    write_points(tmp_path / "s", [("a", 0, {"model.depth": 1})])
    write_run(tmp_path / "s", "a", None, step_rows([4.0, 3.0], [3.2, 3.2]))
    load(tmp_path / "s")  # makes runs.csv
    before = contents(tmp_path / "s")

    def fails(*args):
        raise MemoryError("no room")

    for kind in PICTURES:
        monkeypatch.setitem(plots.PICTURES, kind, fails)
    assert command.plot(tmp_path / "s", None, None, "png", None) == 1
    assert contents(tmp_path / "s") == before
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("this plot failed, the others go on") >= 5
    monkeypatch.undo()
    assert command.plot(tmp_path / "s", None, None, "png", None) == 0


def test_no_figure_of_thirty_runs_outlives_its_file(tmp_path):
    frames = plot_frames.thirty().frames()
    for _ in range(3):
        plot_sweep(*frames, tmp_path, name="s", formats=["png"], kinds=["loss", "lr", "end_gap"])
    gc.collect()
    alive = [thing for thing in gc.get_objects() if type(thing) is Figure and thing.axes]
    assert alive == []


def test_plots_are_drawn_where_there_is_no_screen_whatever_backend_is_wished(tmp_path):
    write_points(tmp_path / "s", [("a", 0, {"model.depth": 1})])
    write_run(tmp_path / "s", "a", None, step_rows([4.0, 3.0], [3.2, 3.2]))
    code = "import sys; from lnexp.cli import main; sys.argv[0] = 'lnexp'; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "plot", str(tmp_path / "s"), "--kind", "loss,verdicts"],
        env=os.environ | {"DISPLAY": "nowhere:1", "MPLBACKEND": "TkAgg", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list((tmp_path / "s" / "plots").iterdir())) == 4  # png and svg
