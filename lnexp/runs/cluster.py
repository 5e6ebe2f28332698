"""Runs on a Ray cluster: one task a run; this process alone writes results.

A node trains a run into a folder of its own, whose files go to the driver as they grow, so it needs
no folder in common with it. A run whose node is lost goes on elsewhere from the last snapshot that
came back, bit for bit.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any

from lnexp import __version__
from lnexp.config.schema import Data, RunConfig
from lnexp.data import Corpus
from lnexp.files import write_whole
from lnexp.messages import UserError, say
from lnexp.records import Status
from lnexp.runs import stop
from lnexp.runs.local import Crew, Executor, share
from lnexp.runs.plan import PlannedRun
from lnexp.runs.worker import record_failure, train_run

POLL_SECONDS = 0.5
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
LOST_SECONDS = 60.0  # for the cluster to notice that a node is gone
TRIES = 4  # nodes that one run may lose
LAST = ("checkpoint.pt", "status.json")  # what they say must be covered by the rows sent before


@dataclass(frozen=True)
class FileChange:
    """The file is its first `offset` bytes and then these; None: it is gone."""

    file: str
    offset: int
    content: bytes | None


@dataclass(frozen=True)
class Order:
    """What a node needs to train a run: nothing of the driver's disk."""

    name: str
    config: RunConfig
    device: str
    sha256: str
    version: str  # of the driver's lnexp
    held: Mapping[str, bytes]  # the run's files as the driver has them
    gpus: float = 0.0  # that the cluster gives the run

    def may_take(self) -> float:
        """On this node, beside as many runs of its kind as the cluster puts there."""
        if self.device == "cuda":
            return share(self.device, max(1.0, 1 / self.gpus))
        return share(self.device, max(1.0, (os.cpu_count() or 1) / self.config.train.threads))


def train_here(
    order: Order, corpus: Corpus, stopping: Callable[[], bool]
) -> Iterator[list[FileChange] | Status]:
    """The run folder's changes as they come, and at last its status."""
    if order.version != __version__:
        raise RuntimeError(f"lnexp is {__version__} on this node and {order.version} here")
    if stopping():
        yield Status("interrupted")
        return
    with TemporaryDirectory(prefix="lnexp-") as scratch:
        folder = Path(scratch) / order.name
        folder.mkdir()
        for name, content in order.held.items():
            (folder / name).write_bytes(content)
        changes, statuses = FolderChanges(folder), list[Status]()
        work = (str(folder), order.config, order.device, order.sha256, order.may_take(), corpus)
        thread = Thread(target=lambda: statuses.append(train_run(*work)), daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(POLL_SECONDS)
            if not stop.asked() and stopping():
                stop.ask()
            if fresh := changes.take():
                yield fresh
        if fresh := changes.take():
            yield fresh
        yield statuses[0]


class FolderChanges:
    """What is new in a folder since the last look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen = {path.name: _mark(path.stat()) for path in folder.iterdir()}
        # A table that was there before may be emptied by a run that starts anew, and have grown
        # past its old size at the next look; one that this run wrote only grows.
        self.sent = set[str]()

    def take(self) -> list[FileChange]:
        # A snapshot is looked at before the rows and sent after them: rows may be ahead of it.
        late = [change for name in LAST if (change := self._of(name))]
        names = {path.name for path in self.folder.iterdir()} | set(self.seen)
        rest = sorted(name for name in names if name not in LAST and not name.endswith(".tmp"))
        return [change for name in rest if (change := self._of(name))] + late

    def _of(self, name: str) -> FileChange | None:
        path, before = self.folder / name, self.seen.get(name)
        try:
            with path.open("rb") as file:
                now = _mark(os.fstat(file.fileno()))  # of these bytes, whatever the name means next
                if now == before:
                    return None
                grown = name in self.sent and path.suffix == ".csv"
                offset = before[1] if before and grown and now[0] == before[0] else 0
                file.seek(offset)
                content = file.read()
        except FileNotFoundError:
            if self.seen.pop(name, None) is None:
                return None
            return FileChange(name, 0, None)
        self.sent.add(name)
        self.seen[name] = (now[0], offset + len(content), now[2])
        return FileChange(name, offset, content)


def _mark(stat: os.stat_result) -> tuple[int, int, int]:
    """Which file it is, its size, and when it was written."""
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def apply(folder: Path, changes: list[FileChange]) -> None:
    """Make the driver's folder what the node's is; a whole file by rename."""
    folder.mkdir(parents=True, exist_ok=True)
    for change in changes:
        path = folder / change.file
        if change.content is None:
            path.unlink(missing_ok=True)
        elif change.offset == 0:
            write_whole(path, change.content)
        else:
            with path.open("r+b") as file:
                file.seek(change.offset)
                file.truncate()
                file.write(change.content)


def held(folder: Path) -> dict[str, bytes]:
    """A run's files as they are here, without its plots/ and what its readers keep."""
    if not folder.is_dir():
        return {}
    files = (path for path in folder.iterdir() if path.is_file())
    return {
        path.name: path.read_bytes() for path in files if path.suffix not in (".tmp", ".parquet")
    }


def cluster(address: str, gpus_per_run: float, at_once: int | None) -> Executor:
    """Raises UserError where ray is not installed, or nothing answers at the address.

    `address`: host:port of the head; '' starts a cluster of this machine alone. `at_once`: runs at
    a time; None: as many as the cluster has room for.
    """
    if find_spec("ray") is None:
        raise UserError('--executor ray needs the extra: pip install "lnexp[ray]"')
    if address:
        _reachable(address)
    return partial(_on_cluster, address=address, gpus=gpus_per_run, at_once=at_once)


def _reachable(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"--address {address}: write the head's host:port, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UserError(f"--address {address}: no cluster answers there: {why}") from None
    # ray.init waits for minutes at a port that is not Ray's, so another process asks first.
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", f"--address={address}"]
    quiet = subprocess.DEVNULL
    try:
        answer = subprocess.run(
            command, stdin=quiet, stdout=quiet, stderr=quiet, timeout=ANSWER_SECONDS
        )
        why = f"`ray status --address={address}` says why" if answer.returncode else ""
    except subprocess.TimeoutExpired:
        why = f"no answer in {ANSWER_SECONDS:g} seconds"
    if why:
        raise UserError(f"--address {address}: no cluster answers there: {why}")


@contextmanager
def _on_cluster(
    folder: Path, todo: Sequence[PlannedRun], address: str, gpus: float, at_once: int | None
) -> Iterator[Crew]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = import_module("ray")
    _connect(ray, address)
    try:
        room = _room(ray, todo, gpus)
        driver = _Driver(ray, folder, gpus)
        threads = ThreadPoolExecutor(min(len(todo), at_once or room))
        try:
            futures: dict[Future, PlannedRun] = {threads.submit(driver.train, r): r for r in todo}
            yield Crew(futures, driver.stop)
        finally:
            driver.end()
            threads.shutdown(cancel_futures=True)
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    # A head on loopback is not reached from this machine's other addresses.
    host = address.rpartition(":")[0]
    here = {"_node_ip_address": host} if host.startswith("127.") else {}
    where = {"address": address} if address else {"include_dashboard": False}
    ours = signal.getsignal(signal.SIGTERM)  # Ray sets its own, which ends the process at once
    try:
        ray.init(**where, **here, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"--executor ray: {first}") from None
    finally:
        signal.signal(signal.SIGTERM, ours)


def _room(ray: Any, todo: Sequence[PlannedRun], gpus: float) -> int:
    """How many runs the cluster has room for at a time. Raises UserError where it has for none."""
    if not gpus and any(run.device == "cuda" for run in todo):
        raise UserError("--executor ray: train.device is cuda: give --gpus-per-run, such as 0.25")
    threads = max(run.config.train.threads for run in todo)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fits = [
        # 1 // 0.1 is 9: a tenth is a little more than a tenth.
        min(n.get("CPU", 0) // threads, n.get("GPU", 0) / gpus + 1e-9 if gpus else inf) // 1
        for n in nodes
    ]
    if not sum(fits):
        wanted = f"{threads} CPU" + (f" and {gpus:g} GPU" if gpus else "")
        raise UserError(f"--executor ray: no node of the cluster has the {wanted} that a run needs")
    return int(sum(fits))


class Flag:
    """On the driver's node: whether runs are to leave at their next step boundary."""

    def __init__(self) -> None:
        self.up = False

    def ask(self) -> None:
        self.up = True

    def asked(self) -> bool:
        return self.up


def _task(order: Order, corpus: Corpus, flag: Any) -> Iterator[Any]:
    """On a node: its id, then the run's changes and status."""
    ray = import_module("ray")
    arrays = {name: getattr(corpus, name).copy() for name in ("train", "val", "letter_frequencies")}
    corpus = replace(corpus, **arrays)  # what Ray hands out is read-only

    def stopping() -> bool:
        try:
            return ray.get(flag.asked.remote(), timeout=5)
        except Exception:  # the driver is gone or slow: its silence stops nothing
            return False

    yield ray.get_runtime_context().get_node_id()
    yield from train_here(order, corpus, stopping)


class _Driver:
    """Sends runs out and writes what comes back; a thread a run."""

    def __init__(self, ray: Any, folder: Path, gpus: float) -> None:
        self.ray, self.folder, self.gpus = ray, folder, gpus
        here = ray.get_runtime_context().get_node_id()
        affinity = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        self.flag = (
            ray.remote(Flag)
            .options(num_cpus=0, scheduling_strategy=affinity(here, soft=False))
            .remote()
        )
        self.corpora: dict[Data, Any] = {}
        self.streams: dict[str, Any] = {}
        self.lock, self.ended = Lock(), False

    def stop(self) -> None:
        self.flag.ask.remote()

    def end(self) -> None:
        """Whatever still trains is killed; what came back stays."""
        with self.lock:
            self.ended = True
            for stream in self.streams.values():
                with suppress(Exception):
                    self.ray.cancel(stream, force=True)

    def train(self, run: PlannedRun) -> Status:
        path = self.folder / "runs" / run.name
        for left in reversed(range(TRIES)):
            nodes: list[str] = []
            try:
                return self._follow(run, path, nodes.append)
            except self.ray.exceptions.RayTaskError as error:
                why = f"{type(error.cause).__name__}: {error.cause}"
                return record_failure(path, why, f"{error}\n")
            except self.ray.exceptions.RayError as error:
                if self.ended:
                    return Status("interrupted")
                if nodes and not self._lost(nodes[0]):
                    why = "the worker process died (out of memory?)"
                    return record_failure(path, why, f"{error}\n")
                if left:
                    has_snapshot = (path / "checkpoint.pt").exists()
                    start = (
                        "from its last snapshot"
                        if has_snapshot
                        else "at step 0: no snapshot came back"
                    )
                    say(f"{run.name}: its node was lost; it starts again {start}")
        why = f"{TRIES} nodes were lost under it"
        return record_failure(path, why, f"{why}\n")

    def _follow(self, run: PlannedRun, path: Path, began: Callable[[str], None]) -> Status:
        name, config = run.name, run.config
        sha256 = run.corpus.sha256
        order = Order(name, config, run.device, sha256, __version__, held(path), self.gpus)
        task = self.ray.remote(_task).options(
            num_cpus=config.train.threads, num_gpus=self.gpus, max_retries=0
        )
        with self.lock:
            if self.ended:
                return Status("interrupted")
            stream = task.remote(order, self._corpus(run), self.flag)
            self.streams[name] = stream
        try:
            for reference in stream:
                item = self.ray.get(reference)
                if isinstance(item, str):
                    began(item)
                elif isinstance(item, Status):
                    return item
                else:
                    apply(path, item)
        finally:
            with self.lock:
                del self.streams[name]
        raise self.ray.exceptions.RaySystemError("the stream ended before the run did")

    def _corpus(self, run: PlannedRun) -> Any:
        """Each text goes to the cluster once."""
        data = run.config.data
        if data not in self.corpora:
            self.corpora[data] = self.ray.put(run.corpus)
        return self.corpora[data]

    def _lost(self, node: str) -> bool:
        """Whether a node is gone; the cluster takes a while to know."""
        latest = monotonic() + LOST_SECONDS
        while monotonic() < latest and not self.ended:
            alive = {n["NodeID"] for n in self.ray.nodes() if n["Alive"]}
            if node not in alive:
                return True
            sleep(1.0)
        return False
