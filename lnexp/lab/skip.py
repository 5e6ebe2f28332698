"""What each block of a trained model is worth: the loss without it."""

from collections.abc import Iterator

import torch
from torch.nn import functional as F

from ..labrows import DepthRow, SkipRow
from .subject import Subject

COUNTS = 0.01  # nat: a block whose skipping changes the loss by more is one that counts


@torch.no_grad()
def skip(subject: Subject) -> Iterator[SkipRow]:
    """Of a chain without residuals, a skipped block hands its input on like any other."""
    whole = _loss(subject, None)
    for block in range(subject.config.model.depth):
        without = _loss(subject, block)
        yield SkipRow(subject.run, subject.steps_done, block, whole, without, without - whole)


def depth(subject: Subject) -> Iterator[DepthRow]:
    changes = [row.change for row in skip(subject)]
    counting = sum(abs(change) > COUNTS for change in changes)
    yield DepthRow(
        run=subject.run,
        steps_done=subject.steps_done,
        blocks=len(changes),
        effective_depth=counting,
        share=counting / len(changes),
        largest_change=max(changes, key=abs),
    )


def _loss(subject: Subject, skipped: int | None) -> float:
    """Mean cross entropy over the validation windows."""
    model = subject.model
    blocks = [block for i, block in enumerate(model.blocks) if i != skipped]
    losses = [
        F.cross_entropy(
            model.head(model.network(model.embed(x_BT), blocks, model.norm)).flatten(0, 1),
            y_BT.flatten(),
            reduction="none",
        )
        for x_BT, y_BT in subject.windows()
    ]
    return float(torch.cat(losses).mean())
