"""B7: equal settings share a folder, others never do; nothing finished is overwritten unasked."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from lnexp.commands.training import Progress
from tests.cases.conftest import run_here
from tests.cli import Said, lnexp
from tests.runs.small import SMALL, files, rows, write_config

TWO_RUNS = SMALL.replace("steps: 12", "steps: 4").replace(", model.dropout: [0.0, 0.1]", "")
TWO_RUNS = TWO_RUNS.replace("seeds: [0, 1]", "seeds: [0]")


@dataclass(frozen=True)
class Started:
    folder: Path
    first: Said
    second: Said


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> Started:
    """The same sweep started twice: the second time while the first trains."""
    folder = tmp_path_factory.mktemp("twice")
    write_config(folder, TWO_RUNS)
    second: list[Said] = []

    class Meddler(Progress):
        def running(self, names):
            if not second:
                second.append(lnexp("run", "small.yaml", cwd=folder))
            super().running(names)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lnexp.commands.training.Progress", Meddler)
        first = lnexp("run", "small.yaml", "-j", 1, cwd=folder)
    return Started(folder, first, second[0])


def test_a_second_start_is_refused_and_told_who_holds_the_sweep(started):
    assert started.second.code == 2 and started.second.out == ""
    assert f"in use by process {os.getpid()} on " in started.second.err


def test_the_first_start_ends_as_if_it_had_been_alone(started):
    assert started.first.code == 0, started.first.err
    runs = started.folder / "results" / "small" / "runs"
    assert len(list(runs.glob("*/status.json"))) == 2
    for name, table in rows(started.folder / "results").items():
        steps = [int(row[0]) for row in table[1:]]
        assert steps == sorted(steps), name  # one writer
        assert name.endswith("events.csv") or set(steps) == {0, 1, 2, 3}


def test_another_config_of_the_same_name_leaves_what_is_there(started):
    results = started.folder / "results"
    before = files(results / "small" / "runs")
    other = write_config(started.folder, "name: small\n" + TWO_RUNS, "other.yaml")
    said = lnexp("run", other, "-s", "model.placement=[pre]", cwd=started.folder)
    assert said.code == 0 and "1 run on disk, no longer in this config" in said.err
    assert files(results / "small" / "runs") == before
    assert (results / "small" / "sweep.1.yaml").is_file()


def test_only_force_trains_again_and_the_rows_are_the_same(started):
    results = started.folder / "results"
    before, old = rows(results), files(results / "small" / "runs")
    assert run_here("small.yaml", "--force", cwd=started.folder).code == 0
    new = files(results / "small" / "runs")
    assert rows(results) == before and new.keys() == old.keys()
    assert all(new[name][0] > old[name][0] for name in new)


@pytest.mark.parametrize("blocked", ["out", "out/small"])
def test_a_file_where_results_should_go_is_kept_and_said_in_a_line(tmp_path, blocked):
    write_config(tmp_path, TWO_RUNS)
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).write_text("mine")
    said = lnexp("run", "small.yaml", "-o", "out", cwd=tmp_path)
    assert said.code == 2 and "out/small: results cannot go there: " in said.err
    assert "Traceback" not in said.err and (tmp_path / blocked).read_text() == "mine"


def test_equal_values_are_one_run_and_near_equal_ones_two(names):
    same = TWO_RUNS.replace("sweep: {", "sweep: {model.eps: [1e-5, 0.00001, 1.0e-5], ")
    assert len(names(same)) == 2
    near = "sweep: {train.lr: [0.001, 0.0010001, 0.0010000000000000002], "
    assert len(set(names(TWO_RUNS.replace("sweep: {", near)))) == 6


AXES = """sweep:
  model.placement: [pre, post, none, sandwich, output]
  model.norm: [layernorm, layernorm_plain, rmsnorm]
  model.eps: [1e-5, 1e-12]
  model.residual: [true, false]
  train.lr: [1e-3, 1e-300, 0.1]
"""


def test_every_folder_of_a_grid_is_its_own_on_every_file_system(names):
    text = SMALL.splitlines()[2:4]
    found = names("\n".join([*text, AXES, "seeds: {init: [0, 1], data: [7, 123456789012345678]}"]))
    assert len(found) == (4 * 3 * 2 + 1) * 2 * 3 * 4
    assert len({name.casefold() for name in found}) == len(found)  # Windows and macOS fold case
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name) for name in found)


@pytest.mark.parametrize("key", ["sweep: {", "cases: [{"])
def test_a_colon_in_a_value_never_reaches_a_name(tmp_path, key):
    folder = tmp_path / "12:30 läuft"
    folder.mkdir()
    (folder / "a:b.txt").write_text("abc" * 99)
    end = "}" if key.startswith("sweep") else "}]"
    value = "['a:b.txt']" if key.startswith("sweep") else "'a:b.txt'"
    text = "model: {context: 8}\ndata: {source: file}\n"
    write_config(folder, f"{text}{key}data.path: {value}{end}", "a:b.yaml")
    said = lnexp("run", "a:b.yaml", "--dry-run", cwd=folder)
    assert said.code == 0 and ":" not in said.out
    assert "the results of 'a:b' go to the name a_b" in said.err
