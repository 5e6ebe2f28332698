from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lnexp.claims.claims import FORMS, Bound, CauseName, RunColumn, Verdict
from lnexp.claims.parse import WANTED, parse_claims
from lnexp.results import causes, verdicts
from lnexp.results import run_folder as runfolder
from tests.results.tables import POST, claim


def problems(expect, **more):
    raw = {"id": "a", "says": "something", "expect": expect, **more}
    claims, found = parse_claims([raw], lambda *path: "x.yaml:3")
    assert bool(claims) != bool(found)
    return found


def test_the_words_of_claims_are_those_of_the_reading_half():
    assert set(get_args(Verdict)) == set(verdicts.VERDICTS)
    assert set(get_args(RunColumn)) == set(runfolder.FIGURES)
    known = {function.__name__ for found in causes.EXPLAIN.values() for function in found}
    assert set(get_args(CauseName)) == known


def test_every_key_of_every_form_says_what_it_takes():
    for form in FORMS.values():
        assert {field.alias or name for name, field in form.model_fields.items()} <= set(WANTED)


@pytest.mark.parametrize(
    "expect",
    [
        {"verdict": "nonfinite", "share": ">= 0.9", "by": 20},
        {"verdict": ["learned", "spiked"], "every": True},
        {"cause": "vanishing"},
        {"metric": "end_gap", "op": "<", "value": -1},
        {"metric": {"column": "act_rms", "layer": -1, "part": "mlp"}, "op": "<", "value": 2.5},
        {"metric": {"column": "grad_norm", "part": "head", "step": 0}, "op": ">", "value": 0},
        {"metric": "lab/depth.csv:share", "op": ">", "value": 0},
        {"metric": {"file": "skip", "column": "change", "at": {"block": 3}}, "op": ">", "value": 0},
        {"less": "end_loss", "than": POST},
        {"difference": "end_loss", "from": POST, "less_than": 1},
        {"difference": "end_loss", "from": {"train.warmup": 9}, "less_than": POST},
        {"same": "end_loss", "as": {"model.norm": "rmsnorm"}, "within": 0.02},
        {"slope": "grad_ratio_step0", "over": "model.depth", "between": [-0.6, -0.4]},
        {"less": "end_loss", "than": POST, "best_over": "train.lr", "tune_seeds": [0, 1]},
    ],
)  # fmt: skip
def test_every_form_is_read_and_frozen(expect):
    read = claim(expect)
    assert read.expect.leads in expect
    with pytest.raises(ValueError, match="frozen"):
        read.id = "b"


def test_a_share_is_above_one_half_where_nothing_is_said():
    assert claim({"verdict": "learned"}).expect.share == Bound(op=">", value=0.5)


def test_where_takes_a_value_or_several_and_betas_are_one_value():
    where = {"model.depth": [2, 4], "train.lr": 1, "train.betas": [0.9, 0.95]}
    read = claim({"verdict": "learned"}, where=where).where
    assert read["model.depth"] == (2, 4)
    assert read["train.lr"] == (1.0,)
    assert read["train.betas"] == ([0.9, 0.95],)


@pytest.mark.parametrize(
    "expect, said",
    [
        ({"verdict": "nonfinte"}, "expect.verdict: nonfinte is no verdict; did you mean nonfinite"),
        ({"cause": "vanish"}, "did you mean vanishing?"),
        ({"metric": "end_los", "op": "<", "value": 1}, "did you mean end_loss?"),
        ({"metric": "end_loss", "op": "=<", "value": 1}, "expect.op: =< is no op"),
        ({"metric": "end_loss", "op": "<"}, "value is missing; write a number"),
        ({"metric": "end_loss", "op": "<", "value": float("nan")}, "expect.value: .nan does not"),
        ({"metric": {"column": "act_rm", "layer": 0, "part": "mlp"}, "op": "<", "value": 1},
         "act_rm is no column of layers.csv; did you mean act_rms?"),
        ({"metric": {"column": "act_rms", "part": "mlp"}, "op": "<", "value": 1}, "write layer: 0"),
        ({"metric": {"column": "act_rms", "layer": 4, "part": "head"}, "op": "<", "value": 1},
         "leave layer out"),
        ({"verdict": "learned", "shar": "> 0.5"}, "expect.shar: no such key; did you mean share?"),
        ({"verdict": "learned", "share": 0.5}, 'write a share in quotes, such as "> 0.5"'),
        ({"verdict": "learned", "share": "> 1"}, "a share lies between 0 and 1"),
        ({"verdict": "learned", "share": "> 5"}, "a share lies between 0 and 1"),
        ({"verdict": "learned", "share": "half"}, "half is no share"),
        ({"verdict": "learned", "share": "> 0.9", "every": True}, "exclude each other"),
        ({"verdict": "learned", "every": 1}, "expect.every: 1 does not fit; write true or false"),
        ({"verdict": "learned", "by": 20}, "write verdict: nonfinite"),
        ({"verdct": "learned"}, "did you mean verdict?"),
        ({"verdict": "learned", "cause": "frozen"}, "verdict and cause are two claims"),
        ({"less": "end_loss"}, "than is missing"),
        ({"less": "end_loss", "than": {}}, "expect.than"),
        ({"less": "end_loss", "than": {"model.placment": "post"}}, "did you mean model.placement?"),
        ({"less": "end_loss", "than": {"model.placement": "pots"}}, "pots does not fit"),
        ({"less": "end_loss", "than": {"model.placement": ["pre"]}}, "is a list; write one value"),
        ({"less": "end_loss", "than": {"train.lr": 1}, "best_over": "train.lr"}, "best_over"),
        ({"same": "end_loss", "as": POST, "within": 0}, "write a number above 0"),
        ({"slope": "end_loss", "over": "model.dept", "between": [0, 1]}, "mean model.depth?"),
        ({"slope": "end_loss", "over": "model.depth", "between": [1, 0]}, "the smaller one first"),
        ({"verdict": "learned", "best_over": "lr"}, "mean train.lr?"),
        ({"verdict": "learned", "tune_seeds": [0]}, "tune_seeds goes with best_over"),
        (None, "an empty value does not fit"),
    ],
)  # fmt: skip
def test_a_fault_is_one_plain_line_with_place_id_and_key(expect, said):
    (line,) = problems(expect)
    assert line.startswith("x.yaml:3: claims: a: expect")
    assert said in line


def test_a_comparison_of_cells_with_themselves_is_refused():
    (line,) = problems({"less": "end_loss", "than": POST}, where=POST)
    assert "expect.than: names the cells of where themselves" in line


def test_ids_are_unique_and_every_fault_of_every_claim_is_told():
    good = {"id": "a", "says": "x", "expect": {"verdict": "learned"}}
    raw = [good, good, 7, {"id": "b c", "wher": {}}]
    claims, lines = parse_claims(raw, lambda *path: "x.yaml:3")
    assert [c.id for c in claims] == ["a"]
    text = "\n".join(lines)
    for said in ("two claims have this id", "claim 3: is no group", "did you mean where?"):
        assert said in text
    assert "says is missing" in text and "expect is missing" in text and "letters, digits" in text


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(sorted(WANTED)) | st.sampled_from(["id", "says", "where", "expect"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(PLAIN)
def test_no_claim_however_odd_raises(value):
    for raw in ([value], [{"id": "a", "says": "x", "where": value, "expect": value}]):
        claims, lines = parse_claims(raw, lambda *path: "x.yaml:1")
        assert bool(claims) != bool(lines)
        assert all("\n" not in line for line in lines)
