"""B1 to B4: what YAML 1.1 would guess at is what was meant, or a line that says what to write."""

from pathlib import Path

import pytest
import yaml

from lnexp.config.document import parse
from lnexp.config.hints import TOP, describe
from lnexp.config.rules import DEFAULTS
from lnexp.config.schema import KEYS, SECTIONS
from lnexp.config.sweep import load_sweep
from lnexp.figures.canvas import house_style
from lnexp.figures.drawing import SweepFrames
from lnexp.figures.plots import PICTURES
from lnexp.messages import MOST, UserError
from lnexp.results.load import load
from tests.cases.conftest import run_here
from tests.cli import lnexp
from tests.runs.small import write_config

INTEGERS = [key for key in KEYS if describe(key).startswith("a whole number")]
REALS = [key for key in KEYS if describe(key).startswith("a number")]
CHOICES = [key for key in KEYS if describe(key).startswith("one of")]


def written(key: str, value: str) -> str:
    section, _, leaf = key.partition(".")
    return f"{section}:\n  {leaf}: {value}\n"


def problems(folder: Path, text: str) -> tuple[str, ...]:
    with pytest.raises(UserError) as caught:
        load_sweep(write_config(folder, text))
    return caught.value.problems


# ---------------------------------------------------------------------- B1: 1e-5 is a number

NUMBERS = """
data: {source: markov, length: 2e3}
model: {depth: 1e0, width: 8, heads: 1, context: 8}
train: {steps: 4e0, batch_size: 2, lr: 3e-4}
sweep: {model.eps: [1E-3, 1e-12, 1e-5, 1.0e-5, 0.00001]}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, str]:
    """The sweep's folder, and what `lnexp run` said beside the table."""
    folder = tmp_path_factory.mktemp("numbers")
    write_config(folder, NUMBERS)
    said = run_here("small.yaml", cwd=folder)
    assert said.code == 0, said.err
    return folder / "results" / "small", said.err


def test_equal_numbers_in_other_spellings_train_once_and_it_is_said(trained):
    sweep, said = trained
    assert "small.yaml:5: model.eps: 1e-05 is listed 3 times and runs once" in said
    assert len(list((sweep / "runs").iterdir())) == 3


def test_what_a_run_leaves_on_disk_is_numbers_to_every_yaml_reader(trained):
    sweep, _ = trained
    for reader in (yaml.safe_load, lambda text: parse(text, "f").value):
        echoed = reader((sweep / "sweep.yaml").read_text())
        assert echoed["sweep"]["model.eps"] == [1e-3, 1e-12, 1e-5, 1e-5, 1e-5]
        assert echoed["train"] == {"steps": 4, "batch_size": 2, "lr": 3e-4}
        configs = [reader(p.read_text()) for p in (sweep / "runs").glob("*/config.yaml")]
        assert {config["model"]["eps"] for config in configs} == {1e-3, 1e-12, 1e-5}
        assert {type(config["train"]["steps"]) for config in configs} == {int}


def test_the_legend_lists_numbers_by_size_and_not_as_text(trained):
    results = load(trained[0])
    frames = results.runs, results.steps(), results.layers()
    with house_style():
        axes = PICTURES["loss"](SweepFrames(*frames, results.axes["small"], name="small")).axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    shown = [label.split(":")[0] for label in labels if label.startswith("eps")]
    assert shown == ["eps 1e-12", "eps 1e-05", "eps 0.001"]


@pytest.mark.parametrize("spelling", ["5e-1", "5E-1", "50.0e-2", ".5", "+0.5", "0.50"])
def test_every_key_that_takes_a_number_takes_it_in_every_spelling(tmp_path, spelling):
    for key in REALS:
        for text in (written(key, spelling), f"sweep: {{{key}: [{spelling}]}}"):
            (point,) = load_sweep(write_config(tmp_path, text, f"{key}.yaml")).points
            assert point.config.settings()[key] in (0.5, DEFAULTS[key]), key  # default: idle here


def test_an_override_reads_numbers_like_the_file(planned):
    plan = planned(NUMBERS, "-s", "train.lr=[1e-3,0.001,2E-3]", "-s", "train.steps=1e3")
    assert plan["axes"]["train.lr"] == [0.001, 0.002]
    assert {model["steps"] for model in plan["models"]} == {1000}


# ---------------------------------------------------------------- B2: no, off, on, none


@pytest.mark.parametrize("word", ["no", "off", "None", "", "~", "true", "[]"])
def test_a_word_that_is_no_choice_never_becomes_the_default(tmp_path, word):
    for key in CHOICES:
        choices = describe(key)
        if word.lower() in choices.removeprefix("one of ").split(", "):
            continue
        (line,) = problems(tmp_path, written(key, word))
        read = "is a list" if word == "[]" else word if word not in ("", "~") else "is empty"
        assert line.startswith(f"{tmp_path / 'small.yaml'}:2: {key}: {read}"), line
        assert f"write {choices}" in line


@pytest.mark.parametrize("word", ["no", "none", "None", "", "off"])
def test_no_norm_is_led_to_the_placement_without_norms(refused, word):
    (line,) = refused(f"model:\n  norm: {word}\n")
    assert line.startswith("small.yaml:2: model.norm: ")
    assert line.endswith("for no norm write model.placement: none")


@pytest.mark.parametrize(
    "text",
    [
        "measure: {level: off}",
        "measure: {level: 'off'}",
        "sweep: {measure.level: [light, off]}",
        "cases: [{measure.level: light}, {measure.level: Off}]",
    ],
)
def test_off_is_a_level_of_measuring_wherever_it_is_written(tmp_path, text):
    sweep = load_sweep(write_config(tmp_path, text))
    assert sweep.points[-1].config.measure.level == "off"
    again = write_config(tmp_path, yaml.safe_dump(sweep.document), "again.yaml")
    assert load_sweep(again).points == sweep.points


def test_off_is_a_level_of_measuring_on_the_command_line_too(planned):
    assert planned(NUMBERS, "-s", "measure.level=[light,off]")["axes"]["measure.level"] == [
        "light",
        "off",
    ]


@pytest.mark.parametrize("yes, no", [("on", "off"), ("yes", "no"), ("True", "FALSE")])
def test_every_switch_takes_every_word_for_on_and_off(tmp_path, yes, no):
    switches = [key for key in KEYS if describe(key) == "true or false"]
    assert "model.residual" in switches
    for key in switches:
        sweep = load_sweep(write_config(tmp_path, f"sweep: {{{key}: [{yes}, {no}]}}"))
        assert sweep.axes[key] == [True, False]
        for text in ('"false"', "0", "1", "y", "none"):
            (line,) = problems(tmp_path, written(key, text))
            assert text in line and "true or false" in line


# ------------------------------------------------------- B3: duplicate and misspelt keys

WRONG_KEYS = {
    "twice": ("model:\n  eps: 1e-5\n  eps: 1e-6\n", ":3: model.eps: is written twice", "line 2"),
    "dashed": ("train:\n  learning-rate: 1\n", ":2: train.learning-rate", "train.lr"),
    "at the top": ("seeds: [0]\nlr: 1e-3\n", ":2: lr: no such key here", "train.lr"),
    "swept": ("sweep:\n  dept: [2, 4]\n", ":2: dept: no such key", "model.depth"),
    "in a case": ("cases:\n- {model.dept: 2}\n", ":2: model.dept: no such key", "model.depth"),
    "a tab": ("model:\n\tdepth: 2\n", ":2:1: a tab", "spaces"),
    "no yaml": ("model: {depth: 2\ntrain: 3\n", ":2:6: a bracket that is not closed", "line 1"),
}


@pytest.mark.parametrize("case", WRONG_KEYS)
def test_a_wrong_key_ends_the_command_with_its_line_and_the_key_that_was_meant(refused, case):
    text, where, what = WRONG_KEYS[case]
    (line,) = refused(text)
    assert line.startswith(f"small.yaml{where}") and what in line


def test_the_command_line_refuses_a_wrong_key_too(refused):
    (line,) = refused("seeds: [0]", "-s", "model.dept=[2,4]")
    assert "-s model.dept=[2,4]: no such key; did you mean model.depth?" in line


def test_every_key_with_a_slip_of_the_hand_is_refused_and_led_back(tmp_path):
    wrong = [f"{key}{key[-1]}" for key in KEYS] + [f"{key[:-2]}{key[-1]}{key[-2]}" for key in KEYS]
    slips = [slip for slip in wrong if slip not in KEYS]
    lines = []
    for start in range(0, len(slips), MOST):
        some = slips[start : start + MOST]
        skipped = "\n" * start  # each slip in a line of its own
        lines += problems(tmp_path, f"sweep:\n{skipped}" + "".join(f"  {s}: [1]\n" for s in some))
    assert len(lines) == len(slips) > 90
    led = [line for line in lines if "did you mean" in line or "at the top" in line]
    assert len(led) > 0.95 * len(lines)
    for number, (slip, line) in enumerate(zip(slips, lines, strict=True), start=2):
        assert line.startswith(f"{tmp_path / 'small.yaml'}:{number}: {slip}: no such key")


def test_every_key_in_a_section_that_is_not_its_own_is_refused_with_its_own(tmp_path):
    for key in KEYS:
        section, _, leaf = key.partition(".")
        for other in SECTIONS:
            if other != section:
                (line,) = problems(tmp_path, f"{other}: {{{leaf}: 1}}")
                assert f"{other}.{leaf}: no such key; did you mean {key}?" in line
        (line,) = problems(tmp_path, f"{leaf}: 1")
        assert f"{leaf}: no such key here; write {leaf} under {section}: ({key})" in line


def test_every_key_written_twice_is_refused_with_both_lines(tmp_path):
    for key in KEYS:
        section, _, leaf = key.partition(".")
        (line,) = problems(tmp_path, f"{section}:\n  {leaf}: 1\n  {leaf}: 1\n")
        assert f":3: {key}: is written twice, first in line 2" in line
    for key in TOP:
        (line,) = problems(tmp_path, f"{key}: 1\n{key}: 1\n")
        assert f":2: {key}: is written twice, first in line 1" in line


# --------------------------------------------------------------------- B4: other integers


@pytest.mark.parametrize(
    "text",
    ["010", "08", "1:30", "1_000", "0x10", "0o10", "6.0", "true", "yes", "-2", '"4"', ".nan"],
)
def test_every_key_that_takes_a_whole_number_takes_no_guess(tmp_path, text):
    for key in INTEGERS:
        for place in (written(key, text), f"sweep:\n  {key}: [{text}]\n"):
            (line,) = problems(tmp_path, place)
            assert line.startswith(f"{tmp_path / 'small.yaml'}:2: {key}: {text} "), line
            assert "write a whole number, at least" in line


@pytest.mark.parametrize(
    "text", ["sweep: {model.depth: []}", "seeds: []", "seeds: {data: []}", "cases: []"]
)
def test_an_empty_list_is_nothing_to_run(refused, text):
    (line,) = refused(text)
    assert "nothing to run: the list is empty" in line


def test_an_empty_list_for_a_single_value_says_where_lists_go(refused):
    (line,) = refused("model: {depth: []}")
    assert "model.depth: is a list" in line and "several values go under sweep:" in line


def test_what_is_listed_twice_runs_once_and_is_said_once(tmp_path):
    write_config(tmp_path, NUMBERS.replace("1.0e-5, 0.00001", "1e-5") + "seeds: [1, 1, 0x1]")
    said = lnexp("run", "small.yaml", "--dry-run", cwd=tmp_path)
    assert said.code == 2 and "0x1 " in said.err
    write_config(tmp_path, NUMBERS + "seeds: [1, 1, 1]")
    said = lnexp("run", "small.yaml", "--dry-run", cwd=tmp_path)
    assert said.code == 0 and len(said.out.split()) == 3
    assert said.err.count("seeds: 1 is listed 3 times and runs once") == 1


def test_every_whole_number_may_be_written_with_an_exponent(tmp_path):
    for key in INTEGERS:
        value = 200 if key == "data.length" else 2
        text = written(key, "2e2" if value == 200 else "2e0")
        text += "  heads: 2\n" if key == "model.width" else ""
        (point,) = load_sweep(write_config(tmp_path, text)).points
        read = point.config.settings()[key]
        assert type(read) is int and read in (value, DEFAULTS[key]), key  # default: idle here
