"""--executor: what is refused before anything runs, in one line."""

import subprocess
import sys

import pytest

from lnexp.runs import cluster

from ..cli import lnexp
from .small import write_config


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--executor slurm", "--executor slurm: write local or ray"),
        ("--address 10.0.0.1:6379", "--address goes with --executor ray"),
        ("--gpus-per-run 0.5", "--gpus-per-run goes with --executor ray"),
        ("--executor ray --gpus-per-run -1", "--gpus-per-run -1: write a number, 0 or more"),
        ("--executor ray --address here", "write the head's host:port, such as 10.0.0.1:6379"),
        ("--executor ray --address 127.0.0.1:1", "no cluster answers there"),
    ],
)
def test_a_wrong_place_is_one_line_and_exit_2(tmp_path, monkeypatch, words, said):
    monkeypatch.setattr(cluster, "find_spec", lambda name: True)
    done = lnexp("run", write_config(tmp_path), "-o", tmp_path / "out", *words.split())
    assert done.code == 2 and said in done.err and len(done.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    done = lnexp("run", write_config(tmp_path), "-o", tmp_path / "out", "--executor", "ray")
    assert done.code == 2
    assert done.err == '--executor ray needs the extra: pip install "lnexp[ray]"\n'


def test_ray_is_not_imported_where_it_is_not_used():
    code = "import sys, lnexp.cli, lnexp.runs.cluster; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
