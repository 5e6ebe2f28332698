"""Commands as a user types them."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from lnexp import __version__
from lnexp.cli import app
from tests.cases.conftest import run_here
from tests.cli import lnexp
from tests.runs.small import SMALL, files, write_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    write_config(folder)
    said = lnexp("run", "small.yaml", cwd=folder)
    assert said.code == 0, said.err
    return folder


def test_the_commands_and_their_options_are_these():
    """In the order in which --help lists them."""
    commands = get_command(app).commands  # type: ignore[attr-defined]
    options = [
        (name, sorted(o for p in command.params for o in p.opts if o.startswith("-")))
        for name, command in commands.items()
    ]
    assert options == [
        ("run", [
            "--address", "--check", "--dry-run", "--executor", "--extend", "--fail-fast", "--force",
            "--gpus-per-run", "--jobs", "--out", "--retry", "--set", "--steps", "-j",
            "-o", "-s",
        ]),
        ("plan", ["--json", "--set", "-s"]),
        ("plot", ["--by", "--facet", "--format", "--kind", "--size", "--steps", "--style"]),
        ("show", ["--claims", "--csv", "--json", "--tex", "--watch"]),
        ("explain", ["--json"]),
        ("report", ["--html", "--port", "--watch"]),
        ("probe", ["--jobs", "--json", "--out", "--set", "--steps", "-j", "-o", "-s"]),
        ("boundary", [
            "--high", "--jobs", "--json", "--knob", "--low", "--out", "--points", "--ramp",
            "--resolution", "--set", "-j", "-o", "-s",
        ]),
        ("rescue", ["--jobs", "--json", "--out", "--try", "-j", "-o"]),
        ("norm", ["--bias", "--dtype", "--eps", "--gain", "--json", "--norm"]),
        ("sample", ["--length", "--prompt", "--seed", "--temperature"]),
        ("inspect", ["--checkpoint", "--json"]),
        ("import", ["--baseline", "--force", "--map", "--name", "--out", "-o"]),
        ("export", ["--out", "--to", "-o"]),
        ("configs", []),
        ("schema", []),
        ("doctor", ["--json"]),
    ]  # fmt: skip


def test_python_minus_m_lnexp_is_the_same_command():
    words = [sys.executable, "-m", "lnexp", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"lnexp {__version__}\n"


def test_a_run_ends_with_a_verdict_for_every_run_and_cell(trained):
    said = lnexp("run", "small.yaml", cwd=trained)
    assert said.code == 0
    assert "8 runs, 8 finished, 0 to train" in said.err
    assert said.out.count("too_short") >= 8 and "a test" in said.out


def test_running_again_changes_no_file_of_any_run(trained):
    before = files(trained / "results" / "small" / "runs")
    assert lnexp("run", "small.yaml", cwd=trained).code == 0
    assert files(trained / "results" / "small" / "runs") == before


def test_dry_run_names_what_would_train_and_writes_nothing(tmp_path):
    write_config(tmp_path)
    said = lnexp("run", "small.yaml", "--dry-run", cwd=tmp_path)
    assert said.code == 0 and len(said.out.split()) == 8
    assert not (tmp_path / "results").exists()


def test_show_prints_the_same_table_and_the_same_numbers_in_every_form(trained):
    words = ("show", "results/small")
    assert lnexp(*words, cwd=trained).out == lnexp("run", "small.yaml", cwd=trained).out
    data = json.loads(
        lnexp(*words, "--json", cwd=trained).out, parse_constant=lambda name: pytest.fail(name)
    )
    table = list(csv.DictReader(io.StringIO(lnexp(*words, "--csv", cwd=trained).out)))
    assert len(data["runs"]) == len(table) == 8
    for one, other in zip(data["runs"], table, strict=True):
        assert one["run"] == other["run"] and one["end_loss"] == float(other["end_loss"])
    tex = lnexp(*words, "--tex", cwd=trained).out
    assert "tabular" in tex and "too\\_short" in tex


def test_runs_csv_is_made_anew_when_it_is_lost(trained):
    table = trained / "results" / "small" / "runs.csv"
    before = table.read_bytes()
    table.unlink()
    assert lnexp("show", "results/small", cwd=trained).code == 0
    assert table.read_bytes() == before


def test_plots_are_written_headless_whatever_the_backend(tmp_path):
    write_config(tmp_path)
    one = ["-s", "model.placement=[pre]", "-s", "model.dropout=[0.0]", "-s", "seeds=[0]"]
    assert run_here("small.yaml", *one, cwd=tmp_path).code == 0
    said = lnexp("plot", "results/small", cwd=tmp_path, MPLBACKEND="TkAgg", DISPLAY="nowhere:1")
    assert said.code == 0, said.err
    plots = tmp_path / "results" / "small" / "plots"
    assert {p.suffix for p in plots.iterdir()} == {".png", ".svg"}
    assert len(said.out.split()) == len(list(plots.iterdir())) >= 12


def imported_by(words: list[str], cwd: Path) -> set[str]:
    """The packages that `lnexp WORDS` has imported at its end."""
    code = (
        "import sys; from lnexp.cli import main\n"
        f"sys.argv = ['lnexp', *{words!r}]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(); print(*(name for name in sys.modules if '.' not in name))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "words",
    [["--help"], ["show", "results"], ["plot", "results", "--kind", "loss"], ["report", "results"]],
)
def test_reading_never_imports_torch(trained, words):
    assert "torch" not in imported_by(words, trained)


@pytest.mark.parametrize("words", [["--help"], ["show", "results"], ["run", "small.yaml"]])
def test_only_what_judges_a_claim_imports_scipy(trained, words):
    assert "scipy" not in imported_by(words, trained)


def test_plan_shows_norm_parameters_and_init_without_training(tmp_path):
    write_config(tmp_path)
    wide = ["-s", "model.width=512", "-s", "model.init=gpt2", "-s", "model.dropout=[0.0]"]
    said = lnexp("plan", "small.yaml", *wide, cwd=tmp_path)
    assert said.code == 0 and "1,024 parameters each" in said.out
    assert "0.02" in said.out and "0.01" in said.out  # 0.02 / sqrt(2 * 2)
    assert list(tmp_path.iterdir()) == [tmp_path / "small.yaml"]
    (data,) = json.loads(lnexp("plan", "small.yaml", "--json", cwd=tmp_path).out)
    assert data["runs"] == 8 and data["axes"]["model.placement"] == ["pre", "post"]


BAD = {
    "unknown key": (SMALL.replace("depth: 2", "dpeth: 2"), "small.yaml:4: ", "depth"),
    "wrong type": (SMALL.replace("depth: 2", "depth: true"), "small.yaml:4: model.depth", "true"),
    "broken yaml": (SMALL + "\n\tx: [", "small.yaml:", "tab"),
    "no such placement": (SMALL.replace("[pre, post]", "[pre, past]"), "small.yaml:7", "post"),
    "no such text": (
        SMALL.replace("source: markov, length: 4000", "source: file, path: no.txt"),
        "small.yaml:3: data.path",
        "no such file",
    ),
    "too short a text": (SMALL.replace("4000", "110"), "model.context", "largest context"),
    "width and heads": (SMALL.replace("heads: 2", "heads: 3"), "16", "heads"),
    "no cuda here": (SMALL.replace("lr: 3e-3", "device: mps"), "small.yaml:5", "mps"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_before_training_in_a_line_and_touches_nothing(trained, case):
    text, where, what = BAD[case]
    bad = write_config(trained / "results", text)  # beside results that must stay as they are
    before = files(trained / "results")
    said = lnexp("run", bad, cwd=trained)
    assert said.code == 2
    assert where in said.err and what in said.err
    assert "Traceback" not in said.err and 1 <= len(said.err.strip().splitlines()) <= 2
    assert files(trained / "results") == before
    bad.unlink()


@pytest.mark.parametrize(
    "words, what",
    [
        (["run", "nowhere.yaml"], "no such file"),
        (["run", "small.yaml", "-s", "model.dpeth=3"], "model.depth"),
        (["run", "small.yaml", "-s", "model.depth"], "="),
        (["run", "small.yaml", "-j", "0"], "-j 0"),
        (["show", "nowhere"], "nowhere"),
        (["plot", "results/small", "--by", "model.nothing"], "model.nothing"),
        (["plot", "results/small", "--format", "bmp"], "bmp"),
        (["plot", "results/small", "--kind", "heat"], "there are loss, gradient_by_layer"),
        (["plot", "results/small", "--facet", "lr"], "--facet lr: no axis of this sweep"),
        (["plot", "results/small", "--size", "poster"], "write paper or slide"),
        (["plot", "results/small", "--steps", "x"], "--steps x"),
        (["sample", "results"], "no run folder"),
        (["configs", "nothing"], "no shipped experiment"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_is_one_clear_line(trained, words, what):
    said = lnexp(*words, cwd=trained)
    assert said.code == 2 and what in said.err and "Traceback" not in said.err


def test_two_configs_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_config(tmp_path / folder)
    said = lnexp("run", "a/small.yaml", "b/small.yaml", cwd=tmp_path)
    assert said.code == 2 and "both named small" in said.err
    assert not (tmp_path / "results").exists()


def test_python_minus_o_keeps_every_check(tmp_path):
    write_config(tmp_path, SMALL.replace("heads: 2", "heads: 3"))
    said = lnexp("run", "small.yaml", cwd=tmp_path, PYTHONOPTIMIZE="1")
    assert said.code == 2 and "heads" in said.err


def test_a_path_with_spaces_and_accents_works_and_gives_a_plain_name(tmp_path):
    folder = tmp_path / "mes résultats à moi"
    folder.mkdir()
    write_config(folder, SMALL.replace("steps: 12", "steps: 2"), "expérience n° 1.yaml")
    said = lnexp("run", folder / "expérience n° 1.yaml", "-s", "seeds=[0]", "-j", 1, cwd=folder)
    assert said.code == 0, said.err
    (sweep,) = (p for p in (folder / "results").iterdir())
    for path in (folder / "results").rglob("*"):
        assert path.name.isascii() and len(path.name) <= 100 and " " not in path.name
    assert lnexp("show", sweep, cwd=folder).code == 0


def test_accents_print_with_escapes_on_an_ascii_console(tmp_path):
    (tmp_path / "text.txt").write_text("naïve café\n" * 60, encoding="utf-8")
    (tmp_path / "a.yaml").write_text(
        "question: où?\ndata: {source: file, path: text.txt}\n"
        "model: {depth: 1, width: 8, heads: 1, context: 8}\ntrain: {steps: 2, batch_size: 2}\n",
        encoding="utf-8",
    )
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    said = lnexp("run", "a.yaml", cwd=tmp_path, **ascii_only)
    assert said.code == 0, said.err
    (run,) = (tmp_path / "results" / "a" / "runs").iterdir()
    said = lnexp("sample", run, "--length", 200, "--prompt", "é", cwd=tmp_path, **ascii_only)
    assert said.code == 0 and "\\xe9" in said.out


def test_the_shipped_experiments_are_listed_copied_and_valid(tmp_path):
    assert "quickstart" in lnexp("configs").out
    assert lnexp("configs", "quickstart", cwd=tmp_path).code == 0
    assert lnexp("configs", "quickstart", cwd=tmp_path).code == 2  # never overwritten
    assert lnexp("run", "quickstart", "--dry-run", cwd=tmp_path).out.count("-s0-") == 9


def test_a_config_is_valid_under_the_printed_schema():
    schema = json.loads(lnexp("schema").out)
    assert set(schema["properties"]) == {
        "name", "question", "data", "model", "train", "measure", "sweep", "cases", "seeds",
        "claims",
    }  # fmt: skip
    assert schema["$defs"]["Model"]["additionalProperties"] is False


def test_doctor_says_what_works_here():
    facts = json.loads(lnexp("doctor", "--json").out)
    assert facts["precision"]["fp32"] == "works" and facts["jobs"] >= 1


def test_a_failing_run_gives_exit_1_and_names_its_error_file(tmp_path):
    write_config(tmp_path, SMALL.replace("width: 16", "width: 4000000"))
    one = ["-s", "model.dropout=[0.0]", "-s", "seeds=[0]"]
    said = run_here("small.yaml", *one, cwd=tmp_path)
    assert said.code == 1 and said.err.count("failed: ") == 2 and "error.txt" in said.err
    assert "Traceback" not in said.err
    assert said.out.count("failed") >= 2


def test_a_held_sweep_is_refused_and_left_alone(trained):
    from lnexp.runs.rundir import locked

    with locked(trained / "results" / "small"):
        said = lnexp("run", "small.yaml", cwd=trained)
    assert said.code == 2 and f"in use by process {os.getpid()}" in said.err


def test_help_names_every_command():
    out = CliRunner().invoke(app, ["--help"]).output
    for name in ("run", "plan", "plot", "show", "sample", "configs", "schema", "doctor"):
        assert name in out


CLAIMS = """
claims:
  - id: short
    says: Twelve steps are too short to judge.
    where: {model.placement: pre}
    expect: {verdict: too_short, every: true}
  - id: wrong
    says: Twelve steps are enough to learn.
    where: {model.placement: post}
    expect: {verdict: learned, every: true}
"""


def test_claims_are_judged_by_run_show_and_check(tmp_path):
    write_config(tmp_path, SMALL.replace("steps: 12", "steps: 25") + CLAIMS)
    words = ("small.yaml", "-s", "model.dropout=[0.0]", "-s", "train.lr=0")
    said = run_here(*words, cwd=tmp_path)
    assert said.code == 0 and "refuted" in said.out
    said = run_here(*words, "--check", cwd=tmp_path)
    assert said.code == 1 and "refuted" in said.err and "wrong" in said.err
    data = json.loads(lnexp("show", "results/small", "--claims", "--json", cwd=tmp_path).out)
    assert "refuted" in json.dumps(data) and "stated before" in json.dumps(data)
    table = lnexp("show", "results", "--claims", cwd=tmp_path)
    assert table.code == 0 and "short" in table.out and "wrong" in table.out
    assert lnexp("show", "results", "--claims", "--csv", cwd=tmp_path).code == 2


def test_plan_says_which_claims_the_seeds_cannot_decide(tmp_path):
    claim = CLAIMS.replace("every: true", 'share: "> 0.5"')
    write_config(tmp_path, SMALL + claim)
    said = lnexp("plan", "small.yaml", cwd=tmp_path).out
    assert "seeds" in said and "cannot decide" in said


def test_a_faulty_claim_ends_before_training_with_its_line(tmp_path):
    write_config(tmp_path, SMALL + CLAIMS.replace("verdict: learned", "verdict: lerned"))
    said = lnexp("run", "small.yaml", cwd=tmp_path)
    assert said.code == 2 and "learned" in said.err and "small.yaml:1" in said.err


def test_a_sweep_without_claims_says_so(trained):
    assert "no sweep here states a claim" in lnexp("show", "results", "--claims", cwd=trained).out


def test_a_run_that_went_further_than_asked_is_said_and_force_says_what_it_does(tmp_path):
    write_config(tmp_path)
    one = ["-s", "model.placement=[pre]", "-s", "model.dropout=[0.0]", "-s", "seeds=[0]"]
    assert run_here("small.yaml", *one, cwd=tmp_path).code == 0
    said = lnexp("run", "small.yaml", *one, "-s", "train.steps=5", cwd=tmp_path)
    assert "0 to train" in said.err and "up to step 12" in said.err
    said = lnexp("run", "small.yaml", *one, "--force", "--dry-run", cwd=tmp_path)
    assert "--force trains 1 finished run again" in said.err
