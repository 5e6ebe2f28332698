"""What a plan refuses and what it says."""

import json
from io import StringIO

import pytest
from rich.console import Console

from lnexp.commands.plan import describe, print_plan
from lnexp.config.schema import Data, Model, RunConfig
from lnexp.config.sweep import load_sweep
from lnexp.data import load
from lnexp.messages import UserError
from lnexp.model.check import peak_bytes
from lnexp.runs import forecast, local
from lnexp.runs import local as machine
from lnexp.runs.execute import run_plan
from lnexp.runs.forecast import Pace, Stopwatch
from lnexp.runs.plan import make_plan, plans
from tests.cases.conftest import NoPool
from tests.runs.small import rows, write_config

MARKOV = Data(source="markov", length=900)
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


def test_time_is_of_all_runs_and_says_how_it_was_found(tmp_path):
    plan, text = printed(tmp_path, "train: {steps: 7}\nmeasure: {level: off}\nseeds: [0, 1]\n")
    (model,) = plan["models"]
    assert model["seconds"] == pytest.approx(2 * 7 * model["seconds_per_step"])
    assert "each on a core of its own, from steps of shallow models timed now" in text
    assert "no time for" not in text


def test_time_beyond_six_blocks_lies_on_the_line_through_what_was_timed(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(forecast, "process_time", lambda: 3 * next(clock))  # 3 s whatever is done
    config = RunConfig(data=MARKOV, model=Model(depth=2, width=8, heads=1, context=8))
    watch = Stopwatch()
    assert watch.pace(config, load(MARKOV), "cpu", False) == Pace(3, 3)
    (timed,) = watch.timed.values()
    deep = config.model_copy(update={"model": config.model.model_copy(update={"depth": 106})})
    assert watch.pace(deep, load(MARKOV), "cpu", False) == Pace(3, 3)
    assert forecast.at_depth(106, timed[0].step, 8.0) == 8 + 100 * 1
    assert forecast.at_depth(3, 3.0, 8.0) == 8


def test_what_would_take_too_long_to_time_is_left_out_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(forecast, "SECONDS", 0.0)
    plan, text = printed(tmp_path, "sweep: {model.depth: [1, 2]}\n")
    assert [m["seconds"] for m in plan["models"]] == [None, None]
    assert "no time for 2 of 2 models" in text


def test_auto_computes_again_what_does_not_fit_and_the_plan_says_what_it_would_take(
    tmp_path, monkeypatch
):
    few, _ = printed(tmp_path, "")
    assert few["models"][0]["checkpointing"] == "off"
    monkeypatch.setattr(machine, "memory", lambda device: 1e6)
    plan, text = printed(tmp_path, "")
    (model,) = plan["models"]
    assert model["checkpointing"] == "each block"
    assert model["bytes"] <= model["bytes_without_checkpointing"] == few["models"][0]["bytes"]
    assert "computes each block again (train.checkpointing); keeping what it made would" in text


def test_a_run_is_given_its_share_of_the_machine_and_records_what_it_did(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "ProcessPool", NoPool)
    plan = make_plan(load_sweep(write_config(tmp_path, TINY + "train: {steps: 2}\n")))
    (run,) = plan.runs
    needs = peak_bytes(run.config, len(run.corpus.vocabulary))
    for whole, done in ((2 * needs, "off"), (needs, "each block")):
        monkeypatch.setattr(machine, "memory", lambda device, whole=whole: whole)
        run_plan(plan, tmp_path / done, jobs=1)
        env = tmp_path / done / "small" / "runs" / run.name / "env.json"
        assert json.loads(env.read_text(encoding="utf-8"))["checkpointing"] == done
    assert machine.share("cpu", 4) == pytest.approx(machine.share("cpu", 1) / 4)
    assert rows(tmp_path / "off") == rows(tmp_path / "each block")
