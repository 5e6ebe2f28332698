"""What is read of a step at each level, before its update and after it, and gathered into rows.

A step goes through a probe so: `listening` around forward and backward; `read` before the update;
`copied` before it and `updated` after it, where it is due; `rows` of the columns of both. Numbers
leave the device twice a step: once before the update, once after it; a reading adds one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from itertools import accumulate
from math import isfinite, nan
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lnexp.config.schema import Measure
from lnexp.measure.forward import Reading
from lnexp.measure.groups import Matrix
from lnexp.measure.nonfinite import (
    StepReading,
    flat_view,
    mended,
    nonfinite_elements,
    norms,
    stacked,
    total,
    total_norm,
    trusted,
)
from lnexp.measure.optimizer import SmallMoments, underflow
from lnexp.rows import Column, EventRow, LayerRows, Layout, Place

UNDERFLOW = 0.5  # share of a block's elements from which on their underflow is an event

# Private names of torch, looked up here alone: one call for a list of tensors.
_foreach_sub: Callable[..., tuple[Tensor, ...]] = getattr(torch, "_foreach_sub")  # noqa: B009
_foreach_sub_: Callable[..., None] = getattr(torch, "_foreach_sub_")  # noqa: B009
_foreach_copy_: Callable[..., None] = getattr(torch, "_foreach_copy_")  # noqa: B009


def fetch(*groups: Tensor | Sequence[Tensor]) -> list[list[float]]:
    """Lists of 0-d tensors, or vectors -> lists of floats, in one transfer a device."""
    filled = [g if isinstance(g, Tensor) else stacked(g) for g in groups if len(g)]
    flat = stacked([group.double() for group in filled], torch.cat).tolist() if filled else []
    ends = list(accumulate(map(len, groups)))
    return [flat[end - len(group) : end] for group, end in zip(groups, ends, strict=True)]


class ForwardReader(Protocol):
    """What listens to the forward pass at level full."""

    @property
    def read(self) -> Sequence[Reading]: ...

    @property
    def silent(self) -> Sequence[tuple[Sequence[str], Tensor]]: ...

    def listening(self) -> AbstractContextManager[None]: ...


class Probe:
    """Reads gradients, weights and updates of tensors by place; forward readings too at level full.

    `groups`: place -> positions in `named`, of which each has a gradient when it is read.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        groups: Mapping[Place, Sequence[int]],
        measure: Measure,
        forward: ForwardReader,
        matrices: Sequence[Matrix] = (),
    ) -> None:
        self.measure = measure
        self.names = [name for name, _ in named]
        self.weights = [p for _, p in named]
        self.sizes = [p.numel() for p in self.weights]
        # Views that updates in place are seen through; made once, since making them takes longer
        # than reading them.
        self.flat = [flat_view(w) for w in self.weights]
        self.groups = groups
        self.matrices = matrices
        self.forward = forward
        self._places = list(groups)
        self._matrix_places = [place for place, *_ in matrices]
        self._layout = Layout()
        self.moved: set[str] = set()  # tensors that an update was seen to change

    @cached_property
    def _elements(self) -> list[int]:
        """Of each place's tensors."""
        return [sum(self.sizes[i] for i in members) for members in self.groups.values()]

    def due(self, step: int) -> bool:
        return self.on and step % self.measure.every == 0

    @property
    def on(self) -> bool:
        return self.measure.level != "off"

    @property
    def full(self) -> bool:
        return self.measure.level == "full"

    @contextmanager
    def listening(self, due: bool) -> Iterator[bool]:
        """Around forward and backward of a step; whether the modules' outputs are read."""
        if not (due and self.full):
            yield False
            return
        with self.forward.listening():
            yield True

    def grads(self) -> list[Tensor]:
        return [cast(Tensor, w.grad) for w in self.weights]

    def now(self) -> list[Tensor]:
        """The weights; an optimizer may have given them other memory."""
        return [w.detach() for w in self.weights]

    def whole(self, grads: Sequence[Tensor], due: bool) -> list[Tensor]:
        """Their total norm in one reduction; empty: made of the tensors' norms, which are read."""
        return [total_norm([g.reshape(-1) for g in grads])]

    def mended(
        self, norms: Sequence[float], tensors: Sequence[Tensor]
    ) -> tuple[list[float], list[int]]:
        """Norms to be trusted, and the tensors whose norm left their type; of sharded tensors those
        of the whole, as with `summed` and `nonfinite`."""
        return mended(norms, tensors)

    def summed(self, counts: list[float]) -> list[float]:
        return counts

    def nonfinite(self, grads: Sequence[Tensor]) -> int:
        return nonfinite_elements(grads)

    def norms(self, tensors: Sequence[Tensor]) -> Tensor | Sequence[Tensor]:
        """Of each of the gradients, the weights, the updates, or of their slices."""
        return norms(tensors)

    def nonzero(self, grads: Sequence[Tensor]) -> Tensor | Sequence[Tensor]:
        """How many elements of each gradient are not 0."""
        return [g.count_nonzero() for g in grads]

    def read(
        self,
        loss: Tensor,
        unigram_loss: Tensor,
        due: bool,
        divisor: float = 1.0,
        scale: float = 1.0,
    ) -> StepReading:
        """Before the update: the step's losses, and the norms of each tensor and of its gradient.
        Gradients are divided by `divisor` where they stay scaled; the stream's were read in a
        backward of `scale` times the loss."""
        grads, full = self.grads(), due and self.full
        weights = self.now() if due else []
        slices, weight_slices = (self._slices(t) if full else [] for t in (grads, weights))
        readings, silent = (self.forward.read, self.forward.silent) if full else ([], [])
        losses, whole, raw, nonzero, parts, of_weights, of_weight_slices, *forward = fetch(
            [loss.detach().double(), unigram_loss],
            self.whole(grads, due),
            self.norms(grads) if due else [],
            self.nonzero(grads) if due else [],
            self.norms(slices),
            self.norms(weights),
            self.norms(weight_slices),
            *(values for *_, values in readings),
            *(counts for _, counts in silent),
        )
        grad_norm, grad_norms, overflowed = whole[0] if whole else nan, list[float](), list[int]()
        if due or not trusted(grad_norm):
            grad_norms, overflowed = self.mended(raw or fetch(self.norms(grads))[0], grads)
        if not trusted(grad_norm):
            grad_norm = total(grad_norms)
        grad_norm, grad_norms = grad_norm / divisor, [norm / divisor for norm in grad_norms]
        columns: list[Column] = []
        if due:
            part_norms = [norm / divisor for norm in self.mended(parts, slices)[0]]
            columns += self._columns("grad_norm", grad_norms, part_norms)
            columns.append(("zero_grad_fraction", self._places, self._empty(nonzero)))
            columns += self._columns(
                "weight_norm",
                self.mended(of_weights, self.weights)[0],
                self.mended(of_weight_slices, weight_slices)[0],
            )
            for (places, field, _), values in zip(readings, forward, strict=False):
                if field == "stream_grad_rms" and scale != 1.0:
                    values = [value / scale for value in values]
                columns.append((field, places, values))
        counted = zip(silent, forward[len(readings) :], strict=True)
        return StepReading(
            loss=losses[0],
            unigram_loss=losses[1],
            norms=grad_norms,
            grad_norm=grad_norm,
            overflowed=overflowed,
            nonfinite=0 if isfinite(grad_norm) else self.nonfinite(grads),
            columns=columns,
            silenced={
                name: int(count)
                for (names, _), counts in counted
                for name, count in zip(names, counts, strict=True)
            },
        )

    def weight_norm(self) -> float:
        """Of all weights; non-finite where an element is."""
        (norm,) = fetch([total_norm(self.flat)])[0]
        return norm if trusted(norm) else total(self.weight_norms())

    def weight_norms(self) -> list[float]:
        """Of each tensor."""
        return self.mended(fetch(self.norms(self.now()))[0], self.weights)[0]

    def copied(self) -> list[Tensor]:
        """The weights before the update, so that what it does can be told."""
        return [w.clone() for w in self.now()]

    def updates(self, before: list[Tensor]) -> list[Tensor]:
        return list(_foreach_sub(self.now(), before))

    def updated(self, before: list[Tensor]) -> tuple[float, list[Column]]:
        """After the update of the `copied` weights: the norm of what it did, and its columns."""
        updates = self.updates(before)
        slices = self._slices(updates) if self.full else []
        raw, parts = fetch(self.norms(updates), self.norms(slices))
        norms = self.mended(raw, updates)[0]
        self.moved.update(name for name, norm in zip(self.names, norms, strict=True) if norm)
        return total(norms), self._columns("update_norm", norms, self.mended(parts, slices)[0])

    def underflow_events(self, step: int, optimizer: Optimizer) -> list[EventRow]:
        """Blocks in which fp16's second moments are 0 though the first are not: updates of m / eps.

        Other types hold every square that matters, and are looked at when the run is over."""
        if self.weights[0].dtype != torch.float16:
            return []
        blocks: dict[str, list[SmallMoments]] = {}
        for name, share in zip(self.names, underflow(optimizer, self.weights), strict=False):
            parts = name.split(".")
            block = ".".join(parts[:2]) if parts[0] == "blocks" else parts[0]
            blocks.setdefault(block, []).append(share)
        events = []
        for block, shares in blocks.items():
            vanished, elements = sum(s.vanished for s in shares), sum(s.elements for s in shares)
            if vanished > UNDERFLOW * elements:
                detail = f"v = 0 and m != 0 in {vanished / elements:.0%} of {elements} elements"
                events.append(EventRow(step, "optimizer", "adam_underflow", "", block, "", detail))
        return events

    def rows(self, step: int, columns: Sequence[Column]) -> LayerRows:
        """The reading's rows, by layer."""
        return self._layout.rows(step, columns)

    def _columns(
        self, field: str, norms: Sequence[float], part_norms: Sequence[float]
    ) -> list[Column]:
        """By place, and of the matrices of blocks where they are read."""
        totals = [total([norms[i] for i in members]) for members in self.groups.values()]
        columns: list[Column] = [(field, self._places, totals)]
        return [*columns, (field, self._matrix_places, part_norms)] if part_norms else columns

    def _empty(self, nonzero: list[float]) -> list[float]:
        """Of each place, the share of gradient elements that are 0."""
        nonzero = self.summed(nonzero)
        return [
            (size - sum([nonzero[i] for i in members])) / size
            for size, members in zip(self._elements, self.groups.values(), strict=True)
        ]

    def _slices(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [
            tensors[i] if third is None else tensors[i].chunk(3)[third]
            for _, i, third in self.matrices
        ]


class LargeProbe(Probe):
    """Of a large model: what can be is done in place, and memory is taken once."""

    _copy: list[Tensor] | None = None
    _finite = True  # the weights, when they were last looked at

    def grads(self) -> list[Tensor]:
        """A sparse gradient (of an embedding) as the dense one it stands for."""
        return [g.to_dense() if g.is_sparse else g for g in super().grads()]

    def whole(self, grads: Sequence[Tensor], due: bool) -> list[Tensor]:
        return [] if due else [torch.linalg.vector_norm(stacked(norms(grads)).double())]

    def weight_norm(self) -> float:
        norm = total(self.weight_norms())
        self._finite = isfinite(norm)
        return norm

    def copied(self) -> list[Tensor]:
        """Into the same memory every time."""
        if self._copy is None:
            self._copy = super().copied()
        else:
            _foreach_copy_(self._copy, self.now())
        return self._copy

    def updates(self, before: list[Tensor]) -> list[Tensor]:
        """With the opposite sign, in place of the copy; an autopsy of the update needs the copy."""
        if not self._finite:
            return super().updates(before)
        _foreach_sub_(before, self.now())
        return before
