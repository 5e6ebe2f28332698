"""What show --watch draws while a sweep trains."""

import os
import pty
import subprocess
import sys

import numpy as np
import pytest

from lnexp.commands.read import can_print
from lnexp.results.load import load
from lnexp.terminal.live import ASCII_BARS, BARS, chosen, counted, live, spark
from tests.cases.conftest import run_here
from tests.cli import lnexp
from tests.runs.small import write_config

NAN, INF = float("nan"), float("inf")


def test_a_sparkline_goes_from_the_smallest_to_the_largest_in_equal_steps():
    assert spark(np.arange(8.0)) == BARS and spark(-np.arange(8.0)) == BARS[::-1]
    assert spark(10.0 ** np.arange(8), log=True) == BARS
    assert spark(np.arange(8.0), bars=ASCII_BARS) == ASCII_BARS


def test_many_values_are_medians_of_equal_spans_and_few_are_themselves():
    values = np.repeat(np.arange(4.0), 25)
    values[10] = 1e6  # one outlier moves no median
    line = spark(values, width=4)
    assert len(line) == 4 and line[0] == BARS[0] and line[-1] == BARS[-1]
    assert len(spark(np.array([3.0]))) == 1 and spark(np.array([])) == ""


def test_what_is_not_finite_and_what_is_zero_have_letters_of_their_own():
    assert spark(np.array([1.0, NAN, 2.0, INF])) == f"{BARS[0]}x{BARS[-1]}x"
    assert spark(np.array([0.0, 1.0, 10.0]), log=True) == f"0{BARS[0]}{BARS[-1]}"
    assert spark(np.array([0.0, 1.0])) == f"{BARS[0]}{BARS[-1]}"  # a loss of 0 is a height
    assert spark(np.full(3, NAN)) == "xxx" and spark(np.zeros(3), log=True) == "000"


def test_runs_in_training_come_first_and_the_rest_is_counted():
    words = ["learned", "pending", "running", "failed", "stalled", "running"]
    assert chosen(words, 4) == [2, 5, 3, 4] and chosen(words, 99) == [2, 5, 3, 4, 0]
    assert counted(words) == "6 runs: 2 running, 1 failed, 1 pending, 1 learned, 1 stalled."


def test_a_terminal_that_knows_no_blocks_gets_plain_letters():
    assert can_print(BARS, "utf-8") and not can_print(BARS, "ascii")
    assert not can_print(BARS, "no-such-encoding") and can_print(ASCII_BARS, "ascii")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    write_config(folder)
    assert run_here("small.yaml", cwd=folder).code == 0
    return folder / "results" / "small"


def test_every_run_of_a_sweep_that_fits_has_a_line_and_the_others_are_said(results, capsys):
    from rich.console import Console

    Console(width=120).print(live(load(results), 40))
    tall = capsys.readouterr().out
    assert tall.count("12/12") == 8 and "Not shown" not in tall
    Console(width=120).print(live(load(results), 9))
    low = capsys.readouterr().out
    assert low.count("12/12") == 3 and "Not shown: 5 runs" in low


def test_watching_asks_for_a_terminal_and_for_no_other_form(results):
    said = lnexp("show", results, "--watch")
    assert said.code == 2 and "--watch redraws a terminal" in said.err
    said = lnexp("show", results, "--watch", "--json")
    assert said.code == 2 and "--json --watch: write one of them" in said.err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_on_a_terminal_it_ends_with_the_tables_once_nothing_trains(results):
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "lnexp", "show", str(results), "--watch"]
    process = subprocess.Popen(words, stdout=theirs, env={**os.environ, "COLUMNS": "120"})
    os.close(theirs)
    text = b""
    while True:
        try:
            text += os.read(ours, 4096)
        except OSError:  # the other end was closed: the process ended
            break
    os.close(ours)
    assert process.wait() == 0
    assert b"loss so far" in text and b"P(failure)" in text
