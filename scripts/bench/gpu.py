"""Tokens a second on a GPU: the bare loop, and lnexp's at levels off, light and full with its CSVs.

    .venv/bin/python scripts/bench/gpu.py [ROUNDS]

Blocks of steps are interleaved, time on the clock; every loop reads its loss at every step, so a
step ends when its work is done. A ratio is the median over rounds of paired blocks.
"""

import json
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
import train as bench

SIZES = [(12, 64, 16, 64), (100, 64, 8, 64), (12, 768, 16, 256)]
STEPS = 20  # a block
LOOPS = ("bare", "off", "light", "full")


def tokens_a_second(
    size: tuple[int, int, int, int], corpus: bench.Corpus, rounds: int, device: str
) -> dict[str, list[float]]:
    *_, batch, context = size
    found: dict[str, list[float]] = {name: [] for name in LOOPS}
    with TemporaryDirectory() as folder:
        streams = bench.started(size, corpus, Path(folder), device)
        for turn in range(rounds + 1):
            for name in LOOPS:
                began = perf_counter()
                for _ in range(STEPS):
                    next(streams[name])
                took = perf_counter() - began
                if turn:  # the first warms
                    found[name].append(STEPS * batch * context / took)
    return found


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    if not torch.cuda.is_available():
        print("no CUDA device")
        return
    corpus = bench.load(bench.Data())
    print(f"{torch.cuda.get_device_name()}; tokens a second, of the bare loop's")
    print(f"{'depth x width':>14} {'bare':>12} " + " ".join(f"{n:>20}" for n in LOOPS[1:]))
    results = []
    for size in SIZES:
        found = tokens_a_second(size, corpus, rounds, "cuda")
        cells = []
        for name in LOOPS[1:]:
            ratio = statistics.median(
                a / b for a, b in zip(found[name], found["bare"], strict=True)
            )
            cells.append(f"{statistics.median(found[name]):>12,.0f} ({ratio:.3f})")
        bare = statistics.median(found["bare"])
        print(f"{size[0]:>6} x {size[1]:<5} {bare:>12,.0f} " + " ".join(f"{c:>20}" for c in cells))
        results.append({"size": size, "tokens_a_second": found})
    print(json.dumps({"torch": torch.__version__, "results": results}))


if __name__ == "__main__":
    main()
