"""Seconds and memory of a training step by depth, with and without activation checkpointing, and
beside them what `lnexp plan` says of the same run.

    python scripts/bench/depth.py [STEPS]

Every case trains in a process of its own, since peak memory never falls. Seconds are of the
processor: what a step takes on a core of its own, whatever else the machine does. STEPS a case
(default 4), of which the first is not timed; no validation.
"""

import json
import subprocess
import sys
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory

SCALING = [(depth, 64, 8, 64) for depth in (10, 30, 100, 300, 1000)]
OTHERS = [(12, 64, 16, 64), (6, 128, 16, 64), (100, 32, 8, 32)]  # depth, width, batch, context

CHILD = """
import ctypes, sys
from time import process_time
from pathlib import Path
from lnexp.runs import worker
from lnexp.runs.plan import make_plan
from lnexp.sweep import load_sweep
class Heap(ctypes.Structure):  # of glibc, malloc/malloc.h
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap
def in_use():
    heap = libc.mallinfo2()
    return heap.uordblks + heap.hblkhd
train, set_up, marks, held = worker.train, worker.set_up, [], []
def counted(*given):
    held.append(in_use())
    return set_up(*given)
def timed(state):
    scale = state.scale.scale
    def scaled(objective):  # the forward is over, all that backward needs is there
        held.append(in_use())
        return scale(objective)
    state.scale.scale = scaled
    marks.append(process_time())
    for record in train(state):
        marks.append(process_time())
        yield record
worker.train, worker.set_up = timed, counted
(run,) = make_plan(load_sweep(Path(sys.argv[1]))).runs
folder = str(Path(sys.argv[1]).parent / "run")
status = worker.train_run(folder, run.config, run.device, run.corpus.sha256)
assert status.status == "finished", status.error
took = [b - a for a, b in zip(marks[1:], marks[2:])]
try:
    kib = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
except OSError:
    from resource import RUSAGE_SELF, getrusage
    kib = getrusage(RUSAGE_SELF).ru_maxrss
print(sum(took) / len(took), int(kib) * 1024, max(held) - held[0])
"""


def python(*words: str) -> str:
    return subprocess.run([sys.executable, *words], check=True, stdout=-1, text=True).stdout


def written(folder: Path, size: tuple[int, ...], checkpointing: bool, steps: int) -> Path:
    depth, width, batch, context = size
    word = str(checkpointing).lower()
    config = folder / f"{depth}-{width}-{word}" / f"{depth}_{width}_{word}.yaml"
    config.parent.mkdir()
    config.write_text(
        "data: {val_fraction: 0}\n"
        f"model: {{depth: {depth}, width: {width}, context: {context}}}\n"
        f"train: {{steps: {steps}, batch_size: {batch}, checkpointing: {word}}}\n"
    )
    return config


def planned(configs: list[Path]) -> list[dict]:
    """What `lnexp plan` says of each."""
    said = python("-c", "from lnexp.cli import main; main()", "plan", *map(str, configs), "--json")
    return [model for item in json.loads(said) for model in item["models"]]


def measured(config: Path) -> tuple[float, int, int]:
    """Seconds a step; bytes of the process at most; bytes that the run holds after a forward."""
    seconds, peak, held = python("-c", CHILD, str(config)).split()
    return float(seconds), int(peak), int(held)


def exponent(found: dict[int, float]) -> float:
    """Least-squares slope of ln y over ln depth."""
    points = [(log(depth), log(y)) for depth, y in found.items()]
    x0, y0 = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((x - x0) * (y - y0) for x, y in points) / sum((x - x0) ** 2 for x, _ in points)


def tell(sizes: list[tuple[int, ...]], configs: list[Path], checkpointing: bool) -> list[dict]:
    rows, seconds, memory = [], {}, {}
    for size, config, plan in zip(sizes, configs, planned(configs), strict=True):
        depth, width, batch, context = size
        took, peak, held = measured(config)
        expected, mib, room = plan["seconds_per_step"], peak / 2**20, plan["bytes"] / 2**20
        print(
            f"{depth:>5} x {width:<5} {batch:>6} {context:>7}  {str(checkpointing).lower():>13} "
            f"{took:8.4f} {expected:8.4f} {expected / took:5.2f} {mib:6.0f} {room:8.0f} "
            f"{room / mib:5.2f}",
            flush=True,
        )
        rows.append({
            "size": size, "checkpointing": checkpointing, "seconds": took, "bytes": peak,
            "held": held, "planned_seconds": expected, "planned_bytes": plan["bytes"],
        })  # fmt: skip
        if size in SCALING:
            seconds[depth], memory[depth] = took, held
    print(
        f"exponent over depth {min(seconds)} .. {max(seconds)}: seconds "
        f"{exponent(seconds):.3f}, what a run holds after a forward {exponent(memory):.3f}"
    )
    return rows


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    print(
        "depth x width  batch context  checkpointing   s/step  planned ratio    MiB  planned ratio"
    )
    rows = []
    with TemporaryDirectory() as folder:
        for checkpointing in (False, True):
            sizes = [*SCALING, *OTHERS]
            configs = [written(Path(folder), size, checkpointing, steps) for size in sizes]
            rows += tell(sizes, configs, checkpointing)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
