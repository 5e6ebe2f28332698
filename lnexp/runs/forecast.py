"""How long a run will take: a few steps of shallow models of its shape, timed here. Time is linear
in depth (scripts/bench/depth.py)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from statistics import median
from time import perf_counter, process_time

import torch

from lnexp.config.schema import RunConfig
from lnexp.data import Corpus
from lnexp.model.check import step_flops
from lnexp.train.loop import train, validation_loss
from lnexp.train.precision import FORMATS, product_rate
from lnexp.train.state import set_up

SECONDS = 4.0  # for all shapes of a plan together
DEPTHS = (1, 6)
STEPS = 3  # at least, after a first one that counts for nothing
ENOUGH = 0.2  # seconds of steps, where they are short
REACHED = 0.2  # of the machine's rate in products, by a step of small matrices


@dataclass(frozen=True)
class Pace:
    step: float  # seconds
    validation: float

    def seconds(self, config: RunConfig) -> float:
        """Of a whole run on a core of its own, set-up not counted."""
        steps, measure = config.train.steps, config.measure
        validations = 0 if measure.level == "off" else -(-steps // measure.eval_every)
        return steps * self.step + validations * self.validation


class Stopwatch:
    """The pace of each shape once, as long as there is time left."""

    def __init__(self) -> None:
        self.left = SECONDS
        self.timed: dict[str, list[Pace]] = {}

    def pace(self, config: RunConfig, corpus: Corpus, device: str, recompute: bool) -> Pace | None:
        """None: timing it takes longer than what is left, or it is compiled first."""
        depth = config.model.depth
        shallow = [_at(config, min(d, depth), recompute) for d in DEPTHS]
        shape = repr((shallow, corpus.sha256, device))
        if shape not in self.timed:
            if config.train.compile or _least(shallow, corpus, device) > self.left:
                return None
            began = perf_counter()
            self.timed[shape] = _timed(shallow, corpus, device)
            self.left -= perf_counter() - began
        first, last = self.timed[shape]
        return Pace(
            at_depth(depth, first.step, last.step),
            at_depth(depth, first.validation, last.validation),
        )


def _at(config: RunConfig, depth: int, recompute: bool) -> RunConfig:
    """The same shape as it is timed: nothing is learned, and no validation comes in between."""
    settings = {
        "steps": 10**9, "lr": 0.0, "checkpointing": recompute, "on_nonfinite": "continue",
        "warmup": 0, "schedule": "constant", "max_seconds": inf,
    }  # fmt: skip
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"depth": depth}),
            "train": config.train.model_copy(update=settings),
            "measure": config.measure.model_copy(update={"eval_every": 10**9}),
            "seed": type(config.seed)(),
        }
    )


def _least(shallow: list[RunConfig], corpus: Corpus, device: str) -> float:
    """Seconds that timing takes, by the products alone."""
    products = FORMATS[shallow[0].train.precision].products
    flops = sum(step_flops(c, len(corpus.vocabulary)) for c in shallow) * (1 + STEPS)
    return flops / (REACHED * product_rate(products, device))


def _timed(shallow: Sequence[RunConfig], corpus: Corpus, device: str) -> list[Pace]:
    """Their steps in turn, so that whatever slows the machine meets each of them."""
    threads = torch.get_num_threads()
    # On one core its own time, whatever else the machine does meanwhile.
    alone = device == "cpu" and shallow[0].train.threads == 1
    clock: Callable[[], float] = process_time if alone else perf_counter

    def timed(work: Callable[[], object]) -> float:
        began = clock()
        work()
        return clock() - began

    try:
        states = [set_up(config, corpus, device) for config in shallow]
        steps = [train(state) for state in states]
        rounds = [[timed(partial(next, s)) for s in steps]]
        while len(rounds) <= STEPS or sum(map(sum, rounds)) < ENOUGH:
            rounds.append([timed(partial(next, s)) for s in steps])
        paces = zip(*rounds[1:], strict=True)
        validations = [timed(partial(validation_loss, state)) for state in states]
        return [Pace(median(p), v) for p, v in zip(paces, validations, strict=True)]
    finally:
        torch.set_num_threads(threads)


def at_depth(depth: int, first: float, last: float) -> float:
    """On the line through what the two depths took."""
    shallow, deep = DEPTHS
    if depth <= deep:
        return last
    return last + (depth - deep) * max(0.0, last - first) / (deep - shallow)
