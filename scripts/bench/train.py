"""Time of a training step: the bare loop, lnexp's at levels off, light and full, and the loop that
people write (clipping, the norm of every gradient, a print).

    .venv/bin/python scripts/bench/train.py [ROUNDS]

Blocks of steps are interleaved, one thread; a ratio is the median over rounds of paired blocks.
"""

import contextlib
import io
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from time import perf_counter

import torch
from torch.nn import functional as F

from lnexp.config import Data, Measure, Model, RunConfig, Train
from lnexp.data import Batches, Corpus, load
from lnexp.model.init import build
from lnexp.train.loop import train
from lnexp.train.optim import new_optimizer
from lnexp.train.state import set_up

SIZES = [(12, 64, 16, 64), (24, 32, 8, 64), (6, 128, 16, 64), (100, 32, 8, 32)]
STEPS = 6  # a block


def config(depth: int, width: int, batch: int, context: int, level: str) -> RunConfig:
    return RunConfig(
        model=Model(depth=depth, width=width, context=context, init="xavier"),
        train=Train(steps=10**6, batch_size=batch),
        measure=Measure(level=level, eval_every=10**6),
    )


def lnexp_steps(cfg: RunConfig, corpus: Corpus) -> Iterator[object]:
    return train(set_up(cfg, corpus, "cpu"))


def bare_steps(cfg: RunConfig, corpus: Corpus, written: bool) -> Iterator[object]:
    """Forward, backward, update; `written`: with what people add to watch it."""
    model = build(cfg.model, len(corpus.vocabulary), 0).train()
    optimizer = new_optimizer(model, cfg.train)
    batches = Batches(corpus, cfg.train.batch_size, cfg.model.context, 0, torch.device("cpu"))
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


def block(stream: Iterator[object]) -> float:
    began = perf_counter()
    for _ in range(STEPS):
        next(stream)
    return (perf_counter() - began) / STEPS


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    torch.set_num_threads(1)
    corpus = load(Data())
    results = []
    print(f"{'depth x width':>14} {'bare ms':>8} " + " ".join(f"{n:>9}" for n in NAMES[1:]))
    for depth, width, batch, context in SIZES:
        streams: dict[str, Iterator[object]] = {
            name: start(depth, width, batch, context, corpus) for name, start in STARTS.items()
        }
        for stream in streams.values():
            block(stream)  # warm
        times: dict[str, list[float]] = {name: [] for name in NAMES}
        for _ in range(rounds):
            for name in NAMES:
                times[name].append(block(streams[name]))
        ratios = {
            name: statistics.median(a / b for a, b in zip(times[name], times["bare"], strict=True))
            for name in NAMES
        }
        spread = statistics.quantiles([t / statistics.median(times["bare"]) for t in times["bare"]])
        bare = statistics.median(times["bare"]) * 1e3
        print(f"{depth:>6} x {width:<5} {bare:8.2f} "
              + " ".join(f"{ratios[n]:9.3f}" for n in NAMES[1:])
              + f"   bare quartiles {spread[0]:.3f}..{spread[2]:.3f}")  # fmt: skip
        results.append({"depth": depth, "width": width, "bare_ms": bare, **ratios})
    print(json.dumps({"torch": torch.__version__, "rounds": rounds, "results": results}))


def start_lnexp(level: str) -> Callable[..., Iterator[object]]:
    return lambda d, w, b, c, corpus: lnexp_steps(config(d, w, b, c, level), corpus)


def start_bare(written: bool) -> Callable[..., Iterator[object]]:
    return lambda d, w, b, c, corpus: bare_steps(config(d, w, b, c, "off"), corpus, written)


STARTS: dict[str, Callable[..., Iterator[object]]] = {
    "bare": start_bare(False),
    "off": start_lnexp("off"),
    "light": start_lnexp("light"),
    "full": start_lnexp("full"),
    "written": start_bare(True),
}
NAMES = list(STARTS)

if __name__ == "__main__":
    main()
