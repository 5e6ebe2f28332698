"""lnexp run measures the tables that claims read: once, in any number of processes."""

import csv
import shutil
from pathlib import Path

import pytest

from lnexp.config.sweep import load_sweep
from lnexp.lab import measure as lab
from lnexp.lab.instruments import INSTRUMENTS, lines_of
from lnexp.lab.schemas import TABLES, excluded
from lnexp.messages import UserError
from lnexp.rows import header
from lnexp.runs import worker
from lnexp.runs.plan import make_plan
from tests.cases.conftest import run_here
from tests.cli import lnexp
from tests.runs.small import train_here

TEXT = """
question: a test
data: {source: markov, length: 4000}
model: {depth: 2, width: 16, heads: 2, context: 16, init: xavier}
train: {steps: 6, batch_size: 4}
sweep: {model.placement: [pre, none]}
seeds: [0, 1]
claims:
  - id: skipped
    says: x
    expect: {metric: {file: skip, column: change, at: {block: 0}}, op: "<", value: 9}
  - {id: alone, says: x, expect: {metric: batch.csv:alone, op: "<", value: 1e-9}}
  - id: inputs
    says: x
    expect: {metric: {file: norms, column: input_rms, at: {layer: 0, part: mlp}}, op: ">", value: 0}
"""


def write(folder: Path, text: str = TEXT) -> Path:
    path = folder / "small.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "small" / "lab" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    """Trained and measured by two workers; not to be changed."""
    folder = tmp_path_factory.mktemp("lab")
    done = lnexp("run", str(write(folder)), "-o", str(folder), "-j", "2")
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def copied(measured, tmp_path) -> Path:
    """The same, to be changed."""
    shutil.copytree(measured, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_every_table_has_an_instrument_and_begins_with_run_and_steps():
    assert set(INSTRUMENTS) == set(TABLES)
    assert all(header(row)[:2] == ["run", "steps_done"] for row in TABLES.values())


def test_a_run_has_its_rows_in_each_table_and_a_model_without_norms_none_of_theirs(measured):
    assert {p.name for p in (measured / "small" / "lab").iterdir()} == {
        "skip.csv", "batch.csv", "norms.csv",
    }  # fmt: skip
    assert len(table(measured, "skip")) == 4 * 2  # blocks
    assert len(table(measured, "batch")) == 4
    assert len(table(measured, "norms")) == 2 * (2 * 2 + 1)  # pre alone, with the final norm
    assert {row["steps_done"] for row in table(measured, "skip")} == {"6"}
    assert "alone" in lnexp("show", str(measured / "small"), "--claims").out


def test_a_second_call_measures_nothing_and_one_process_gives_the_same_bytes(measured, tmp_path):
    files = sorted((measured / "small" / "lab").iterdir())
    before = [p.read_bytes() for p in files]
    again = run_here(measured / "small.yaml", "-o", measured, cwd=tmp_path)
    assert "measuring" not in again.err and [p.read_bytes() for p in files] == before
    alone = run_here(write(tmp_path), "-o", tmp_path, cwd=tmp_path)
    assert alone.code == 0
    assert [(tmp_path / "small" / "lab" / p.name).read_bytes() for p in files] == before


def test_a_longer_run_is_measured_again_and_others_keep_their_rows(tmp_path):
    words = (write(tmp_path), "-o", tmp_path)
    first = ("-s", "seeds=[0]")
    run_here(*words, *first, cwd=tmp_path)
    run_here(*words, *first, "-s", "train.steps=9", cwd=tmp_path)
    assert {row["steps_done"] for row in table(tmp_path, "skip")} == {"9"}
    run_here(*words, "-s", "seeds=[1]", cwd=tmp_path)
    assert sorted(row["steps_done"] for row in table(tmp_path, "batch")) == ["6", "6", "9", "9"]


def test_an_instrument_that_fails_is_told_and_costs_no_other_row(copied):
    victim = sorted((copied / "small" / "runs").iterdir())[0]
    (victim / "checkpoint.pt").write_bytes(b"damaged")
    (copied / "small" / "lab" / "skip.csv").unlink()
    done = lnexp("run", copied / "small.yaml", "-o", copied, "-j", "1")
    assert done.code == 1
    assert f"lab/skip.csv: {victim.name} not measured: " in done.err
    assert "is damaged" in done.err and "Traceback" not in done.err
    assert len(table(copied, "skip")) == 3 * 2


def test_a_table_of_other_columns_is_made_anew(copied):
    path = copied / "small" / "lab" / "batch.csv"
    good = path.read_text()
    path.write_text("run,steps_done,old\nx,6,1\n")
    run_here("small.yaml", "-o", ".", cwd=copied)
    assert path.read_text() == good


def test_a_run_that_a_bad_value_stopped_has_no_row(tmp_path):
    text = TEXT.replace("batch_size: 4", "batch_size: 4, lr: 1e30")
    done = run_here(write(tmp_path, text), "-o", tmp_path, "-s", "seeds=[0]", cwd=tmp_path)
    assert done.code == 0
    with (tmp_path / "small" / "runs.csv").open(newline="") as file:
        assert {row["verdict"] for row in csv.DictReader(file)} == {"nonfinite"}
    assert not (tmp_path / "small" / "lab").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("measure: {keep: none}", "measure.keep: none leaves nothing to measure lab/skip.csv, "
         "lab/batch.csv, lab/norms.csv by, which a claim reads; write weights"),
        ("measure: {level: off}", None),
    ],
)  # fmt: skip
def test_settings_that_rule_a_table_out_are_refused_before_training(tmp_path, change, said):
    path = write(tmp_path, TEXT + change + "\n")
    if said is None:
        assert load_sweep(path).lab == ["skip", "batch", "norms"]
        return
    with pytest.raises(UserError) as refused:
        load_sweep(path)
    (line,) = refused.value.problems
    assert line.endswith(said) and line.startswith(f"{path}:16: ")


def test_a_profile_needs_forward_readings():
    (problem,) = excluded(["profile"], [{"measure.keep": "none", "measure.level": "light"}])
    assert problem[0] == "measure.level" and problem[1].endswith("write full")


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("skp.csv:change", "skp is no table of lab/; did you mean skip?"),
        ("skip.csv:chnge", "chnge is no column of lab/skip.csv; did you mean change?"),
    ],
)
def test_a_misspelt_table_or_column_is_told_before_training(tmp_path, metric, said):
    path = write(tmp_path, TEXT.replace("batch.csv:alone", metric))
    with pytest.raises(UserError) as refused:
        load_sweep(path)
    assert said in refused.value.problems[0]


def test_the_tables_are_written_whole(tmp_path):
    (tmp_path / "runs").mkdir()
    lab._write(tmp_path, "skip", {"b": ["b,1,0,1,1,0\n"], "a": ["a,1,0,1,1,0\n"]})
    text = (tmp_path / "lab" / "skip.csv").read_text()
    assert text.splitlines()[1:] == ["a,1,0,1,1,0", "b,1,0,1,1,0"]
    assert [p.name for p in (tmp_path / "lab").iterdir()] == ["skip.csv"]


def test_a_text_that_changed_after_training_is_refused(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six seven\n" * 200)
    config = write(
        tmp_path, TEXT.replace("source: markov, length: 4000", "source: file, path: text.txt")
    )
    plan = make_plan(load_sweep(config, ["seeds=[0]", "model.placement=[pre]"]))
    train_here(plan, tmp_path)
    text.write_text("eight nine ten eleven twelve 13\n" * 200)
    run = plan.runs[0]
    where = str(tmp_path / "small" / "runs" / run.name)
    with pytest.raises(RuntimeError, match="the text changed"):
        worker._corpus.cache_clear()
        lines_of("batch", where, run.config, "cpu", run.corpus.sha256)
