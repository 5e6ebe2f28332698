"""What theory says is said for its own settings alone, and judged by the seeds' interval."""

from pathlib import Path

import pytest

from lnexp.claims.units import Run
from lnexp.config.rules import DEFAULTS, canonical
from lnexp.lab.schemas import ProbeRow
from lnexp.probe.laws import LAWS, by_cell, judge, laws_for, slopes_of
from lnexp.rows import header

THEORY = {**DEFAULTS, "model.init": "xavier"}


def run(seed: int, **settings) -> Run:
    whole = THEORY | {f"model.{key}": value for key, value in settings.items()}
    name = f"{settings}-{seed}"
    return Run(name, Path(name), (seed, seed), whole, canonical(whole), "finished", "learned")


@pytest.mark.parametrize("placement", LAWS)
def test_every_law_reads_a_column_that_there_is(placement):
    for law in LAWS[placement]:
        assert law.column in header(ProbeRow) and law.low < law.high and law.source


@pytest.mark.parametrize(
    "other",
    [
        {"model.init": "gpt2"},
        {"model.init": "torch"},
        {"model.embed_std": 0.02},
        {"model.init_scale": 2.0},
        {"model.norm": "rmsnorm"},
        {"model.eps": 0.1},
        {"model.qk_norm": True},
        {"model.residual": False},
        {"model.dropout": 0.1},
        {"train.precision": "fp16"},
        {"model.placement": "sandwich"},
    ],
    ids=str,
)
def test_of_other_settings_nothing_is_asserted(other):
    assert laws_for(THEORY | {"model.placement": "pre"})
    assert laws_for(THEORY | {"model.embed_std": 1.0})
    assert laws_for(THEORY | {"model.placement": "pre"} | other) == ()


def test_a_law_from_24_blocks_on_is_not_stated_below():
    def columns(depth: int) -> set[str]:
        return {law.column for law in laws_for({**THEORY, "model.placement": "post",
                                                "model.depth": depth})}  # fmt: skip

    assert columns(24) - columns(23) == {"token_cosine_last"}


def test_without_residuals_the_shrinking_is_stated_of_a_network_without_norms():
    settings = THEORY | {"model.placement": "none", "model.residual": False}
    assert {law.column for law in laws_for(settings)} == {
        "stream_rms_per_sublayer", "stream_grad_per_sublayer",
    }  # fmt: skip
    assert laws_for(settings | {"model.residual": True}) == ()


def slope(runs, figures):
    (found,) = [j for j in judge(runs, ["model.depth"], figures) if j.law.over_depth]
    return found


def test_a_slope_over_depth_is_one_a_seed_and_its_interval_decides():
    runs = [run(seed, depth=depth) for depth in (6, 12, 24) for seed in range(4)]
    noise = {0: -0.51, 1: -0.5, 2: -0.49, 3: -0.5}
    figures = {r.name: {"w2_last": r.settings["model.depth"] ** noise[r.seed[0]]} for r in runs}
    found = slope(runs, figures)
    assert found.outcome == "met" and found.finding.estimate == pytest.approx(-0.5)
    assert (found.of, found.finding.of, found.fit) == (4, 4, "N 6 .. 24")
    assert found.plain()["low"] == found.finding.low
    figures = {name: {"w2_last": 1 / row["w2_last"]} for name, row in figures.items()}
    assert slope(runs, figures).outcome == "not met"
    del figures[runs[0].name]
    assert slope(runs, figures).finding.of == 3
    two = judge(runs[:8], ["model.depth"], figures)
    assert not any(judged.law.over_depth for judged in two)  # two depths show no law


def test_a_figure_of_one_cell_is_judged_in_each_and_one_seed_decides_nothing():
    runs = [run(seed, depth=depth) for depth in (6, 12) for seed in range(3)]
    figures = {r.name: {"variance_exponent": 1 + 0.01 * r.seed[0]} for r in runs}
    found = {(j.law.column, j.fit): j for j in judge(runs, ["model.depth"], figures)}
    assert found["variance_exponent", "blocks 1 .. 12"].outcome == "met"
    (one, _) = judge(runs[:1], ["model.depth"], figures)
    assert one.outcome == "undecided" and one.plain()["low"] is None


def test_slopes_of_incomplete_seeds_are_none_and_cells_keep_the_order_of_the_grid():
    runs = [run(seed, depth=depth) for depth in (12, 6) for seed in (0, 1)]
    last = {r.name: 1.0 for r in runs[1:]}
    assert slopes_of(runs, lambda r: last.get(r.name)) == [None, 0.0]
    assert [cell["model.depth"] for cell, _ in by_cell(runs, ["model.depth"])] == [12, 6]
