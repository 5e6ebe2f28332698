"""What each block of a trained model is worth: the loss without it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lnexp.lab.schemas import DepthRow, SampledSkipRow, SkipRow
from lnexp.lab.subject import Subject
from lnexp.model.gpt import GPT

COUNTS = 0.01  # nat: a block whose skipping changes the loss by more is one that counts
SAMPLED, LETTERS = 16, 128
ENDS: tuple[Literal["start", "end"], ...] = ("start", "end")


@torch.no_grad()
def skip(subject: Subject) -> Iterator[SkipRow]:
    """Of a chain without residuals, a skipped block hands its input on like any other."""
    whole = _loss(subject, None)
    for block in range(subject.config.model.depth):
        without = _loss(subject, block)
        yield SkipRow(subject.run, subject.steps_done, block, whole, without, without - whole)


def depth(subject: Subject) -> Iterator[DepthRow]:
    changes = [row.change for row in skip(subject)]
    beyond = counting(changes)
    yield DepthRow(
        run=subject.run,
        steps_done=subject.steps_done,
        blocks=len(changes),
        effective_depth=beyond,
        share=beyond / len(changes),
        largest_change=max(changes, key=abs),
    )


@torch.no_grad()
def sampled_skip(subject: Subject) -> Iterator[SampledSkipRow]:
    """At most 16 blocks, on at least 128 letters; a block is left out by going on from what stood
    before it, so that no block in front of it is computed again."""
    blocks = spread_blocks(subject.config.model.depth)
    windows = subject.windows()
    windows = windows[: ceil(LETTERS / windows[0][1].numel())]
    x_BT, y_BT = (torch.cat(parts) for parts in zip(*windows, strict=True))

    def loss(model: GPT, through: Sequence[Callable[..., Any]]) -> float:
        return float(F.cross_entropy(model.through(x_BT, through).flatten(0, 1), y_BT.flatten()))

    for at in ENDS:
        model = subject.fresh() if at == "start" else subject.model
        every, before = list(model.blocks), dict[int, tuple[Tensor, ...]]()
        whole = loss(model, [_listening(every[i], i, blocks, before) for i in range(len(every))])
        for block in blocks:
            rest = [_constant(before.pop(block)), *every[block + 1 :]]
            without = loss(model, rest)
            row = subject.run, subject.steps_done, at, block, whole, without, without - whole
            yield SampledSkipRow(*row)


def _listening(
    call: Callable[..., Any], block: int, blocks: Sequence[int], before: dict[int, Any]
) -> Callable[..., Any]:
    """The block, noting what it is given: one stream, or two."""

    def listening(*streams: Tensor) -> Any:
        if block in blocks:
            before[block] = streams
        return call(*streams)

    return listening


def _constant(streams: tuple[Tensor, ...]) -> Callable[..., Any]:
    return lambda *_: streams if streams[1:] else streams[0]


def spread_blocks(depth: int) -> list[int]:
    """All blocks, or 16 of them from the first to the last."""
    count = min(depth, SAMPLED)
    return [round(i * (depth - 1) / max(1, count - 1)) for i in range(count)]


def counting(changes: Iterable[float]) -> int:
    return sum(abs(change) > COUNTS for change in changes)


def _loss(subject: Subject, skipped: int | None) -> float:
    """Mean cross entropy over the validation windows."""
    model = subject.model
    blocks = [block for i, block in enumerate(model.blocks) if i != skipped]
    losses = [
        F.cross_entropy(model.through(x_BT, blocks).flatten(0, 1), y_BT.flatten(), reduction="none")
        for x_BT, y_BT in subject.windows()
    ]
    return float(torch.cat(losses).mean())
