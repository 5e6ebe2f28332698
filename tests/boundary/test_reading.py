"""Unstable runs, the largest stable value of a knob, and learning-rate sensitivity."""

from math import inf, nan

import numpy as np
import pandas as pd
import pytest

from lnexp.boundary.reading import (
    Edge,
    by_value,
    in_words,
    largest_stable,
    largest_useful,
    sensitivity,
    unstable,
)
from lnexp.results.statistics import wilson
from lnexp.results.tables import nullable


def runs(*rows) -> pd.DataFrame:
    """lr, verdict, and if told: cause, end loss (None: not measured); first loss 4.5, ln V 4."""
    whole = [(*row, *("", 3.0)[len(row) - 2 :]) for row in rows]
    lr, verdict, cause, end = zip(*whole, strict=True)
    losses = np.array([nan if v is None else v for v in end])
    return pd.DataFrame(
        {
            "train.lr": nullable(np.array(lr), np.zeros(len(lr))),
            "verdict": pd.Series(verdict, dtype=str),
            "cause": pd.Series(cause, dtype=str),
            "end_loss": nullable(losses, np.array([v is None for v in end])),
            "first_loss": nullable(np.full(len(lr), 4.5), np.zeros(len(lr))),
            "ln_v": nullable(np.full(len(lr), 4.0), np.zeros(len(lr))),
        }
    )


@pytest.mark.parametrize(
    ("verdict", "cause", "expected"),
    [
        ("nonfinite", "", True),
        ("diverged", "", True),
        ("lost", "", True),
        ("stalled", "vanishing", True),
        ("stalled", "vanishing; too_slow", True),
        ("stalled", "frozen", pd.NA),
        ("stalled", "too_slow; warming_up", pd.NA),
        ("learned", "", False),
        ("spiked", "", False),
        ("plateau", "", pd.NA),
        ("too_short", "vanishing", pd.NA),
        ("nothing_to_learn", "", pd.NA),
        ("", "", pd.NA),
    ],
)
def test_a_merely_slow_run_is_never_unstable(verdict, cause, expected):
    found = unstable(runs((1e-3, verdict, cause)))[0]
    assert found is pd.NA if expected is pd.NA else bool(found) is expected


def test_shares_are_of_the_decided_runs_with_wilsons_interval():
    frame = runs(
        (0.1, "nonfinite"), (0.1, "learned"), (0.1, "too_short"), (0.01, "plateau"), (0.1, "lost")
    )
    found = by_value(frame)
    assert found["value"].tolist() == [0.01, 0.1] and found["runs"].tolist() == [1, 4]
    last = found.iloc[1]
    assert (last["unstable"], last["decided"], last["share"]) == (2, 3, 2 / 3)
    assert (last["low"], last["high"]) == wilson(2, 3)
    assert np.isnan(found["share"][0])


def naive(frame: pd.DataFrame) -> float | None:
    """The largest lr with a decided run such that no lr up to it has a majority unstable."""
    bad = unstable(frame)
    majority = {
        lr: 2 * sum(bad[frame["train.lr"] == lr].dropna())
        > len(bad[frame["train.lr"] == lr].dropna())
        for lr in set(frame["train.lr"])
    }
    decided = {lr for lr in majority if bad[frame["train.lr"] == lr].notna().any()}
    fine = [lr for lr in decided if not any(majority[x] for x in majority if x <= lr)]
    return max(fine, default=None)


def test_the_largest_stable_value_agrees_with_its_definition_on_random_grids():
    rng = np.random.default_rng(0)
    words = ["learned", "nonfinite", "diverged", "too_short"]
    for _ in range(200):
        frame = runs(*[(float(rng.integers(5)), str(rng.choice(words))) for _ in range(12)])
        assert largest_stable(frame).stable == naive(frame)


def test_half_unstable_is_still_stable_and_a_value_above_an_unstable_one_never_counts():
    half = runs((1.0, "learned"), (1.0, "nonfinite"), (2.0, "nonfinite"), (3.0, "learned"))
    assert largest_stable(half) == Edge(1.0, 2.0)
    assert in_words(half).startswith("largest stable lr 1 (2 is not)")


def test_no_edge_in_range_is_said():
    assert in_words(runs((1.0, "nonfinite"))).startswith(
        "no stable lr in range: unstable from 1 on"
    )
    assert in_words(runs((1.0, "too_short"))).startswith("no stable lr in range: no run is decided")
    stable = runs((1.0, "learned"), (2.0, "too_short"))
    assert in_words(stable).startswith("largest stable lr at least 1 (none above is unstable)")
    assert largest_stable(runs((1.0, "learned")).iloc[:0]) == Edge(None, None)


def test_sensitivity_counts_a_bad_loss_as_the_first_and_caps_what_diverged():
    frame = runs(
        (1e-3, "learned", "", 2.0),
        (1e-2, "learned", "", 2.5),
        (1e-1, "diverged", "", 99.0),  # counts as 4.5
        (1.0, "nonfinite", "", inf),  # counts as 4.5
        (10.0, "nonfinite", "", None),  # likewise: none was measured
    )
    assert sensitivity(frame) == pytest.approx(np.mean([0, 0.5, 2.5, 2.5, 2.5]))
    frame["first_loss"] = nullable(np.full(5, nan), np.zeros(5))  # then ln V does
    assert sensitivity(frame) == pytest.approx(np.mean([0, 0.5, 2, 2, 2]))
    assert sensitivity(frame.iloc[:1]) is None
    assert sensitivity(frame.iloc[3:]) is None  # nothing finite: nothing to compare


def test_useful_is_within_a_tenth_of_a_nat_of_the_best_and_never_a_loss_that_is_none():
    frame = runs(
        (1.0, "learned", "", 2.0), (2.0, "learned", "", 2.09), (3.0, "learned", "", 2.11),
        (4.0, "nonfinite", "", nan),
    )  # fmt: skip
    assert largest_useful(frame) == 2.0
    assert largest_useful(runs((1.0, "nonfinite", "", nan))) is None
