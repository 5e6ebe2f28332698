"""Activation checkpointing, block by block: backward computes a block again instead of keeping
what its forward made.

Values, dropout's draws and running statistics are those of training without, bit for bit.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..config import RunConfig


def recomputes(config: RunConfig, memory: float, needs: Callable[[], int]) -> bool:
    """Whether a run that may take `memory` bytes, and needs those to keep all, computes its blocks
    again."""
    setting = config.train.checkpointing
    if setting != "auto":
        return setting
    return memory < inf and needs() > memory


def recomputed(block: nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, a block's own or compiled forward, keeping its inputs alone for backward."""
    buffers = list(block.buffers())
    draws = any(getattr(module, "dropout", 0) for module in block.modules())

    def checkpointed(*streams_BTD: Tensor) -> Any:
        entered = [buffer.clone() for buffer in buffers]
        return checkpoint(
            call,
            *streams_BTD,
            use_reentrant=False,
            preserve_rng_state=draws,
            context_fn=lambda: (nullcontext(), _as_entered(buffers, entered)),
        )

    return checkpointed


@contextmanager
def _as_entered(buffers: Sequence[Tensor], entered: Sequence[Tensor]) -> Iterator[None]:
    """The running statistics that the forward began with; afterwards they are where they were."""
    now = [buffer.clone() for buffer in buffers]
    with torch.no_grad():
        for buffer, then in zip(buffers, entered, strict=True):
            buffer.copy_(then)
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, then in zip(buffers, now, strict=True):
                buffer.copy_(then)
