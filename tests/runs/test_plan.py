"""What a plan refuses and what it says."""

import pytest

from lnexp.commands.plan import plans
from lnexp.errors import UserError
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
