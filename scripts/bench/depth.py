"""Seconds and memory of a training step by depth, with and without activation checkpointing, and
beside them what `lnexp plan` says of the same run.

    python scripts/bench/depth.py [STEPS]

Every case trains in a process of its own, since peak memory never falls. Seconds are of the
processor: what a step takes on a core of its own, whatever else the machine does. STEPS a case
(default 5), of which the first, and the last with its validation, are not timed.
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
import sys
from time import process_time
from pathlib import Path
from lnexp.runs import worker
from lnexp.runs.plan import make_plan
from lnexp.sweep import load_sweep
train, marks = worker.train, []
def timed(state):
    marks.append(process_time())
    for record in train(state):
        marks.append(process_time())
        yield record
worker.train = timed
(run,) = make_plan(load_sweep(Path(sys.argv[1]))).runs
folder = str(Path(sys.argv[1]).parent / "run")
status = worker.train_run(folder, run.config, run.device, run.corpus.sha256)
assert status.status == "finished", status.error
steps = sorted(b - a for a, b in zip(marks[1:-2], marks[2:-1]))
try:
    kib = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
except OSError:
    from resource import RUSAGE_SELF, getrusage
    kib = getrusage(RUSAGE_SELF).ru_maxrss
print(sum(steps) / len(steps), int(kib) * 1024)
"""


def python(*words: str) -> str:
    return subprocess.run([sys.executable, *words], check=True, stdout=-1, text=True).stdout


def case(size: tuple[int, ...], checkpointing: bool, steps: int) -> dict[str, float]:
    depth, width, batch, context = size
    with TemporaryDirectory() as folder:
        config = Path(folder) / "depth.yaml"
        config.write_text(
            f"model: {{depth: {depth}, width: {width}, context: {context}}}\n"
            f"train: {{steps: {steps}, batch_size: {batch}, "
            f"checkpointing: {str(checkpointing).lower()}}}\n"
        )
        seconds, peak = python("-c", CHILD, str(config)).split()
        command = "from lnexp.cli import main; main()"
        said = python("-c", command, "plan", str(config), "--json")
    ((plan,),) = (item["models"] for item in json.loads(said))
    return {
        "seconds": float(seconds),
        "bytes": int(peak),
        "planned_seconds": plan["seconds_per_step"],
        "planned_bytes": plan["bytes"],
    }


def exponent(found: dict[int, float]) -> float:
    """Least-squares slope of ln y over ln depth."""
    points = [(log(depth), log(y)) for depth, y in found.items()]
    x0, y0 = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((x - x0) * (y - y0) for x, y in points) / sum((x - x0) ** 2 for x, _ in points)


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(
        "depth x width  batch context  checkpointing   s/step  planned ratio    MiB  planned ratio"
    )
    rows = []
    for checkpointing in (False, True):
        seconds, memory = {}, {}
        bare = case((1, *SCALING[0][1:]), checkpointing, steps)["bytes"]
        for size in [*SCALING, *OTHERS]:
            row = case(size, checkpointing, steps)
            rows.append({"size": size, "checkpointing": checkpointing, **row})
            depth, width, batch, context = size
            word = str(checkpointing).lower()
            mib, planned = row["bytes"] / 2**20, row["planned_bytes"] / 2**20
            print(
                f"{depth:>5} x {width:<5} {batch:>6} {context:>7}  {word:>13} "
                f"{row['seconds']:8.4f} {row['planned_seconds']:8.4f} "
                f"{row['planned_seconds'] / row['seconds']:5.2f} {mib:6.0f} {planned:8.0f} "
                f"{planned / mib:5.2f}",
                flush=True,
            )
            if size in SCALING:
                seconds[depth], memory[depth] = row["seconds"], row["bytes"] - bare
        print(
            f"exponent over depth {min(seconds)} .. {max(seconds)}: seconds "
            f"{exponent(seconds):.3f}, memory beyond that of one block {exponent(memory):.3f}"
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
