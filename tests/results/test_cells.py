import pandas as pd
import pytest

from lnexp.results.cells import cells, horizon
from lnexp.results.run_folder import COLUMNS
from lnexp.results.runs_csv import frame
from lnexp.results.statistics import wilson
from lnexp.rows import cell
from tests.results.folders import ENV


def runs_of(*rows):
    """Rows of runs.csv from the few columns that matter."""
    base = {"seed_init": "0", "seed_data": "0", "h1": "3.25", "status": "finished"}
    texts = []
    for row in rows:
        filled = base | {name: cell(value) for name, value in row.items()}
        texts.append([filled.get(name, "") for name in COLUMNS])
    return frame(texts)


def run(verdict, depth=24, end_gap=None, status="finished", cause="", steps=200):
    return {
        "model.depth": depth, "verdict": verdict, "status": status, "cause": cause,
        "end_gap": end_gap, "end_loss": None if end_gap is None else 3.25 + end_gap,
        "steps_done": steps,
    }  # fmt: skip


def test_a_cell_counts_verdicts_and_failures_with_a_wilson_interval():
    runs = runs_of(
        run("learned", 2, -0.6), run("stalled", 24, 0.01, cause="vanishing; rank_collapse"),
        run("learned", 2, -0.5), run("stalled", 24, 0.03, cause="vanishing"),
        run("nonfinite", 24, float("nan")), run("spiked", 24, -0.4),
    )  # fmt: skip
    table = cells(runs, ["model.depth"])
    assert table["model.depth"].tolist() == [2, 24]
    assert table["verdicts"].tolist() == [
        "2 learned", "1 nonfinite, 1 spiked, 2 stalled within 200 steps",
    ]  # fmt: skip
    assert table["causes"].tolist() == ["", "2 vanishing, 1 rank_collapse"]
    assert (table["failures"][1], table["decided"][1], table["p_failure"][1]) == (3, 4, 0.75)
    limits = (table["p_failure_low"][1], table["p_failure_high"][1])
    assert limits == pytest.approx(wilson(3, 4))
    assert table["h1"].tolist() == [ENV["h1"]] * 2


def test_a_nonfinite_run_is_counted_and_never_enters_a_median():
    table = cells(runs_of(run("learned", end_gap=-0.6), run("nonfinite", end_gap=0.9)), [])
    assert (table["end_gap"][0], table["end_gap_n"][0], table["runs"][0]) == (-0.6, 1, 2)
    assert (table["end_gap_min"][0], table["end_gap_max"][0]) == (-0.6, -0.6)


def test_runs_without_a_decision_are_counted_beside_p_failure_and_never_dropped():
    runs = runs_of(
        run("learned"), run("plateau"), run("too_short"), run("nothing_to_learn"),
        run("", status="failed"), run("", status="interrupted"), run("", status="running"),
        run("", status="pending", steps=None), run("diverged"), run("lost"),
    )  # fmt: skip
    table = cells(runs, ["model.depth"])
    assert (table["runs"][0], table["finished"][0]) == (10, 6)
    assert (table["failures"][0], table["decided"][0]) == (2, 3)
    assert table["undecided"][0] == (
        "1 nothing_to_learn, 1 too_short, 1 plateau, 1 failed, 1 interrupted, 1 running, 1 pending"
    )


def test_a_cell_without_decided_runs_has_no_p_failure():
    runs = runs_of(run("plateau", 2), run("learned", 24, -0.6))
    table = cells(runs, ["model.depth"])
    assert table["p_failure"].tolist() == [pd.NA, 0.0]
    assert table["end_gap"].tolist() == [pd.NA, -0.6]
    assert (table["p_failure_low"][0], table["p_failure_high"][0]) == (0.0, 1.0)


def test_the_horizon_is_that_of_the_steps_that_were_done():
    assert horizon("stalled", [200, 200]) == "stalled within 200 steps"
    assert horizon("stalled", [200, 400]) == "stalled within 200..400 steps"
    assert horizon("learned", [200]) == "learned"


def test_no_runs_are_no_cells():
    assert len(cells(runs_of(), ["model.depth"])) == 0
