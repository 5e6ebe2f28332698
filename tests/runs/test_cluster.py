"""A real Ray cluster of two nodes on loopback, which these tests start and stop."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from lnexp.runs.remote import Change, Changes, apply

from .small import rows, write_config

without_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
LONG = """
question: a test
data: {source: file, path: text.txt}
model: {depth: 2, width: 16, heads: 2, context: 16, init: xavier, dropout: 0.1}
train: {steps: 1200, batch_size: 4, lr: 3e-3}
measure: {level: full, every: 10, eval_every: 100, snapshot_every: 50}
sweep: {model.placement: [pre, post]}
seeds: [0, 1]
"""
ENV = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


def free_port() -> int:
    """Outside of the ports that Ray's workers and the system hand out themselves."""
    for port in random.sample(range(20100, 29900), 50):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.2", port))
            return port
    raise AssertionError("no free port")


class Cluster:
    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="ray")  # short: it holds sockets
        self.port = free_port()
        self.nodes: list[subprocess.Popen] = []
        self.start("--head", f"--port={self.port}", "--node-ip-address=127.0.0.2",
                   "--include-dashboard=false", f"--temp-dir={self.folder}")  # fmt: skip
        self.start(f"--address={self.address}", "--node-ip-address=127.0.0.3")

    @property
    def address(self) -> str:
        return f"127.0.0.2:{self.port}"  # Ray takes 127.0.0.1 for this machine's outer address

    def start(self, *options: str) -> None:
        words = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--num-cpus=1",
                 "--object-store-memory=80000000", *options]  # fmt: skip
        log = Path(self.folder, f"node{len(self.nodes)}.log")
        with log.open("w") as out:
            node = subprocess.Popen(words, env=ENV, stdout=out, stderr=out, start_new_session=True)
        self.nodes.append(node)
        wait_for(lambda: "Ray runtime started" in log.read_text(), log)

    def kill(self, node: subprocess.Popen) -> None:
        """As a power cut would; its processes share its fate."""
        with suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()

    def stop(self) -> None:
        for node in self.nodes:
            self.kill(node)
        wait_for(lambda: not self.processes(), "processes of the cluster")
        shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self) -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found += [words] * (self.folder in words and "raylet" in words)
        return found


def wait_for(there, what, seconds: float = 120) -> None:
    latest = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < latest, f"waited in vain for {what}"
        time.sleep(0.2)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    started = Cluster()
    try:
        yield started
    finally:
        started.stop()


def begin(folder: Path, *words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "lnexp.cli", "run", str(folder / "small.yaml")]
    out = ["-o", str(folder)]
    return subprocess.Popen(
        [*command, *out, *words], env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def end(process: subprocess.Popen, code: int = 0) -> str:
    err = process.communicate(timeout=240)[1]
    assert process.returncode == code, err
    return err


def config(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 100)
    write_config(folder, LONG)
    return folder


def snapshots(folder: Path) -> int:
    """Runs in training that the driver holds a snapshot of."""
    runs = (folder / "small" / "runs").glob("*/checkpoint.pt")
    return sum(not (path.parent / "status.json").exists() for path in runs)


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> dict[str, list[list[str]]]:
    folder = config(tmp_path_factory.mktemp("local"))
    end(begin(folder, "-j", "2"))
    return rows(folder)


@pytest.mark.slow
@without_ray
@pytest.mark.parametrize("lost", [False, True], ids=["whole", "a node is lost"])
def test_the_rows_are_those_of_this_machine_even_when_a_node_is_lost(
    cluster, local, tmp_path, lost
):
    folder = config(tmp_path / "driver")
    running = begin(folder, "--executor", "ray", "--address", cluster.address)
    if lost:
        wait_for(lambda: snapshots(folder) == 2, "a snapshot of either node")
        cluster.kill(cluster.nodes[1])
    said = end(running)
    assert ("its node was lost; it starts again from its last snapshot" in said) == lost
    assert rows(folder) == local


@pytest.mark.slow
@without_ray
def test_an_interrupted_sweep_leaves_at_a_step_and_goes_on_here(cluster, local, tmp_path):
    folder = config(tmp_path / "driver")
    running = begin(folder, "--executor", "ray", "--address", cluster.address)
    wait_for(lambda: snapshots(folder) == 2, "a snapshot of either node")
    running.send_signal(signal.SIGINT)
    end(running, 130)
    end(begin(folder, "-j", "2"))
    assert rows(folder) == local


def test_a_folder_is_followed_as_it_grows_and_rows_go_before_the_snapshot(tmp_path):
    node, driver = tmp_path / "node", tmp_path / "driver"
    node.mkdir()
    changes = Changes(node)
    assert changes.take() == []
    (node / "steps.csv").write_bytes(b"step\n0\n")
    (node / "checkpoint.pt").write_bytes(b"one")
    first = changes.take()
    assert [change.file for change in first] == ["steps.csv", "checkpoint.pt"]
    apply(driver, first)
    with (node / "steps.csv").open("ab") as file:
        file.write(b"1\n")
    (node / "half.tmp").write_bytes(b"no")
    second = changes.take()
    assert second == [Change("steps.csv", 7, b"1\n")]
    apply(driver, second)
    assert (driver / "steps.csv").read_bytes() == b"step\n0\n1\n"
    # Cut on a resume: a new file under the old name, and shorter.
    (node / "cut").write_bytes(b"step\n0\n")
    (node / "cut").replace(node / "steps.csv")
    (node / "checkpoint.pt").unlink()
    apply(driver, changes.take())
    assert (driver / "steps.csv").read_bytes() == b"step\n0\n"
    assert sorted(p.name for p in driver.iterdir()) == ["steps.csv"]
    assert changes.take() == []
