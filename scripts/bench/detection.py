"""What checking every step costs: the same loop with and without the two total norms, level off;
and what the autopsy of a failed step costs, in plain steps.

    .venv/bin/python scripts/bench/detection.py [ROUNDS]

Seconds of the processor, one thread.
"""

import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import train as bench
from torch import Tensor

from lnexp.measure import probes
from lnexp.train import flat as flatprobe
from lnexp.train.loop import train
from lnexp.train.state import set_up


def checking(size: tuple[int, int, int, int], corpus: bench.Corpus, rounds: int) -> list[float]:
    """Quartiles of steps with the norms over steps without."""
    measured, constant = probes.total_norm, torch.tensor(1.0)
    ratios = []
    with TemporaryDirectory() as folder:
        stream = bench.lnexp_steps(bench.config(*size, "off"), corpus, Path(folder))
        bench.step(stream)  # warm
        for _ in range(rounds):
            probes.total_norm = flatprobe.total_norm = measured
            checked = bench.step(stream)
            probes.total_norm = flatprobe.total_norm = lambda vectors: constant
            ratios.append(checked / bench.step(stream))
    probes.total_norm = flatprobe.total_norm = measured
    return statistics.quantiles(ratios)


def autopsy(size: tuple[int, int, int, int], corpus: bench.Corpus) -> float:
    """The step that fails over a plain one: an MLP in the middle gives Inf."""
    state = set_up(bench.config(*size, "light"), corpus, "cpu")
    stream = train(state)
    next(stream)  # warm
    plain = statistics.median(bench.step(stream) for _ in range(5))

    def inf(module: object, inputs: object, output: Tensor) -> Tensor:
        return output * float("inf")

    state.model.blocks[size[0] // 2].mlp.body.register_forward_hook(inf)  # type: ignore[union-attr]
    began = bench.process_time()
    assert next(stream).autopsy is not None
    return (bench.process_time() - began) / plain


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    torch.set_num_threads(1)
    corpus = bench.load(bench.Data())
    print(f"{'depth x width':>14} {'with / without norms':>28} {'failed / plain step':>20}")
    for size in bench.SIZES:
        low, middle, high = checking(size, corpus, rounds)
        cell = f"{middle:.3f} [{low:.3f}, {high:.3f}]"
        print(f"{size[0]:>6} x {size[1]:<5} {cell:>28} {autopsy(size, corpus):>20.1f}", flush=True)


if __name__ == "__main__":
    main()
