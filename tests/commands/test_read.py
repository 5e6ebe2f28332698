"""lnexp plot, as a command: what it refuses, and its exit code."""

import os
import subprocess
import sys

import pytest

from lnexp.commands.read import plot
from lnexp.messages import UserError
from tests.results.folders import step_rows, write_points, write_run


@pytest.fixture
def sweep(tmp_path):
    write_points(tmp_path / "s", [("a", 0, {"model.depth": 1})])
    write_run(tmp_path / "s", "a", None, step_rows([4.0, 3.0], [3.2, 3.2]))
    return tmp_path / "s"


@pytest.mark.parametrize("formats", [",", "", " ", ",,"])
def test_no_format_draws_nothing_and_says_so(sweep, formats):
    with pytest.raises(UserError, match="write png, svg, pdf"):
        plot(sweep, None, None, formats, None)


@pytest.mark.parametrize("steps", ["", ",", "-1", "1.5", "9" * 19, "9" * 5000])
def test_steps_that_are_none_are_refused(sweep, steps):
    with pytest.raises(UserError, match="write step numbers"):
        plot(sweep, None, None, "png", steps)


def test_the_exit_code_says_whether_every_picture_was_made(sweep, monkeypatch, capsys):
    from lnexp.figures import plots

    kinds = ",".join(plots.PICTURES)
    assert plot(sweep, None, None, "png,png", "0,999999999999999999", kind=kinds) == 0
    assert len(capsys.readouterr().out.split()) == len(plots.PICTURES)
    monkeypatch.setitem(plots.PICTURES, "loss", lambda sweep: 1 / 0)
    assert plot(sweep, None, None, "png", None) == 1
    assert "loss: this plot failed" in capsys.readouterr().err


def test_a_backend_that_does_not_exist_is_no_matter(sweep):
    code = "import sys; from lnexp.cli import main; sys.argv[0] = 'lnexp'; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "plot", str(sweep), "--format", "png"],
        env=os.environ | {"MPLBACKEND": "garbage"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stderr.startswith("note: s has no ") and done.stderr.count("\n") == 1


def test_only_the_kinds_asked_for_are_drawn_and_no_other_is_spoken_of(sweep, capsys):
    assert plot(sweep, None, None, "png", None, kind=" loss , survival,loss") == 0
    said = capsys.readouterr()
    assert [line.rsplit("/", 1)[1] for line in said.out.split()] == ["loss.png", "survival.png"]
    assert said.err == ""
    with pytest.raises(UserError, match="--kind losses: no kind of plot; there are loss, "):
        plot(sweep, None, None, "png", None, kind="losses")
