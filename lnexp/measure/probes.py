"""What one step's readings hold at each level, gathered into rows.

Numbers leave the device twice a step: once before the update, once after it; a reading adds one.
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
    Gradients,
    flat_view,
    mended,
    nonfinite_elements,
    norms,
    stacked,
    total,
    total_norm,
    trusted,
)
from lnexp.measure.optimizer import Underflow, underflow
from lnexp.rows import Column, EventRow, LayerRows, Layout, Place


def fetch(*groups: Tensor | Sequence[Tensor]) -> list[list[float]]:
    """Lists of 0-d tensors, or vectors -> lists of floats, in one transfer a device."""
    filled = [g if isinstance(g, Tensor) else stacked(g) for g in groups if len(g)]
    flat = stacked([group.double() for group in filled], torch.cat).tolist() if filled else []
    ends = list(accumulate(map(len, groups)))
    return [flat[end - len(group) : end] for group, end in zip(groups, ends, strict=True)]


UNDERFLOW = 0.5  # share of a block's elements from which on their underflow is an event

# One call for a list of tensors; a private name of torch, looked up here alone.
_foreach_sub: Callable[..., tuple[Tensor, ...]] = getattr(torch, "_foreach_sub")  # noqa: B009


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
        self._columns: list[Column] = []
        self._layout = Layout()
        self._zero_outputs: dict[str, int] = {}
        self.kept: list[Tensor] = []  # the weights before this step's update, where it is read
        self.moved: set[str] = set()  # tensors that an update was seen to change

    @cached_property
    def _elements(self) -> list[int]:
        """Of each place's tensors."""
        return [sum(self.sizes[i] for i in members) for members in self.groups.values()]

    def due(self, step: int) -> bool:
        return self.measure.level != "off" and step % self.measure.every == 0

    @property
    def full(self) -> bool:
        return self.measure.level == "full"

    def begin(self) -> None:
        """A step's readings start anew."""
        self._columns, self.kept = [], []

    @contextmanager
    def listening(self, due: bool) -> Iterator[bool]:
        """Around forward and backward of a step; whether the modules' outputs are read."""
        self.begin()
        if not (due and self.full):
            yield False
            return
        with self.forward.listening():
            yield True

    @property
    def on(self) -> bool:
        return self.measure.level != "off"

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

    def gradients(
        self,
        loss: Tensor,
        unigram_loss: Tensor,
        due: bool,
        divisor: float = 1.0,
        scale: float = 1.0,
    ) -> Gradients:
        """Before the update: the step's losses, and the norms of each tensor and of its gradient.
        Gradients are divided by `divisor` where they are kept scaled; the stream's were read in a
        backward of `scale` times the loss."""
        grads = self.grads()
        counts = self.nonzero(grads) if due else []
        weights = self.now() if due else []
        slices, weight_slices = (
            self._slices(tensors) if due and self.full else [] for tensors in (grads, weights)
        )
        readings = self.forward.read if due and self.full else []
        silent = self.forward.silent if due and self.full else []
        losses, whole, raw, nonzero, parts, of_weights, of_weight_slices, *forward = fetch(
            [loss.detach().double(), unigram_loss],
            self.whole(grads, due),
            self.norms(grads) if due else [],
            counts,
            self.norms(slices),
            self.norms(weights),
            self.norms(weight_slices),
            *(values for *_, values in readings),
            *(counts for _, counts in silent),
        )
        zeros = forward[len(readings) :]
        self._zero_outputs = {
            name: int(count)
            for (names, _), counts in zip(silent, zeros, strict=True)
            for name, count in zip(names, counts, strict=True)
        }
        grad_norm, grad_norms, overflowed = whole[0] if whole else nan, list[float](), list[int]()
        if due or not trusted(grad_norm):
            grad_norms, overflowed = self.mended(raw or fetch(self.norms(grads))[0], grads)
        if not trusted(grad_norm):
            grad_norm = total(grad_norms)
        grad_norm, grad_norms = grad_norm / divisor, [norm / divisor for norm in grad_norms]
        if due:
            self._columns, nonzero = [], self.summed(nonzero)
            self._by_place("grad_norm", grad_norms)
            empty = [
                (size - sum([nonzero[i] for i in members])) / size
                for size, members in zip(self._elements, self.groups.values(), strict=True)
            ]
            self._columns.append(("zero_grad_fraction", self._places, empty))
            self._by_matrix("grad_norm", [n / divisor for n in self.mended(parts, slices)[0]])
            self._by_place("weight_norm", self.mended(of_weights, self.weights)[0])
            self._by_matrix("weight_norm", self.mended(of_weight_slices, weight_slices)[0])
            for (places, field, _), values in zip(readings, forward, strict=False):
                if field == "stream_grad_rms" and scale != 1.0:
                    values = [value / scale for value in values]
                self._columns.append((field, places, values))
        return Gradients(
            loss=losses[0],
            unigram_loss=losses[1],
            norms=grad_norms,
            grad_norm=grad_norm,
            overflowed=overflowed,
            nonfinite=0 if isfinite(grad_norm) else self.nonfinite(grads),
        )

    def weight_norm(self) -> float:
        """Of all weights; non-finite where an element is."""
        (norm,) = fetch([total_norm(self.flat)])[0]
        return norm if trusted(norm) else total(self.weight_norms())

    def weight_norms(self) -> list[float]:
        """Of each tensor."""
        return self.mended(fetch(self.norms(self.now()))[0], self.weights)[0]

    def keep_weights(self) -> None:
        """Before the update, so that what it does can be told."""
        self.kept = self.copied()

    def copied(self) -> list[Tensor]:
        return [w.clone() for w in self.now()]

    def updates(self) -> list[Tensor]:
        return list(_foreach_sub(self.now(), self.kept))

    def updated(self) -> float:
        """After the update: the norm of what it did."""
        updates = self.updates()
        slices = self._slices(updates) if self.full else []
        moved, parts = fetch(self.norms(updates), self.norms(slices))
        update_norms = self.mended(moved, updates)[0]
        self.moved.update(n for n, norm in zip(self.names, update_norms, strict=True) if norm)
        self._by_place("update_norm", update_norms)
        self._by_matrix("update_norm", self.mended(parts, slices)[0])
        return total(update_norms)

    def forward_events(self, step: int) -> list[EventRow]:
        """Norms whose output is 0 where their input is not: the squares overflowed (level full)."""
        return [
            EventRow(step, "forward", "zero_norm_output", module=module, detail=f"{count} tokens")
            for module, count in self._zero_outputs.items()
            if count
        ]

    def underflow_events(self, step: int, optimizer: Optimizer) -> list[EventRow]:
        """Blocks in which fp16's second moments are 0 though the first are not: updates of m / eps.

        Other types hold every square that matters, and are looked at when the run is over."""
        if self.weights[0].dtype != torch.float16:
            return []
        found: dict[str, list[Underflow]] = {}
        for name, share in zip(self.names, underflow(optimizer, self.weights), strict=False):
            parts = name.split(".")
            block = ".".join(parts[:2]) if parts[0] == "blocks" else parts[0]
            found.setdefault(block, []).append(share)
        events = []
        for block, shares in found.items():
            vanished, elements = sum(s.vanished for s in shares), sum(s.elements for s in shares)
            if vanished > UNDERFLOW * elements:
                detail = f"v = 0 and m != 0 in {vanished / elements:.0%} of {elements} elements"
                events.append(EventRow(step, "optimizer", "adam_underflow", "", block, "", detail))
        return events

    def rows(self, step: int) -> LayerRows:
        """The reading's rows, by layer."""
        return self._layout.rows(step, self._columns)

    def _by_place(self, field: str, values: list[float]) -> None:
        totals = [total([values[i] for i in members]) for members in self.groups.values()]
        self._columns.append((field, self._places, totals))

    def _slices(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [
            tensors[i] if third is None else tensors[i].chunk(3)[third]
            for _, i, third in self.matrices
        ]

    def _by_matrix(self, field: str, values: list[float]) -> None:
        if values:
            self._columns.append((field, self._matrix_places, values))


# The probe of a large model: what can be is done in place, and memory is taken once.


# Private names of torch, looked up here alone.
_foreach_copy_: Callable[..., None] = getattr(torch, "_foreach_copy_")  # noqa: B009
_foreach_sub_: Callable[..., None] = getattr(torch, "_foreach_sub_")  # noqa: B009


class LargeProbe(Probe):
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

    def updates(self) -> list[Tensor]:
        """With the opposite sign, in place of the copy; an autopsy of the update needs the copy."""
        if not self._finite:
            return super().updates()
        _foreach_sub_(self.kept, self.now())
        updates, self.kept = self.kept, []
        return updates
