"""A real Ray cluster of two nodes on loopback, which these tests start and stop."""

import json
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

from lnexp.rows import StepRow, header, line
from lnexp.runs.cluster import FileChange, FolderChanges, apply, held
from lnexp.runs.rundir import RunDir
from tests.runs.small import rows, write_config

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
        env = {**ENV, "TMPDIR": self.folder}  # a task that is killed leaves its files there
        with log.open("w") as out:
            node = subprocess.Popen(words, env=env, stdout=out, stderr=out, start_new_session=True)
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
    command = [sys.executable, "-m", "lnexp", "run", str(folder / "small.yaml")]
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


def begun(folder: Path) -> int:
    """Runs in training that the driver holds some rows of."""
    tables = (folder / "small" / "runs").glob("*/steps.csv")
    return sum(path.read_bytes().count(b"\n") > 20 for path in tables)


@pytest.mark.slow
@without_ray
@pytest.mark.parametrize("every", [50, 5000], ids=["with a snapshot", "before any snapshot"])
def test_a_lost_node_changes_no_row(cluster, local, tmp_path, every):
    folder = config(tmp_path / "driver")
    running = begin(
        folder, "--executor", "ray", "--address", cluster.address,
        "-s", f"measure.snapshot_every={every}",
    )  # fmt: skip
    known = snapshots if every == 50 else begun
    wait_for(lambda: known(folder) == 2, "what comes back of either node")
    (folder / "text.txt").unlink()  # what still runs must have got it from the driver
    cluster.kill(cluster.nodes[1])
    where = "from its last snapshot" if every == 50 else "at step 0: no snapshot came back"
    assert f"its node was lost; it starts again {where}" in end(running)
    assert rows(folder) == local


@pytest.mark.slow
@without_ray
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_leaves_at_a_step_and_goes_on_here(cluster, local, tmp_path, number):
    folder = config(tmp_path / "driver")
    running = begin(folder, "--executor", "ray", "--address", cluster.address)
    wait_for(lambda: snapshots(folder) == 2, "a snapshot of either node")
    running.send_signal(number)
    end(running, 130)
    end(begin(folder, "-j", "2"))
    assert rows(folder) == local


@pytest.mark.slow
@without_ray
def test_rows_statuses_and_files_of_eight_runs_are_those_of_local_workers(tmp_path):
    found = []
    for place in (["-j", "2"], ["-j", "2", "--executor", "ray"]):
        folder = tmp_path / place[-1]
        folder.mkdir()
        write_config(folder)
        end(begin(folder, *place))
        runs = folder / "small" / "runs"
        statuses = [json.loads(p.read_text()) for p in sorted(runs.glob("*/status.json"))]
        assert len(statuses) == 8 and all(status.pop("seconds") > 0 for status in statuses)
        names = sorted(str(path.relative_to(runs)) for path in runs.rglob("*"))
        configs = [path.read_text() for path in sorted(runs.glob("*/config.yaml"))]
        found.append((rows(folder), statuses, names, configs))
    assert found[0] == found[1]


@pytest.mark.slow
@without_ray
def test_a_port_that_is_not_rays_is_one_line(tmp_path):
    folder = config(tmp_path / "driver")
    with socket.create_server(("127.0.0.2", 0)) as other:
        address = f"127.0.0.2:{other.getsockname()[1]}"
        said = end(begin(folder, "--executor", "ray", "--address", address), 2)
    assert f"--address {address}: no cluster answers there" in said
    assert len(said.splitlines()) == 1 and not (folder / "small").exists()


def test_a_run_that_starts_anew_leaves_no_row_of_its_first_try(tmp_path):
    node, driver = tmp_path / "node", tmp_path / "driver"
    first = line(header(StepRow)) + "0,of the first try\n" * 9
    for folder in (node, driver):
        folder.mkdir()
        (folder / "steps.csv").write_text(first)
    changes = FolderChanges(node)
    run = RunDir(node).begin("", {})
    apply(driver, changes.take())
    assert (driver / "steps.csv").read_text() == line(header(StepRow))
    run.close()
    with (node / "steps.csv").open("a") as file:
        file.write("0,of the second\n" * 20)
    apply(driver, changes.take())
    assert (driver / "steps.csv").read_bytes() == (node / "steps.csv").read_bytes()


def test_a_run_is_sent_without_plots_and_what_its_readers_keep(tmp_path):
    (tmp_path / "plots").mkdir()
    (tmp_path / ".steps.parquet").write_bytes(b"PAR1")
    (tmp_path / "steps.csv").write_bytes(b"step\n")
    assert held(tmp_path) == {"steps.csv": b"step\n"}


def test_a_folder_is_followed_as_it_grows_and_rows_go_before_the_snapshot(tmp_path):
    node, driver = tmp_path / "node", tmp_path / "driver"
    node.mkdir()
    changes = FolderChanges(node)
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
    assert second == [FileChange("steps.csv", 7, b"1\n")]
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
