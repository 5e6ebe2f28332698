"""A config file becomes the grid it says: every combination once, in order, in one spelling."""

from itertools import product
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lnexp.config.document import parse
from lnexp.config.names import identity
from lnexp.config.schema import RunConfig
from lnexp.config.sweep import Sweep, dump, load_sweep, resolved
from lnexp.messages import UserError


@pytest.fixture
def load(tmp_path):
    def load(text: str, *overrides: str, file: str = "exp.yaml") -> Sweep:
        (tmp_path / file).write_text(text, encoding="utf-8")
        return load_sweep(tmp_path / file, overrides)

    return load


def column(sweep: Sweep, key: str) -> list:
    return [point.settings[key] for point in sweep.points]


def hashes(sweep: Sweep) -> set[str]:
    return {identity(point.config, "t" * 64, "cpu") for point in sweep.points}


EXAMPLE = """\
name: placement_by_depth
question: From which depth on does Post-LN stop learning?
model: {depth: 12, init: xavier}
sweep: {model.depth: [2, 8, 32], model.placement: [pre, post], model.residual: [true, false]}
seeds: [0, 1, 2, 3]
claims: []
"""


def test_the_grid_is_the_product_with_seeds_innermost(load):
    sweep = load(EXAMPLE)
    rows = [
        (*point.settings.values(), point.config.seed.init, point.config.seed.data)
        for point in sweep.points
    ]
    assert rows == [
        (depth, placement, residual, seed, seed)
        for depth in (2, 8, 32)
        for placement in ("pre", "post")
        for residual in (True, False)
        for seed in range(4)
    ]
    assert sweep.name == "placement_by_depth"
    assert sweep.question == "From which depth on does Post-LN stop learning?"
    assert list(sweep.axes) == ["model.depth", "model.placement", "model.residual"]
    assert all(point.config.model.init == "xavier" for point in sweep.points)
    assert sweep.notes == []


def test_a_file_without_a_sweep_is_one_run(load):
    sweep = load("model: {depth: 2}")
    assert len(sweep.points) == 1 and sweep.axes == {}
    assert sweep.points[0].config == RunConfig.model_validate({"model": {"depth": 2}})
    assert sweep.name == "exp"


def test_numbers_in_every_spelling_are_one_point_and_it_is_said(load):
    """B1, B7"""
    sweep = load(
        "sweep:\n  model.eps: [1e-5, 1.0e-5, 1e-12, 0.00001]\ntrain: {lr: 3e-4, steps: 1e3}"
    )
    assert sweep.axes == {"model.eps": [1e-5, 1e-12]}
    assert sweep.points[0].config.train.steps == 1000
    assert sweep.points[0].config.train.lr == 3e-4
    assert [note for note in sweep.notes if "1e-05 is listed 3 times and runs once" in note]
    assert sweep.notes[0].split(": ")[0].endswith("exp.yaml:2")


def test_near_equal_values_are_two_runs(load):
    assert len(hashes(load("sweep: {train.lr: [0.001, 0.0010001]}"))) == 2


def test_on_and_off_are_true_and_false(load):
    """B2"""
    assert column(load("sweep: {model.residual: [on, off]}"), "model.residual") == [True, False]


def test_equal_seeds_run_once_and_are_reported_once(load):
    """B4"""
    sweep = load("seeds: [1, 1, 1]")
    assert [point.config.seed.init for point in sweep.points] == [1]
    assert len(sweep.notes) == 1 and "1 is listed 3 times" in sweep.notes[0]


def test_init_and_data_seeds_multiply(load):
    sweep = load("seeds: {init: [0, 1], data: [5, 6]}")
    pairs = [(point.config.seed.init, point.config.seed.data) for point in sweep.points]
    assert pairs == [(0, 5), (0, 6), (1, 5), (1, 6)]


def test_cases_are_outermost_and_take_the_base_for_keys_they_lack(load):
    sweep = load(
        "model: {width: 32}\n"
        "cases: [{}, {model.depth: 2, train.steps: 100}, {model.width: 16, train.steps: 300}]\n"
        "sweep: {model.placement: [pre, post]}"
    )
    rows = [tuple(point.settings.values()) for point in sweep.points]
    assert rows == [
        (placement, depth, steps, width)
        for depth, steps, width in ((4, 200, 32), (2, 100, 32), (4, 300, 16))
        for placement in ("pre", "post")
    ]
    keys = ["model.placement", "model.depth", "train.steps", "model.width"]
    assert list(sweep.axes) == keys
    assert set(sweep.axes["model.width"]) == {16, 32}


# ------------------------------------------------------------------------- one spelling


def test_points_that_differ_only_in_a_key_without_effect_are_one_run(load):
    sweep = load("sweep: {model.placement: [pre, none], model.eps: [1e-3, 1e-12, 1e-7]}")
    assert len(sweep.points) == 4
    assert column(sweep, "model.eps") == [1e-3, 1e-12, 1e-7, 1e-5]
    assert sweep.notes == [
        "model.placement none: 3 values of model.eps are one run (0.001, 1e-12, 1e-07)",
        "6 combinations are 4 different runs for each seed",
    ]


@pytest.mark.parametrize(
    ("config", "key", "default"),
    [
        ("model: {placement: none, norm: rmsnorm}", "model.norm", "layernorm"),
        ("model: {placement: none, affine: false}", "model.affine", True),
        ("train: {optimizer: sgd, betas: [0.5, 0.6]}", "train.betas", [0.9, 0.95]),
        ("train: {optimizer: sgd, adam_eps: 1}", "train.adam_eps", 1e-8),
        ("train: {optimizer: adam, momentum: 0.5}", "train.momentum", 0.9),
        ("train: {loss_scale: none}", "train.loss_scale", "auto"),
        ("measure: {sample: 4}", "measure.sample", 2),
        ("measure: {level: off, every: 4}", "measure.every", 1),
        ("measure: {level: off, eval_every: 4}", "measure.eval_every", 50),
        ("measure: {eval_every: 4}\ndata: {val_fraction: 0}", "measure.eval_every", 50),
        ("data: {encoding: latin-1}", "data.encoding", "utf-8"),
        ("data: {order: 2}", "data.order", 1),
        ("data: {chain_seed: 2}", "data.chain_seed", 0),
        ("model: {embed_std: 0.02}", "model.embed_std", "auto"),
        ("model: {embed_std: 1, init: torch}", "model.embed_std", "auto"),
    ],
)
def test_a_key_without_effect_goes_back_to_its_default_and_is_named(load, config, key, default):
    config = config.replace("level: off", "level: 'off'")
    sweep = load(config)
    assert sweep.points[0].config.settings()[key] == default
    assert len(sweep.notes) == 1 and key in sweep.notes[0]


@pytest.mark.parametrize(
    ("config", "key", "kept"),
    [
        ("model: {placement: none, qk_norm: true, eps: 1e-12}", "model.eps", 1e-12),
        ("train: {optimizer: sgd, momentum: 0}", "train.momentum", 0.0),
        ("data: {source: markov, order: 2}", "data.order", 2),
        ("model: {embed_std: 0.02, init: torch}", "model.embed_std", 0.02),
        ("train: {device: cpu}", "train.device", "cpu"),
        ("measure: {level: full, sample: 4}", "measure.sample", 4),
    ],
)
def test_a_key_with_effect_is_kept_without_a_word(load, config, key, kept):
    sweep = load(config)
    assert sweep.points[0].config.settings()[key] == kept
    assert sweep.notes == []


def test_axis_values_are_the_resolved_ones_that_config_yaml_holds(load):
    sweep = load("sweep: {model.embed_std: [auto, 0.5]}")
    assert sweep.axes == {"model.embed_std": [0.02, 0.5]}
    for point in sweep.points:
        assert point.settings["model.embed_std"] == resolved(point.config)["model"]["embed_std"]


def test_keys_that_only_decide_what_stays_on_disk_make_no_runs_of_their_own(load):
    sweep = load("sweep: {measure.keep: [weights, none]}")
    assert len(sweep.points) == 1
    assert "give the same rows" in sweep.notes[0]


def test_data_path_may_stand_beside_another_source_where_a_point_reads_it(load, tmp_path):
    sweep = load("data: {path: a.txt}\nsweep: {data.source: [pydoc, file]}")
    assert [p.config.data.path for p in sweep.points] == ["", str(tmp_path / "a.txt")]


# --------------------------------------------------------------------------- overrides


def test_an_override_of_a_swept_key_replaces_the_axis(load):
    assert load(EXAMPLE, "model.depth=[2,4]").axes["model.depth"] == [2, 4]
    one = load(EXAMPLE, "model.depth=4")
    assert one.axes["model.depth"] == [4] and len(one.points) == 16


def test_an_override_of_another_key_sets_it_and_a_list_makes_an_axis(load):
    assert load(EXAMPLE, "train.lr=1e-2").points[0].config.train.lr == 0.01
    sweep = load(EXAMPLE, "train.lr=[1e-2, 1e-3]")
    assert sweep.axes["train.lr"] == [0.01, 0.001]
    assert list(sweep.axes)[-1] == "train.lr"


def test_an_override_of_a_key_in_cases_holds_for_all(load):
    text = "cases: [{model.depth: 2, model.width: 8}, {model.depth: 4, model.width: 16}]"
    sweep = load(text, "model.width=32")
    assert [(p.config.model.depth, p.config.model.width) for p in sweep.points] == [
        (2, 32),
        (4, 32),
    ]
    assert list(sweep.axes) == ["model.depth"]
    assert len(load(text, "model.width=[32, 64]").points) == 4


def test_a_list_for_betas_is_one_value_and_a_list_of_lists_an_axis(load):
    assert load("seeds: [0]", "train.betas=[0.8, 0.9]").points[0].config.train.betas == [0.8, 0.9]
    sweep = load("seeds: [0]", "train.betas=[[0.8, 0.9], [0.9, 0.99]]")
    assert column(sweep, "train.betas") == [[0.8, 0.9], [0.9, 0.99]]
    swept = "sweep: {train.betas: [[0.5, 0.5], [0.6, 0.6]]}"
    assert column(load(swept, "train.betas=[0.8, 0.9]"), "train.betas") == [[0.8, 0.9]]


def test_seeds_name_and_question_can_be_overridden(load):
    sweep = load(EXAMPLE, "seeds=[7]", "name=x", "question=Why: is it #1?")
    assert {point.config.seed.init for point in sweep.points} == {7}
    assert (sweep.name, sweep.question) == ("x", "Why: is it #1?")


def test_the_last_of_two_overrides_counts(load):
    assert load(EXAMPLE, "model.depth=[2, 4]", "model.depth=8").axes["model.depth"] == [8]


def test_a_path_is_relative_to_its_file_or_for_an_override_to_here(load, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    text = "data: {source: file, path: a.txt}"
    assert load(text).points[0].config.data.path == str(tmp_path / "a.txt")
    assert load(text, "data.path=a.txt").points[0].config.data.path == str(here / "a.txt")
    two = load("sweep: {data.path: [a.txt, /b.txt]}\ndata: {source: file}")
    assert column(two, "data.path") == [str(tmp_path / "a.txt"), str(Path("/b.txt"))]


# ---------------------------------------------------------------- documents and speed


@pytest.mark.parametrize(
    "overrides", [(), ("model.depth=[1,2]", "seeds=[5]", "train.lr=1e-5", "name=no")]
)
def test_the_document_written_out_and_loaded_again_is_the_same_sweep(load, overrides):
    text = EXAMPLE + "data: {source: file, path: text.txt}\ncases: [{}, {model.eps: 1e-12}]"
    sweep = load(text, *overrides)
    again = load(dump(sweep.document), file="sweep.yaml")
    assert again.points == sweep.points
    assert (again.name, again.axes) == (sweep.name, sweep.axes)
    assert again.document == sweep.document == yaml.safe_load(dump(sweep.document))


def test_a_resolved_config_written_out_is_the_same_run(load):
    for point in load("sweep: {model.init: [gpt2, lesson], train.clip: [.inf, 1e-5]}").points:
        text = dump(resolved(point.config))
        assert parse(text, "config.yaml").value == yaml.safe_load(text) == resolved(point.config)
        read = RunConfig.model_validate(yaml.safe_load(text))
        assert identity(read, "t" * 64, "cpu") == identity(point.config, "t" * 64, "cpu")


def test_a_stem_that_is_no_name_becomes_one_and_it_is_said(load):
    sweep = load("seeds: [0]", file="Tiefe größer.yaml")
    assert sweep.name == "Tiefe_gro_er"
    assert sweep.notes == ["the results of 'Tiefe größer' go to the name Tiefe_gro_er"]


def test_line_says_where_a_key_was_set(load, tmp_path):
    sweep = load("model:\n  depth: 2\n  width: 8\nsweep:\n  model.depth: [1]", "train.lr=1")
    assert sweep.line("model.depth") == f"{tmp_path / 'exp.yaml'}:5"
    assert sweep.line("model.width") == f"{tmp_path / 'exp.yaml'}:3"
    assert sweep.line("train.lr") == "-s train.lr=1"
    assert sweep.line("model.eps") == str(tmp_path / "exp.yaml")


AXES = {
    "model.depth": st.integers(1, 99),
    "train.lr": st.floats(1e-9, 1, allow_nan=False),
    "model.placement": st.sampled_from(["pre", "post", "sandwich"]),
    "model.residual": st.booleans(),
    "train.warmup": st.integers(0, 50),
}


@given(
    axes=st.fixed_dictionaries(
        {}, optional={k: st.lists(v, min_size=1, max_size=4, unique=True) for k, v in AXES.items()}
    ),
    seeds=st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
)
@settings(deadline=None, max_examples=60)
def test_the_grid_holds_every_combination_exactly_once(tmp_path_factory, axes, seeds):
    file = tmp_path_factory.mktemp("grid") / "exp.yaml"
    file.write_text(dump({"sweep": axes, "seeds": seeds}), encoding="utf-8")
    sweep = load_sweep(file)
    rows = [(*point.settings.values(), point.config.seed.init) for point in sweep.points]
    assert rows == list(product(*axes.values(), seeds))
    assert len(hashes(sweep)) == len(rows)
    assert sweep.axes == axes


def test_ten_thousand_points_are_no_trouble(load):
    depths, seeds = list(range(1, 251)), list(range(10))
    text = f"sweep: {{model.depth: {depths}, model.eps: [1e-5, 1e-6, 1e-7, 1e-8]}}\nseeds: {seeds}"
    assert len(load(text).points) == 10_000


def test_a_grid_beyond_all_lifetimes_is_refused_before_it_is_built(load):
    many = list(range(1, 1001))
    with pytest.raises(UserError, match="1,000,000,000 points; at most 100,000"):
        load(f"sweep: {{model.depth: {many}, model.width: {many}, train.warmup: {many}}}")
