"""What a step moves beside the weights, so that it can be made again: dropout's random stream, kept
apart from everything else that draws, and the running statistics of norms."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from lnexp.seeds import derive


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


def copies(buffers: Sequence[Tensor]) -> list[Tensor]:
    return [buffer.clone() for buffer in buffers]


@torch.no_grad()
def fill(buffers: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value)


@contextmanager
def restored(buffers: Sequence[Tensor]) -> Iterator[None]:
    """Afterwards they hold what they hold now."""
    values = copies(buffers)
    try:
        yield
    finally:
        fill(buffers, values)
