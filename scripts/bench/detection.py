"""What checking every step costs: the same loop with and without the two total norms, level off.

.venv/bin/python scripts/bench/detection.py [ROUNDS]
"""

import statistics
import sys

import torch
import train as bench

import lnexp.measure.probes as probes


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    torch.set_num_threads(1)
    corpus = bench.load(bench.Data())
    measured, constant = probes.total_norm, torch.tensor(1.0)
    print(f"{'depth x width':>14} {'with / without':>15}  quartiles")
    for size in bench.SIZES:
        stream = bench.STARTS["off"](*size, corpus)
        bench.block(stream)  # warm
        ratios = []
        for _ in range(rounds):
            probes.total_norm = measured
            checked = bench.block(stream)
            probes.total_norm = lambda vectors: constant
            ratios.append(checked / bench.block(stream))
        low, middle, high = statistics.quantiles(ratios)
        print(f"{size[0]:>6} x {size[1]:<5} {middle:15.3f}  {low:.3f}..{high:.3f}")


if __name__ == "__main__":
    main()
