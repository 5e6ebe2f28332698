"""How far the other sequences of a batch, its mode and the future reach into a logit.

Shapes: B batch, T time, V vocabulary.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..labrows import BatchRow
from ..measure.forward import rms
from .subject import Subject, norms_training, ratio


def change(one: Tensor, other: Tensor) -> float | None:
    """max |one - other| / RMS of one."""
    return ratio((one - other).abs().max(), rms(one))


@torch.no_grad()
def batch(subject: Subject) -> Iterator[BatchRow]:
    x_BT, _ = subject.windows()[0]

    def training(x: Tensor) -> Tensor:
        return norms_training(subject.model)(x)  # a copy: running statistics move in a forward

    whole, evaluated = training(x_BT), subject.model(x_BT)
    padding_BT = torch.zeros_like(x_BT)
    several = len(x_BT) > 1
    yield BatchRow(
        run=subject.run,
        steps_done=subject.steps_done,
        permuted=change(whole, training(x_BT.flip(0)).flip(0)) if several else None,
        alone=change(whole[:1], training(x_BT[:1])) if several else None,
        alone_eval=change(evaluated[:1], subject.model(x_BT[:1])) if several else None,
        padded=change(whole, training(torch.cat([x_BT, padding_BT]))[: len(x_BT)]),
        train_eval=change(whole, evaluated),
        future=_future(training, x_BT, len(subject.corpus.vocabulary)),
        future_eval=_future(subject.model, x_BT, len(subject.corpus.vocabulary)),
    )


def _future(model: Callable[[Tensor], Tensor], x_BT: Tensor, letters: int) -> float | None:
    if x_BT.shape[1] < 2 or letters < 2:
        return None
    other_BT = x_BT.clone()
    other_BT[:, -1] = (other_BT[:, -1] + 1) % letters
    return change(model(x_BT)[:, :-1], model(other_BT)[:, :-1])
