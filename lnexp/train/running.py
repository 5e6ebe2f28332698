"""Running statistics of norms, kept out of reach of what is only looked at."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class RunningStatistics:
    """A model's buffers: a training forward, and powernorm's backward, move them."""

    def __init__(self, model: nn.Module) -> None:
        self.buffers = list(model.buffers())  # found once: a deep model is slow to walk through
        self.marked: list[Tensor] = []

    def mark(self) -> None:
        """A step begins."""
        self.marked = self._copies()

    def rewind(self, model: nn.Module) -> None:
        """Put the marked ones into the model or a copy of it in another type."""
        with torch.no_grad():
            for buffer, then in zip(model.buffers(), self.marked, strict=True):
                buffer.copy_(then)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever is replayed inside, they are afterwards where they were."""
        now = self._copies()
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, then in zip(self.buffers, now, strict=True):
                    buffer.copy_(then)

    def _copies(self) -> list[Tensor]:
        return [buffer.clone() for buffer in self.buffers]
