"""Time of a training step at level light, with its CSVs, of runs that train together: how many
times as fast as the same run alone.

    .venv/bin/python scripts/bench/stack.py [ROUNDS]

Blocks of steps are interleaved, one thread, seconds of the processor; a ratio is the median over
rounds of paired blocks.
"""

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import torch

from lnexp.config import Data, Measure, Model, RunConfig, Seed, Train
from lnexp.data import Corpus, load
from lnexp.runs.rundir import RunDir
from lnexp.train.loop import steps
from lnexp.train.stack import Stack
from lnexp.train.state import State, set_up

SIZES = [
    (48, 16, 8, 16), (12, 32, 8, 32), (100, 32, 8, 32), (24, 32, 8, 64), (24, 64, 8, 64),
    (12, 64, 16, 64),
]  # fmt: skip
RUNS = (2, 4, 8)
SECONDS = 0.3  # a block, about


def state(size: tuple[int, int, int, int], seed: int, corpus: Corpus) -> State:
    depth, width, batch, context = size
    config = RunConfig(
        model=Model(depth=depth, width=width, context=context, init="xavier"),
        train=Train(steps=10**6, batch_size=batch),
        measure=Measure(eval_every=10**6),
        seed=Seed(init=seed, data=seed),
    )
    return set_up(config, corpus, "cpu")


def training(states: list[State], folder: Path) -> Iterator[None]:
    """A step of all of them each time."""
    joint = Stack(len(states))
    folders = [RunDir(folder / str(at)).begin("", {}) for at in range(len(states))]
    runs = [steps(one, joint.row(one.model)) for one in states]
    while True:
        joint.make([next(run) for run in runs])  # type: ignore[misc]
        assert joint.trusted
        for run, kept in zip(runs, folders, strict=True):
            kept.write(next(run))  # type: ignore[arg-type]
        yield


def block(stream: Iterator[None], count: int) -> float:
    began = process_time()
    for _ in range(count):
        next(stream)
    return (process_time() - began) / count


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    torch.set_num_threads(1)
    corpus = load(Data())
    print(f"{'depth x width':>14} {'alone ms':>9} " + "".join(f"{f'{n} runs':>20}" for n in RUNS))
    for size in SIZES:
        with TemporaryDirectory() as kept:
            streams = {
                runs: training(
                    [state(size, seed, corpus) for seed in range(runs)], Path(kept, str(runs))
                )
                for runs in (1, *RUNS)
            }
            for stream in streams.values():
                block(stream, 2)  # warm
            count = max(1, round(SECONDS / block(streams[1], 2)))
            times = {runs: list[float]() for runs in streams}
            for _ in range(rounds):
                for runs, stream in streams.items():
                    times[runs].append(block(stream, max(1, count // runs)) / runs)
        cells = ""
        for runs in RUNS:
            pairs = [a / b for a, b in zip(times[1], times[runs], strict=True)]
            low, _, high = statistics.quantiles(pairs)
            cells += f"   {statistics.median(pairs):.2f} [{low:.2f}, {high:.2f}]"
        print(
            f"{size[0]:>6} x {size[1]:<5} {statistics.median(times[1]) * 1e3:9.2f} {cells}",
            flush=True,
        )


if __name__ == "__main__":
    main()
