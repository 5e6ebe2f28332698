"""--executor: what is refused before anything runs, in one line."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from lnexp.messages import UserError
from lnexp.runs import cluster
from tests.cli import lnexp
from tests.runs.small import write_config


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--executor slurm", "--executor slurm: write local or ray"),
        ("--address 10.0.0.1:6379", "--address goes with --executor ray"),
        ("--gpus-per-run 0.5", "--gpus-per-run goes with --executor ray"),
        ("--executor ray --gpus-per-run -1", "--gpus-per-run -1: write a share"),
        ("--executor ray --gpus-per-run 1.5", "such as 0.25, or a whole number"),
        ("--executor ray --gpus-per-run nan", "such as 0.25, or a whole number"),
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


def a_cluster(*nodes: dict[str, float]) -> SimpleNamespace:
    return SimpleNamespace(nodes=lambda: [{"Alive": True, "Resources": node} for node in nodes])


@pytest.mark.parametrize(("gpus", "room"), [(0.0, 12), (0.1, 8), (0.25, 4), (1.0, 1)])
def test_runs_share_gpus_and_need_their_cpus(gpus, room):
    todo = [SimpleNamespace(device="cpu", config=SimpleNamespace(train=SimpleNamespace(threads=1)))]
    nodes = a_cluster({"CPU": 8, "GPU": 1}, {"CPU": 4})
    assert cluster._room(nodes, todo, gpus) == room
    with pytest.raises(UserError, match="no node of the cluster has the 1 CPU"):
        cluster._room(a_cluster({"CPU": 0.5}), todo, gpus)


def test_ten_runs_of_a_tenth_fit_on_a_gpu():
    todo = [SimpleNamespace(device="cpu", config=SimpleNamespace(train=SimpleNamespace(threads=1)))]
    assert cluster._room(a_cluster({"CPU": 64, "GPU": 1}), todo, 0.1) == 10


def test_a_run_on_a_gpu_must_be_given_one():
    todo = [SimpleNamespace(device="cuda")]
    with pytest.raises(UserError, match="give --gpus-per-run, such as 0.25"):
        cluster._room(a_cluster({"CPU": 8, "GPU": 1}), todo, 0.0)


def test_ray_is_not_imported_where_it_is_not_used():
    code = "import sys, lnexp.cli, lnexp.runs.cluster; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
