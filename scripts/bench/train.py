"""Time of a training step: the bare loop, lnexp's at levels off, light and full with its CSVs, and
the loop that people write (clipping, the norm of every gradient, a print).

    .venv/bin/python scripts/bench/train.py [ROUNDS]

Steps are interleaved, one thread, seconds of the processor, which other work on the
machine changes little; a ratio is the median over rounds of paired steps.
"""

import contextlib
import io
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Literal

import torch
from torch.nn import functional as F

from lnexp.config.schema import Data, Measure, Model, RunConfig, Train
from lnexp.data import Batches, Corpus, load
from lnexp.model.init import build
from lnexp.runs.rundir import RunDir
from lnexp.train.loop import train
from lnexp.train.optim import new_optimizer
from lnexp.train.state import set_up

SIZES = [(12, 64, 16, 64), (6, 128, 16, 64), (100, 32, 8, 32), (100, 64, 8, 64)]
FULL_BATCH = (100, 64, 16, 64)  # the batch of the first two at the depth of the others
Level = Literal["off", "light", "full"]
RATIOS = {
    "off/bare": ("off", "bare"),
    "light/off": ("light", "off"),
    "full/off": ("full", "off"),
    "light/written": ("light", "written"),
}


def config(depth: int, width: int, batch: int, context: int, level: Level) -> RunConfig:
    return RunConfig(
        model=Model(depth=depth, width=width, context=context, init="xavier"),
        train=Train(steps=10**6, batch_size=batch),
        measure=Measure(level=level, eval_every=10**6),
    )


def lnexp_steps(
    cfg: RunConfig, corpus: Corpus, folder: Path, device: str = "cpu"
) -> Iterator[object]:
    with contextlib.closing(RunDir(folder / cfg.measure.level).begin("", {})) as run:
        for record in train(set_up(cfg, corpus, device)):
            run.write(record)
            yield record


def bare_steps(
    cfg: RunConfig, corpus: Corpus, written: bool, device: str = "cpu"
) -> Iterator[object]:
    """Forward, backward, update; `written`: with what people add to watch it."""
    model = build(cfg.model, len(corpus.vocabulary), 0).train().to(device)
    optimizer = new_optimizer(model, cfg.train)
    batches = Batches(corpus, cfg.train.batch_size, cfg.model.context, 0, torch.device(device))
    while True:
        x, y = batches.draw()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        if written:
            norms = [p.grad.norm().item() for p in model.parameters() if p.grad is not None]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with contextlib.redirect_stdout(io.StringIO()):
                print(loss.item(), max(norms))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.item()


def step(stream: Iterator[object]) -> float:
    began = process_time()
    next(stream)
    return process_time() - began


def started(
    size: tuple[int, int, int, int], corpus: Corpus, folder: Path, device: str = "cpu"
) -> dict[str, Iterator[object]]:
    levels: tuple[Level, ...] = ("off", "light", "full")
    own = {level: lnexp_steps(config(*size, level), corpus, folder, device) for level in levels}
    bare = {"bare": False, "written": True}
    cfg = config(*size, "off")
    return own | {name: bare_steps(cfg, corpus, written, device) for name, written in bare.items()}


def timed(streams: dict[str, Iterator[object]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in streams}
    for name in [*streams] * 3:
        step(streams[name])  # warm
    for _ in range(rounds):
        for name in streams:
            times[name].append(step(streams[name]))
    return times


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    torch.set_num_threads(1)
    corpus = load(Data())
    results = []
    print(f"{'depth x width':>14} {'bare ms':>8} " + " ".join(f"{name:>22}" for name in RATIOS))
    for size in [*SIZES, FULL_BATCH]:
        with TemporaryDirectory() as folder:
            times = timed(started(size, corpus, Path(folder)), rounds)
        found: dict[str, object] = {"size": size, "bare_ms": statistics.median(times["bare"]) * 1e3}
        for name, (of, to) in RATIOS.items():
            pairs = sorted(a / b for a, b in zip(times[of], times[to], strict=True))
            found[name] = [statistics.median(pairs), *statistics.quantiles(pairs)[::2]]
        cells = " ".join("{:6.3f} [{:.3f}, {:.3f}]".format(*found[name]) for name in RATIOS)  # type: ignore[misc]
        print(f"{size[0]:>6} x {size[1]:<5} {found['bare_ms']:8.2f} {cells}", flush=True)
        results.append(found)
    print("ratios: median [quartiles]")
    print(json.dumps({"torch": torch.__version__, "rounds": rounds, "results": results}))


if __name__ == "__main__":
    main()
