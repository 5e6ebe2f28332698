"""The probe of a model whose parameters lie end to end: what one tensor needs, the same tensor of
all blocks has in the same operation.

Shapes: N elements of all parameters; K blocks, n elements of a tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import RunConfig
from ..measure.forward import ForwardProbe
from ..measure.groups import grouped, matrices
from ..measure.nonfinite import HALF, total_norm
from ..measure.probes import Probe
from ..model.gpt import GPT
from .flat import Flat


@dataclass
class Row:
    """A tensor, or a part of one, of several blocks: equally long, equally far apart."""

    length: int
    offset: int
    stride: int
    which: list[int]  # their positions among all

    def view(self, whole_N: Tensor) -> Tensor:
        """Kn, over the same memory."""
        return whole_N.as_strided((len(self.which), self.length), (self.stride, 1), self.offset)


def rows(pieces: Sequence[tuple[str, int, int]]) -> list[Row]:
    """Of (kind, offset, length)."""
    found: dict[tuple[str, int], list[Row]] = {}
    for position in sorted(range(len(pieces)), key=lambda i: pieces[i][1]):
        kind, offset, length = pieces[position]
        row = found.setdefault((kind, length), [Row(length, offset, 0, [])])[-1]
        apart = offset - row.offset - row.stride * max(0, len(row.which) - 1)
        if len(row.which) < 2:
            row.stride = apart
        elif apart != row.stride:
            row = Row(length, offset, 0, [])
            found[kind, length].append(row)
        row.which.append(position)
    return [row for several in found.values() for row in several]


def kind_of(name: str) -> str:
    """'blocks.3.attn.body.wo.weight' -> 'attn.body.wo.weight'."""
    head, _, inner = name.partition(".")
    return inner.partition(".")[2] if head == "blocks" else name


class FlatProbe(Probe):
    """Its lists of tensors are made once: views of memory that each step writes anew."""

    def __init__(self, model: GPT, config: RunConfig, flat: Flat) -> None:
        named = list(model.named_parameters())
        names, depth = [name for name, _ in named], config.model.depth
        forward = ForwardProbe(model, config.model.norm, config.model.eps, config.measure.sample)
        parts = matrices(names, depth)
        super().__init__(named, grouped(names, depth), config.measure, forward, parts)
        self.memory = flat
        self._offsets = [flat.offset[weight] for weight in self.weights]
        whole = [
            (kind_of(name), at, weight.numel())
            for (name, weight), at in zip(named, self._offsets, strict=True)
        ]
        sliced = []
        for (_, part), i, third in parts:
            _, at, length = whole[i]
            length = length if third is None else length // 3
            sliced.append((part, at + (third or 0) * length, length))
        self._rows, self._slice_rows = rows(whole), rows(sliced)
        # List of tensors -> its rows, and what puts their results in the list's order.
        self._known: dict[int, tuple[list[Tensor], Tensor]] = {}
        self._sliced: dict[int, list[Tensor]] = {}
        self._gradients = self._tensors(flat.gradients_N)
        self._weights = self._tensors(flat.weights_N)
        self._vectors = [gradient.view(-1) for gradient in self._gradients]
        self._kept_N = self._moved_N = flat.weights_N
        self._kept: list[Tensor] = []
        self._moved: list[Tensor] = []

    def _tensors(self, whole_N: Tensor) -> list[Tensor]:
        """The parameters' parts of it, in the order of their names."""
        tensors = [
            whole_N[at : at + weight.numel()].view(weight.shape)
            for at, weight in zip(self._offsets, self.weights, strict=True)
        ]
        slices = super()._slices(tensors) if self.full else []
        self._sliced[id(tensors)] = slices
        for several, of in ((tensors, self._rows), (slices, self._slice_rows)):
            order = torch.tensor([i for row in of for i in row.which], device=whole_N.device)
            self._known[id(several)] = [row.view(whole_N) for row in of], order.argsort()
        return tensors

    def _slices(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return self._sliced[id(tensors)]

    def grads(self) -> list[Tensor]:
        return self._gradients

    def now(self) -> list[Tensor]:
        return self._weights

    def whole(self, grads: Sequence[Tensor], due: bool) -> list[Tensor]:
        return [total_norm(self._vectors)]

    def norms(self, tensors: Sequence[Tensor]) -> Tensor | Sequence[Tensor]:
        if not tensors:
            return []
        views, order = self._known[id(tensors)]
        wide = torch.float32 if views[0].dtype in HALF else None
        norms = [torch.linalg.vector_norm(view_Kn, dim=1, dtype=wide) for view_Kn in views]
        return torch.cat(norms)[order]

    def nonzero(self, grads: Sequence[Tensor]) -> Tensor:
        views, order = self._known[id(grads)]
        # Adding in 32 bits takes half the time of torch's 64.
        counts = [view_Kn.bool().sum(1, dtype=torch.int32) for view_Kn in views]
        return torch.cat(counts)[order]

    def copied(self) -> list[Tensor]:
        if not self._kept:
            self._kept_N = torch.empty_like(self.memory.weights_N)
            self._kept = self._tensors(self._kept_N)
        self._kept_N.copy_(self.memory.weights_N)
        return self._kept

    def updates(self) -> list[Tensor]:
        if not self._moved:
            self._moved_N = torch.empty_like(self.memory.weights_N)
            self._moved = self._tensors(self._moved_N)
        torch.sub(self.memory.weights_N, self._kept_N, out=self._moved_N)
        return self._moved
