"""Time of whole sweeps: one job against two, against one process of two threads, and tiny runs on
more jobs than there are cores.

    .venv/bin/python scripts/bench/sweep.py [ROUNDS]

Each figure is that of `lnexp run` from its first moment to its last. Rounds are interleaved; a
ratio is the median over rounds. Starting, planning and judging take some 7 seconds whatever the
jobs: more than a minute of training outweighs that, half a minute does not.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

CONFIG = """
data: {{source: markov, length: 100000}}
model: {{depth: {depth}, width: {width}, heads: 4, context: 64, init: xavier}}
train: {{steps: {steps}, batch_size: 16}}
seeds: [{seeds}]
"""
# Name -> depth, width, steps, runs; then what is compared: (name, sweep, options).
SWEEPS = {"blocks": (12, 64, 160, 6), "tiny": (1, 16, 200, 12)}
CASES = (
    ("1 job", "blocks", ("-j", "1")),
    ("2 jobs", "blocks", ("-j", "2")),
    ("1 job of 2 threads", "blocks", ("-j", "1", "-s", "train.threads=2")),
    ("tiny, 1 job", "tiny", ("-j", "1")),
    ("tiny, 4 jobs", "tiny", ("-j", "4")),
)
RATIOS = (
    ("1 job / 2 jobs (at least 1.7)", "1 job", "2 jobs"),
    ("2 threads / 2 jobs (at least 1.2)", "1 job of 2 threads", "2 jobs"),
    ("tiny: 4 jobs / 1 job (at most 1.5)", "tiny, 4 jobs", "tiny, 1 job"),
)


def tell(name: str, values: list[float], unit: str) -> None:
    middle, low, high = statistics.median(values), min(values), max(values)
    print(f"{name:<36} {middle:7.2f} {unit:<6} ({low:.2f} to {high:.2f})")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    times: dict[str, list[float]] = {name: [] for name, *_ in CASES}
    with TemporaryDirectory() as folder:
        for name, (depth, width, steps, runs) in SWEEPS.items():
            seeds = ", ".join(map(str, range(runs)))
            text = CONFIG.format(depth=depth, width=width, steps=steps, seeds=seeds)
            (Path(folder) / f"{name}.yaml").write_text(text)
        for i in range(rounds):
            for name, sweep, options in CASES:
                out = str(Path(folder) / f"{i}-{name}")
                words = ["-m", "lnexp", "run", f"{sweep}.yaml", "-o", out, *options]
                began = perf_counter()
                subprocess.run(
                    [sys.executable, *words], cwd=folder, check=True, capture_output=True
                )
                times[name].append(perf_counter() - began)
    print(f"{os.cpu_count()} cores, {rounds} rounds")
    for name, seconds in times.items():
        tell(name, seconds, "s")
    ratios = {
        name: [a / b for a, b in zip(times[over], times[under], strict=True)]
        for name, over, under in RATIOS
    }
    for name, found in ratios.items():
        tell(name, found, "times")
    print(json.dumps({"seconds": times, "ratios": ratios}))


if __name__ == "__main__":
    main()
