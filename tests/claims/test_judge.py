"""Every form of a claim on tables with known answers."""

import subprocess
import sys

import pytest

from lnexp.claims.judge import judge_claims, tally
from lnexp.config.schema import Model, RunConfig, Seed
from lnexp.results.load import load
from lnexp.rows import LayerRow
from tests.results.folders import curve, step_rows, write_points, write_run
from tests.results.tables import POST, PRE, SWEEP, claim, judged, placements, results, row, verdicts

NAN, INF = float("nan"), float("inf")


# Shares.


@pytest.mark.parametrize(
    "words, share, outcome",
    [
        (["nonfinite"] * 4, "> 0.5", "holds"),
        (["nonfinite"] * 3, "> 0.5", "undecided"),
        (["learned"] * 4, "> 0.5", "refuted"),
        (["learned"] * 4, "< 0.5", "holds"),
        (["nonfinite"] * 9 + ["stalled"], "> 0.5", "holds"),
        (["nonfinite"] * 9 + ["stalled"], "> 0.9", "undecided"),
        (["nonfinite"] + ["learned"] * 9, "> 0.9", "refuted"),
        (["plateau", "too_short"] * 5, "> 0.5", "refuted"),  # they did not go NaN, that is known
    ],
)
def test_a_verdict_is_counted_per_run(words, share, outcome):
    found = judged(verdicts(words), {"verdict": "nonfinite", "share": share})
    assert found.outcome == outcome
    (cell,) = found.cells
    assert (cell.finding.hits, cell.finding.of) == (words.count("nonfinite"), len(words))
    assert f"{words.count('nonfinite')} of {len(words)} nonfinite" in cell.text


def test_a_run_that_may_still_learn_decides_nothing_about_learning():
    for word in ("plateau", "too_short", "nothing_to_learn"):
        found = judged(verdicts([word] * 10), {"verdict": "learned"})
        assert found.outcome == "undecided"
        assert f"open: 10 {word}" in found.cells[0].text
    both = {"verdict": ["stalled", "plateau"]}
    assert judged(verdicts(["stalled", "plateau"] * 3), both).outcome == "holds"


def test_by_counts_only_what_was_born_before_the_step():
    rows = [row(s, verdict="nonfinite", settings=POST, first_bad_step=s) for s in range(20)]
    for by, hits in ((1, 1), (5, 5), (20, 20)):
        found = judged(rows, {"verdict": "nonfinite", "by": by})
        assert found.cells[0].finding.hits == hits
    assert judged(rows, {"verdict": "nonfinite", "by": 20}).outcome == "holds"
    assert judged(rows, {"verdict": "nonfinite", "by": 5}).outcome == "refuted"


def test_a_run_shorter_than_by_leaves_it_open():
    rows = verdicts(["learned"] * 10, steps_done=10)
    assert judged(rows, {"verdict": "nonfinite", "by": 20}).outcome == "undecided"
    assert judged(rows, {"verdict": "nonfinite", "by": 10}).outcome == "refuted"


def test_a_cause_is_counted_whole_among_several():
    rows = verdicts(["stalled"] * 6, cause="vanishing; too_slow")
    assert judged(rows, {"cause": "too_slow"}).outcome == "holds"
    assert judged(rows, {"cause": ["frozen", "vanishing"]}).outcome == "holds"
    assert judged(rows, {"cause": "frozen"}).outcome == "refuted"


def test_every_is_refuted_by_one_counterexample():
    expect = {"verdict": "nonfinite", "every": True}
    assert judged(verdicts(["nonfinite"] * 99 + ["learned"]), expect).outcome == "refuted"
    assert judged(verdicts(["nonfinite"] * 2), expect).outcome == "holds"
    rows = [*verdicts(["nonfinite"] * 9), row(9, "failed", settings=POST)]
    assert judged(rows, expect).outcome == "undecided"


# Cells.


def test_cells_are_never_pooled():
    rows = verdicts(["nonfinite"] * 2, PRE) + verdicts(["nonfinite"] * 2, POST)
    found = judged(rows, {"verdict": "nonfinite"})
    assert (found.outcome, found.text) == ("undecided", "undecided in 2 of 2 cells")


def test_a_claim_holds_in_all_its_cells_or_is_refuted_in_one():
    good, bad, few = ["learned"] * 8, ["stalled"] * 8, ["learned"] * 2
    expect = {"verdict": "learned"}
    for pre, post, outcome in (
        (good, good, "holds"),
        (good, bad, "refuted"),
        (few, bad, "refuted"),
        (good, few, "undecided"),
    ):
        found = judged(verdicts(pre, PRE) + verdicts(post, POST), expect)
        assert found.outcome == outcome
    assert found.text == "holds in 1 of 2 cells, undecided in 1 of 2 cells"
    only = judged(verdicts(good, PRE) + verdicts(bad, POST), expect, where=PRE)
    assert (only.outcome, len(only.cells)) == ("holds", 1)


def test_where_takes_several_values_and_reads_settings_as_resolved_or_as_written():
    rows = verdicts(["learned"] * 8, PRE) + verdicts(["learned"] * 8, POST)
    expect = {"verdict": "learned"}
    assert len(judged(rows, expect, where={"model.placement": ["pre", "post"]}).cells) == 2
    for std in (0.02, "auto"):
        assert len(judged(rows, expect, where={"model.embed_std": std}).cells) == 2


def test_where_that_matches_nothing_is_undecided_and_says_so():
    found = judged(verdicts(["learned"] * 8), {"verdict": "learned"}, where=PRE)
    assert found.outcome == "undecided"
    assert found.text == "no run of this sweep has model.placement pre"


@pytest.mark.parametrize("status", ["pending", "failed", "interrupted", "running"])
def test_a_run_without_an_end_is_missing_and_named(status):
    rows = [*verdicts(["learned"] * 9), row(9, status, settings=POST)]
    (cell,) = judged(rows, {"verdict": "learned"}, where={**POST, "train.lr": 1e-3}).cells
    assert cell.missing == [f"post-s9: {status}"]
    assert (cell.finding.hits, cell.finding.of) == (9, 9)
    assert f"missing: post-s9: {status}" in cell.text


def test_nothing_but_missing_runs_is_undecided():
    rows = [row(i, "pending", settings=POST) for i in range(9)]
    for expect in ({"verdict": "learned"}, {"less": "end_loss", "than": PRE}):
        found = judged(rows, expect)
        assert (found.outcome, found.judged, found.p) == ("undecided", False, None)


# Metrics.


@pytest.mark.parametrize(
    "op, value, outcome",
    [("<", 2.5, "refuted"), ("<=", 2.5, "holds"), (">", 2.4, "holds"), (">=", 2.6, "refuted")],
)
def test_a_metric_is_compared_run_by_run(op, value, outcome):
    found = judged(placements([], [2.5] * 6), {"metric": "end_loss", "op": op, "value": value})
    assert found.outcome == outcome


def test_a_loss_that_is_not_finite_ranks_worst():
    rows = verdicts(["nonfinite"] * 6, end_loss=2.0, end_gap=-1.0)  # the last finite value
    for metric in ("end_loss", "end_gap"):
        assert judged(rows, {"metric": metric, "op": "<", "value": 9}).outcome == "refuted"
    for broken in (NAN, INF):
        rows = placements([2.0] * 6, [broken] * 6)
        assert judged(rows, {"less": "end_loss", "than": POST}).outcome == "holds"
        assert judged(rows, {"less": "end_loss", "than": PRE}).outcome == "refuted"


def test_a_metric_that_was_not_measured_is_missing():
    rows = [*placements([], [2.0] * 5), row(5, settings=POST)]
    (cell,) = judged(rows, {"metric": "end_loss", "op": "<", "value": 9}).cells
    assert cell.missing == ["post-s5: end_loss not measured"]
    assert cell.finding.of == 5


# Tables beside runs.csv.


@pytest.fixture
def sweep(tmp_path):
    folder = tmp_path / "demo"
    points = []
    for seed in range(6):
        layers = [
            LayerRow(step, layer, "mlp", grad_norm=10.0 ** -(step + layer))
            for step in (0, 5)
            for layer in (0, 1)
        ]
        layers.append(LayerRow(0, -1, "embed", grad_norm=7.0))
        config = RunConfig(model=Model(depth=2), seed=Seed(init=seed, data=seed))
        loss, unigram = curve([-0.5] * 60, seed)
        write_run(folder, f"r{seed}", config, step_rows(loss, unigram), layers)
        points.append((f"r{seed}", seed, {"model.depth": 2}))
    write_points(folder, points)
    return folder


@pytest.mark.parametrize(
    "metric, value",
    [
        ({"part": "mlp", "layer": 0, "step": 0}, 1.0),
        ({"part": "mlp", "layer": -1, "step": 0}, 0.1),
        ({"part": "mlp", "layer": 0}, 1e-5),
        ({"part": "mlp", "layer": -2, "step": "last"}, 1e-5),
        ({"part": "embed"}, 7.0),
        ({"part": "mlp", "layer": 0, "step": 3}, None),
        ({"part": "mlp", "layer": 2, "step": 0}, None),
        ({"part": "attn", "layer": 0, "step": 0}, None),
    ],
)
def test_a_metric_of_a_layer_is_the_cell_of_its_table(sweep, metric, value):
    metric = {"column": "grad_norm", **metric}
    expects = [
        claim({"metric": metric, "op": op, "value": value or 1.0}, op_name)
        for op, op_name in ((">=", "ge"), ("<=", "le"))
    ]
    outcomes = [c.outcome for c in judge_claims(load(sweep), expects, "demo")]
    assert outcomes == (["undecided"] * 2 if value is None else ["holds"] * 2)


def test_a_metric_of_lab_is_the_row_of_the_run(sweep):
    (sweep / "lab").mkdir()
    rows = "".join(f"r{s},{b},{v}\n" for s in range(6) for b, v in ((0, 0.5), (1, -0.5)))
    (sweep / "lab" / "skip.csv").write_text("run,block,change\n" + rows)
    at = {"file": "skip", "column": "change", "at": {"block": 1}}
    claims = [
        claim({"metric": at, "op": "<", "value": 0}, "one"),
        claim({"metric": "skip:change", "op": "<", "value": 0}, "both"),
        claim({"metric": "skip:loss", "op": "<", "value": 0}, "column"),
        claim({"metric": "lab/depth.csv:share", "op": "<", "value": 0}, "file"),
    ]
    one, both, column, file = judge_claims(load(sweep), claims, "demo")
    assert one.outcome == "holds"
    assert "has 2 rows for r0; say which: at:" in both.text
    assert column.text == "lab/skip.csv has no column loss"
    assert file.text.startswith("lab/depth.csv: ")


# All claims together.


def test_a_weak_outcome_does_not_survive_many_claims():
    rows = verdicts(["nonfinite"] * 4)  # 4 of 4: p = 0.0455
    alone = judge_claims(results(rows), [claim({"verdict": "nonfinite"})], SWEEP)
    assert (alone[0].outcome, alone[0].adjusted) == ("holds", "holds")
    claims = [claim({"verdict": "nonfinite"}), claim({"verdict": "learned"}, "b", where=POST)]
    both = judge_claims(results(rows), claims, SWEEP)
    assert [(c.outcome, c.adjusted) for c in both] == [
        ("holds", "undecided"),
        ("refuted", "undecided"),
    ]
    assert tally(both) == (
        "2 claims: 2 judged by a test; adjusted for their number (Holm), undecided: a, b."
    )


def test_a_decision_by_a_rule_needs_no_adjustment():
    claims = [
        claim({"verdict": "learned", "every": True}, "rule"),
        claim({"verdict": "learned"}, "test"),
        claim({"verdict": "learned"}, "none", where=PRE),
    ]
    found = judge_claims(results(verdicts(["learned"] * 20)), claims, SWEEP)
    assert [c.adjusted for c in found] == ["holds", "holds", "undecided"]
    assert tally(found) == (
        "3 claims: 1 judged by a test, 1 by a rule without one, 1 not judged; "
        "adjusted for their number (Holm), all outcomes stay."
    )


@pytest.mark.parametrize("module", ["lnexp.claims.judge", "lnexp.commands.read"])
def test_scipy_is_imported_by_a_test_that_needs_it_alone(module):
    code = f"import sys, {module}; print('scipy' in sys.modules)"
    words = [sys.executable, "-c", code]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"
