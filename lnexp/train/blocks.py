"""How training calls a model's blocks: compiled, or computed again in backward.

The calls stand beside the model, not in it: its modules keep their names, so snapshots and rows are
the same with and without. Compiled blocks of one form share a compilation, whatever the depth.
Activation checkpointing computes a block again instead of keeping what its forward made; values,
dropout's draws and running statistics are those of training without, bit for bit.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lnexp.config.schema import RunConfig
from lnexp.model.gpt import GPT

COMPILERS = ("g++", "clang++", "c++", "cl")  # one of them turns what torch writes into code

# Dropout draws from torch's own generator, as without compile; no helper processes of the
# compiler, which a killed worker would leave behind.
OPTIONS = {"fallback_random": True, "compile_threads": 1}


def compile_problem() -> str:
    """Why torch.compile cannot work here, or ''."""
    wanted = os.environ.get("CXX", "")
    if any(shutil.which(name) for name in ((wanted,) if wanted else COMPILERS)):
        return ""
    looked = f"CXX is {wanted}, which is not there" if wanted else f"none of {', '.join(COMPILERS)}"
    return f"torch.compile needs a C++ compiler ({looked}); install one, or write compile: false"


def compiled(model: GPT) -> list[Callable[..., Any]]:
    """The blocks' calls, each compiled when it is first made."""
    # Blocks may differ in a constant (layernorm scaling's sqrt(l)): each form is compiled once.
    # Above torch's own limit the rest would silently run as if compile were off.
    limits = {"recompile_limit": 2, "accumulated_recompile_limit": 4}
    for name, forms in limits.items():
        least = forms * len(model.blocks)
        setattr(torch._dynamo.config, name, max(least, getattr(torch._dynamo.config, name)))
    return [torch.compile(block, dynamic=False, options=OPTIONS) for block in model.blocks]


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
        entered = copies(buffers)
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
    with restored(buffers):
        fill(buffers, entered)
        yield


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
