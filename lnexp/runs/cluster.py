"""Runs on a Ray cluster: one task a run; this process alone writes results.

Nodes need no folder in common with it. A run whose node is lost goes on elsewhere from the last
snapshot that came back, bit for bit.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from math import inf
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Any

from .. import __version__
from ..config import Data
from ..console import say
from ..data import Corpus
from ..errors import UserError
from .local import Crew, Executor
from .plan import PlannedRun
from .remote import Order, apply, held, train_here
from .rundir import Status
from .worker import record_failure

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
LOST_SECONDS = 60.0  # for the cluster to notice that a node is gone
TRIES = 4  # nodes that one run may lose


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
        found = subprocess.run(
            command, stdin=quiet, stdout=quiet, stderr=quiet, timeout=ANSWER_SECONDS
        )
        why = f"`ray status --address={address}` says why" if found.returncode else ""
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
                    kept = (path / "checkpoint.pt").exists()
                    start = "from its last snapshot" if kept else "at step 0: no snapshot came back"
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
