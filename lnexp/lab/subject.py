"""What an instrument works on.

Shapes: B batch, T time, V vocabulary.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from lnexp.config.schema import RunConfig
from lnexp.data import Batches, Corpus
from lnexp.model.check import is_norm
from lnexp.model.gpt import GPT
from lnexp.model.init import build
from lnexp.rows import Part
from lnexp.runs.trained import load_trained
from lnexp.train.precision import FORMATS

CPU = torch.device("cpu")
HALVES: tuple[Part, ...] = ("attn", "mlp")


@dataclass(frozen=True)
class Subject:
    """A finished run, its text, and its model on the CPU, whatever it was trained on."""

    folder: Path
    steps_done: int
    config: RunConfig
    corpus: Corpus
    device: str  # that it was trained on

    @property
    def run(self) -> str:
        return self.folder.name

    @cached_property
    def model(self) -> GPT:
        """Final weights in fp64, at evaluation."""
        return load_trained(self.folder).model.double()

    def fresh(self) -> GPT:
        """The weights that it began with, drawn anew from its seed, in fp64. Norms see their batch:
        their running statistics have seen none yet."""
        settings = self.config
        model = build(settings.model, len(self.corpus.vocabulary), settings.seed.init)
        return _seeing(model.to(FORMATS[settings.train.precision].weights).double().eval())

    def windows(self) -> list[tuple[Tensor, Tensor]]:
        """x_BT and y_BT of the validation text, of the training text where there is none."""
        settings = self.config
        batches = Batches(
            self.corpus, settings.train.batch_size, settings.model.context, settings.seed.data, CPU
        )
        return batches.validation() or [batches.draw()]


def norms_training(model: GPT) -> GPT:
    """A copy at evaluation but for its norms, which see the batch as in training: no dropout."""
    return _seeing(deepcopy(model).eval())


def _seeing(model: GPT) -> GPT:
    for module in model.modules():
        if is_norm(module):
            module.train()
    return model


def ratio(one: Tensor | float | None, other: Tensor | float | None) -> float | None:
    """None where one is not measured, or 0 stands below."""
    if one is None or other is None or float(other) == 0:
        return None
    return float(one) / float(other)


def sublayer_norms(model: GPT) -> Iterator[tuple[int, Part, nn.Module]]:
    """(layer, part, norm) of the norm that serves each sublayer, and of the final norm."""
    for layer, block in enumerate(model.blocks):
        for part in HALVES:
            norm = getattr(block, part).serving_norm
            if norm is not None:
                yield layer, part, norm
    if is_norm(model.norm):
        yield len(model.blocks), "norm", model.norm
