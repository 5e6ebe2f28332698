import pytest

from lnexp.claims.judge import undecidable
from lnexp.config.schema import Model, RunConfig, Seed, Train
from lnexp.config.sweep import Point
from tests.results.tables import POST, claim


def points(seeds, placements=("pre", "post")):
    return [
        Point(RunConfig(model=Model(placement=p), train=Train(lr=lr), seed=Seed(init=s, data=s)),
              {"model.placement": p, "train.lr": lr})
        for p in placements
        for lr in (1e-3, 1e-2)
        for s in range(seeds)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "expect, seeds, said",
    [
        ({"verdict": "nonfinite"}, 3, "3 seeds cannot decide it; 4 seeds can decide it both ways"),
        ({"verdict": "nonfinite"}, 4, ""),
        (
            {"verdict": "nonfinite", "share": "> 0.9"},
            10,
            "10 seeds can refute it, but it cannot ho",
        ),
        ({"verdict": "nonfinite", "every": True}, 1, ""),
        ({"less": "end_loss", "than": POST}, 5, "5 seeds cannot decide it; 6 seeds can"),
        ({"less": "end_loss", "than": POST}, 6, ""),
        ({"same": "end_loss", "as": POST, "within": 0.1}, 5, "cannot decide it; 6 seeds"),
        (
            {"less": "end_loss", "than": POST, "best_over": "train.lr"},
            10,
            "5 seeds to judge cannot",
        ),
        ({"less": "end_loss", "than": POST, "best_over": "train.lr"}, 12, ""),
        ({"less": "end_loss", "than": {"model.depth": 8}}, 12, "some cell has no partner"),
        ({"slope": "end_loss", "over": "train.lr", "between": [0, 1]}, 1, "2 seeds can decide it"),
        ({"slope": "end_loss", "over": "model.depth", "between": [0, 1]}, 9, "no two numbers"),
    ],
)
def test_the_plan_names_claims_that_its_seeds_cannot_decide(expect, seeds, said):
    lines = undecidable([claim(expect)], points(seeds))
    assert len(lines) == bool(said)
    assert all(said in line and line.startswith("claim a: ") for line in lines)


def test_the_plan_names_a_claim_about_nothing():
    lines = undecidable([claim({"verdict": "learned"}, where={"model.depth": 99})], points(9))
    assert lines == ["claim a: cannot be decided: no run of this sweep has model.depth 99"]
