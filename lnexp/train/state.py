"""All that training changes, and what it needs to go on: weights, moments, batches, dropout's
random stream (kept apart from everything else that draws), the running statistics of norms.

Shapes: B batch, T time, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from lnexp.config.schema import RunConfig
from lnexp.data import Batches, Corpus, unigram_nll
from lnexp.model.check import peak_bytes
from lnexp.model.gpt import GPT
from lnexp.model.init import build
from lnexp.seeds import derive
from lnexp.train.blocks import compiled, copies, fill, recomputed, recomputes, restored
from lnexp.train.optim import new_optimizer
from lnexp.train.precision import FORMATS, Format, LossScale


class DropoutStream:
    """Torch's dropout draws from the global generator: it is lent to this stream for a forward."""

    def __init__(self, rate: float, seed: int, device: torch.device) -> None:
        self.rate, self.device = rate, device
        with torch.random.fork_rng(self._devices()):
            torch.manual_seed(derive(seed, "dropout"))
            self.state = self._read()
        self.marked = self.state

    def mark(self) -> None:
        """A step begins."""
        self.marked = self.state

    @contextmanager
    def again(self) -> Iterator[None]:
        """The draws of the marked step once more; afterwards the stream is where it was."""
        now, self.state = self.state, self.marked
        try:
            yield
        finally:
            self.state = now

    @contextmanager
    def active(self) -> Iterator[None]:
        if self.rate == 0:
            yield
            return
        with torch.random.fork_rng(self._devices()):
            self._write(self.state)
            yield
            self.state = self._read()

    def _devices(self) -> list[torch.device]:
        return [self.device] if self.device.type == "cuda" else []

    def _read(self) -> Tensor:
        if self.device.type == "cuda":
            return torch.cuda.get_rng_state(self.device)
        return torch.get_rng_state()

    def _write(self, state: Tensor) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state, self.device)
        else:
            torch.set_rng_state(state)


class RunningStatistics:
    """A model's buffers: a training forward, and powernorm's backward, move them."""

    def __init__(self, model: nn.Module) -> None:
        self.buffers = list(model.buffers())  # found once: a deep model is slow to walk through
        self.marked: list[Tensor] = []

    def mark(self) -> None:
        """A step begins."""
        self.marked = copies(self.buffers)

    def rewind(self, model: nn.Module) -> None:
        """Put the marked ones into the model or a copy of it in another type."""
        fill(model.buffers(), self.marked)

    def restored(self) -> AbstractContextManager[None]:
        """Whatever is replayed inside, they are afterwards where they were."""
        return restored(self.buffers)


Forward = Callable[[Tensor], Tensor]  # ids BT -> logits BTV


@dataclass
class State:
    config: RunConfig
    model: GPT
    forward: Forward  # the model's as training calls it, compiled where train.compile says so
    recompute: bool  # whether backward computes the blocks again instead of keeping what they made
    optimizer: Optimizer
    batches: Batches
    dropout: DropoutStream
    running: RunningStatistics
    scale: LossScale
    format: Format
    unigram_V: Tensor
    first_bad_step: int | None = None
    stopped: bool = False  # a non-finite value ended the run before its steps were done
    steps_done: int = 0  # rows yielded, the failing one included
    skipped: int = 0  # steps without an update
    seconds: float = 0.0  # of training so far
    seen: set[tuple[str, str]] = field(default_factory=set)  # kind and module of events written

    def eager(self, model: GPT) -> Forward:
        """Its forward with every module's own call, for what listens to them."""
        return _forward(model, model.blocks, self.recompute)

    def losses(self, model: Forward, x_BT: Tensor, y_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy in nats, and what is minimised: with z_loss also z mean(log^2 Z)."""
        with self.dropout.active(), self.format.forward(x_BT.device):
            return self.objective(model, x_BT, y_BT)

    def objective(self, model: Forward, x_BT: Tensor, y_BT: Tensor) -> tuple[Tensor, Tensor]:
        """The same without autocast."""
        logits = model(x_BT).flatten(0, 1)
        loss = F.cross_entropy(logits, y_BT.flatten())
        z_loss = self.config.train.z_loss
        if z_loss == 0:
            return loss, loss
        return loss, loss + z_loss * logits.logsumexp(-1).square().mean()


def _forward(model: GPT, blocks: Iterable[Callable[..., Any]], recompute: bool) -> Forward:
    """The model's, by these calls of its blocks."""
    if recompute:
        blocks = [recomputed(*pair) for pair in zip(model.blocks, blocks, strict=True)]
    return model if blocks is model.blocks else lambda ids_BT: model.through(ids_BT, blocks)


def set_up(config: RunConfig, corpus: Corpus, device: str, memory: float = inf) -> State:
    """Model, optimizer and data stream of a run, each from its own seed; the run may take `memory`
    bytes."""
    torch.set_num_threads(config.train.threads)
    torch.set_flush_denormal(config.train.flush_denormal)
    target = torch.device(device)
    number_format = FORMATS[config.train.precision]
    model = build(config.model, len(corpus.vocabulary), config.seed.init)
    model.to(device=target, dtype=number_format.weights)
    blocks = compiled(model) if config.train.compile else model.blocks
    vocabulary = len(corpus.vocabulary)
    recompute = recomputes(config, memory, lambda: peak_bytes(config, vocabulary))
    return State(
        config=config,
        model=model,
        forward=_forward(model, blocks, recompute),
        recompute=recompute,
        optimizer=new_optimizer(model, config.train),
        batches=Batches(
            corpus, config.train.batch_size, config.model.context, config.seed.data, target
        ),
        dropout=DropoutStream(config.model.dropout, config.seed.data, target),
        running=RunningStatistics(model),
        scale=LossScale(config.train, target),
        format=number_format,
        unigram_V=unigram_nll(corpus, target),
    )
