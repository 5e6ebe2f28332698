import io
import json

import pytest
from rich.console import Console

from lnexp.claims.judge import judge_claims
from lnexp.claims.show import claims_json, claims_table
from tests.results.tables import SWEEP, claim, results, row

POST = {"model.placement": "post"}


@pytest.fixture
def judged():
    rows = [row(i, verdict="nonfinite", settings=POST, end_loss=2.0) for i in range(8)]
    rows += [row(i, settings={"model.placement": "pre"}, end_loss=2.5) for i in range(7)]
    rows += [row(7, "failed", settings={"model.placement": "pre"})]
    claims = [
        claim({"verdict": "nonfinite"}, "nan", says="It goes [red]NaN[/red]", where=POST),
        claim({"less": "end_loss", "than": POST}, "less", source="lesson 2"),
        claim({"verdict": "learned"}, "nowhere", where={"model.depth": 99}),
        claim({"verdict": "lost", "share": "> 0.1"}, "weak"),
    ]
    return {SWEEP: judge_claims(results(rows), claims, SWEEP)}


def shown(judged, width):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(claims_table(judged))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_too_wide_and_every_claim_is_shown(judged, width):
    text = shown(judged, width)
    assert max(map(len, text.splitlines())) <= width
    for said in ("nan", "less", "nowhere", "weak", "holds", "undecided"):
        assert said in text


def test_counts_intervals_and_missing_runs_are_told(judged):
    text = " ".join(shown(judged, 250).split())
    assert "8 of 8 nonfinite, share 1 [0.676, 1]" in text
    assert "less in 7 of 7 pairs" in text
    assert "missing in less, pre: pre-s7: failed" in text
    assert "no run of this sweep has model.depth 99" in text
    assert "added after" in text
    assert "4 claims: 3 judged by a test, 1 not judged" in text


def test_brackets_in_a_claim_are_text_not_markup(judged):
    assert "It goes [red]NaN[/red]" in " ".join(shown(judged, 250).split())


def test_both_outcomes_are_shown_where_adjusting_changes_one(judged):
    rows = [row(i, verdict="nonfinite", settings=POST) for i in range(4)]
    claims = [claim({"verdict": "nonfinite"}, name) for name in ("a", "b")]
    text = shown({SWEEP: judge_claims(results(rows), claims, SWEEP)}, 200)
    assert "holds (adjusted: undecided)" in text


def test_json_is_strict_and_has_every_number(judged):
    def refuse(name):
        raise AssertionError(name)

    said = json.loads(claims_json(judged), parse_constant=refuse)[SWEEP]
    nan, less, nowhere, _ = said["claims"]
    assert nan["cells"][0]["hits"] == nan["cells"][0]["of"] == 8
    assert nan["cells"][0]["settings"] == POST
    assert less["cells"][0]["low"] == "-inf"
    assert less["cells"][0]["missing"] == ["pre-s7: failed"]
    assert (nowhere["outcome"], nowhere["cells"], nowhere["p"]) == ("undecided", [], None)
    assert said["tally"].startswith("4 claims")


def test_a_sweep_without_claims_has_no_table():
    assert shown({SWEEP: []}, 80).strip() == ""
