"""What a plan refuses and what it says."""

from io import StringIO

import pytest
from rich.console import Console

from lnexp.commands.plan import describe, plans
from lnexp.errors import UserError
from lnexp.present.plan import print_plan
from lnexp.runs.plan import make_plan
from lnexp.sweep import load_sweep

from .small import write_config

TINY = "data: {source: markov, length: 900}\nmodel: {depth: 1, width: 8, heads: 1, context: 8}\n"


def test_two_points_that_are_one_run_here_are_told_why(tmp_path):
    (tmp_path / "a.txt").write_text("abcd" * 99)
    (tmp_path / "b.txt").write_text("abcd" * 99)
    model = TINY.splitlines()[1] + "\n"
    text = model + "data: {source: file, path: a.txt}\nsweep: "
    for sweep, why in (
        ("{train.device: [cpu, auto]}", "train.device cpu and auto are both cpu here"),
        ("{data.path: [a.txt, b.txt]}", "their texts are the same"),
    ):
        plan = make_plan(load_sweep(write_config(tmp_path, text + sweep)))
        if plan.runs[0].device == "cpu":
            assert len(plan.runs) == 1
            assert plan.notes[-1].endswith(f"stands for two points of the sweep: {why}")


def test_names_that_differ_only_in_case_would_share_a_folder(tmp_path):
    one = write_config(tmp_path, "name: Small\n" + TINY, "one.yaml")
    two = write_config(tmp_path, "name: small\n" + TINY, "two.yaml")
    with pytest.raises(UserError, match="are named Small and small: one folder where"):
        plans([str(one), str(two)], [])
    assert len(plans([str(one)], [])) == 1


@pytest.mark.parametrize(
    "setting",
    ["model.width", "model.mlp_ratio", "model.depth", "model.context", "model.heads",
     "train.batch_size", "train.threads", "train.steps"],
)  # fmt: skip
@pytest.mark.parametrize("size", [2**40, 2**63 - 1, 2**70])
def test_a_size_beyond_all_machines_is_refused_before_anything_is_built(tmp_path, setting, size):
    with pytest.raises(UserError) as caught:
        plans([str(write_config(tmp_path, TINY))], [f"{setting}={size}"])
    assert all(line.startswith(f"-s {setting}={size}: ") for line in caught.value.problems)


def test_equal_combinations_are_counted_in_words(tmp_path):
    text = TINY + "sweep: {model.eps: [1e-5, 1e-6]}\n"
    sweep = load_sweep(write_config(tmp_path, text), ["model.placement=none"])
    assert "2 combinations are 1 different run for each seed" in sweep.notes


def printed(tmp_path, sweep, width=200):
    plan = describe(make_plan(load_sweep(write_config(tmp_path, TINY + sweep))))
    console = Console(width=width, file=StringIO(), color_system=None)
    print_plan(plan, console)
    return plan, console.file.getvalue()  # type: ignore[attr-defined]


def test_a_swept_key_that_tells_models_apart_is_a_column(tmp_path):
    plan, text = printed(tmp_path, "sweep: {model.norm: [layernorm, rmsnorm], train.lr: [1, 2]}\n")
    assert [m["settings"] for m in plan["models"]] == [
        {"model.norm": "layernorm"}, {"model.norm": "rmsnorm"},
    ]  # fmt: skip
    rows = text.split("Models\n")[1].splitlines()
    assert rows[0].split()[0] == "norm"
    assert [row.split()[0] for row in rows[1:3]] == ["layernorm", "rmsnorm"]
    assert len(set(rows[1:3])) == 2


def test_precision_is_shown_where_it_differs(tmp_path):
    _, text = printed(tmp_path, "sweep: {train.precision: [fp32, fp64]}\n", width=80)
    rows = text.split("Models\n")[1].splitlines()
    assert "fp32" in rows[1] + rows[2] and "fp64" in rows[1] + rows[2] + rows[3]


def test_models_that_start_alike_share_one_table_and_no_title_twice(tmp_path):
    _, text = printed(
        tmp_path,
        "sweep: {model.depth: [1, 2, 4], train.precision: [fp32, fp64], model.init: [xavier]}\n",
    )
    heads = [line for line in text.splitlines() if line.startswith("Initialisation")]
    assert len(heads) == 1
    assert "1, 2, 4" in next(line for line in text.splitlines() if ".attn.wo" in line)
    assert " ".join(text.split()).count("depth 1, 2, 4") == 2  # fp32 and fp64, once each


def test_cases_are_printed_as_the_combinations_they_are(tmp_path):
    cases = "cases:\n  - {model.depth: 1, train.lr: 1}\n  - {model.depth: 2, train.lr: 2}\n"
    plan, text = printed(tmp_path, cases)
    assert len(plan["combinations"]) == 2
    assert "2 combinations, not every value with every other" in text
    assert "lr 1: depth 1" in text and "lr 2: depth 2" in text
    _, full = printed(tmp_path, "sweep: {model.depth: [1, 2], train.lr: [1, 2]}\n")
    assert "combinations" not in full
