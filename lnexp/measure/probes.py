"""What one step's readings hold at each level, gathered into rows.

Numbers leave the device twice a step: once before the update, once after it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..config import RunConfig
from ..model.gpt import GPT
from ..rows import EventRow, LayerRow, Part
from .forward import ForwardProbe
from .groups import grouped
from .nonfinite import (
    HALF,
    Gradients,
    mended,
    nonfinite_elements,
    total,
    total_norm,
    trusted,
)
from .optimizer import Underflow, underflow

# The matrices of a block: part -> (half, module, which third of a joint matrix).
MATRICES: dict[Part, tuple[str, str, int | None]] = {
    "wq": ("attn", "wqkv", 0),
    "wk": ("attn", "wqkv", 1),
    "wv": ("attn", "wqkv", 2),
    "wo": ("attn", "wo", None),
    "w1": ("mlp", "w1", None),
    "w2": ("mlp", "w2", None),
}


def fetch(*groups: Sequence[Tensor]) -> list[list[float]]:
    """Lists of 0-d tensors -> lists of floats, in one transfer."""
    filled = [torch.stack(list(group)).double() for group in groups if group]
    flat = iter(torch.cat(filled).tolist() if filled else [])
    return [[next(flat) for _ in group] for group in groups]


UNDERFLOW = 0.5  # share of a block's elements from which on their underflow is an event

# One call for a list of tensors; private names of torch, looked up here alone.
_foreach_norm: Callable[..., tuple[Tensor, ...]] = getattr(torch, "_foreach_norm")  # noqa: B009
_foreach_sub: Callable[..., tuple[Tensor, ...]] = getattr(torch, "_foreach_sub")  # noqa: B009


def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """L2 norms; of half-precision tensors taken and returned in fp32."""
    if not tensors:
        return []
    wide = torch.float32 if tensors[0].dtype in HALF else None
    return list(_foreach_norm(list(tensors), 2, dtype=wide))


class Probe:
    """Reads gradients, weights and updates of one model; forward readings too at level full."""

    def __init__(self, model: GPT, config: RunConfig) -> None:
        self.config = config
        self.names = [name for name, _ in model.named_parameters()]
        self.weights = [p for _, p in model.named_parameters()]
        # Views that updates in place are seen through; made once, since making them takes longer
        # than reading them.
        self.flat = [w.detach().view(-1) for w in self.weights]
        self.groups = grouped(self.names, config.model.depth)
        self.matrices = list(self._block_matrices(model))
        self.forward = ForwardProbe(
            model, config.model.norm, config.model.eps, config.measure.sample
        )
        self._fields: dict[tuple[int, Part], dict[str, float]] = {}
        self._zero_outputs: dict[str, int] = {}
        self.kept: list[Tensor] = []  # the weights before this step's update, where it is read

    def due(self, step: int) -> bool:
        return self.config.measure.level != "off" and step % self.config.measure.every == 0

    @property
    def full(self) -> bool:
        return self.config.measure.level == "full"

    @contextmanager
    def listening(self, due: bool) -> Iterator[bool]:
        """Around forward and backward of a step; whether the modules' outputs are read."""
        self._fields, self.kept = {}, []
        if not (due and self.full):
            yield False
            return
        with self.forward.listening():
            yield True

    @property
    def on(self) -> bool:
        return self.config.measure.level != "off"

    def grads(self) -> list[Tensor]:
        return [cast(Tensor, w.grad) for w in self.weights]  # every weight is used

    def gradients(
        self,
        loss: Tensor,
        unigram_loss: Tensor,
        due: bool,
        divisor: float = 1.0,
        scale: float = 1.0,
    ) -> Gradients:
        """Before the update: the step's losses and the norm of each tensor's gradient, which is
        divided by `divisor` where gradients are kept scaled; the stream's was read in a backward
        of `scale` times the loss."""
        grads = self.grads()
        counts = [g.count_nonzero() for g in grads] if due else []
        slices = self._slices(grads) if due and self.full else []
        readings = self._forward_readings() if due and self.full else []
        zero_outputs = self.forward.zero_outputs if due and self.full else {}
        losses, whole, raw, nonzero, parts, forward, zeros = fetch(
            [loss.detach().double(), unigram_loss],
            [total_norm([g.reshape(-1) for g in grads])],
            norms(grads) if due else [],
            counts,
            norms(slices),
            [tensor for *_, tensor in readings],
            list(zero_outputs.values()),
        )
        self._zero_outputs = dict(zip(zero_outputs, map(int, zeros), strict=True))
        grad_norm, grad_norms, overflowed = whole[0], list[float](), list[int]()
        if due or not trusted(grad_norm):
            grad_norms, overflowed = mended(raw or fetch(norms(grads))[0], grads)
        if not trusted(grad_norm):
            grad_norm = total(grad_norms)
        grad_norm, grad_norms = grad_norm / divisor, [norm / divisor for norm in grad_norms]
        if due:
            self._fields = self._by_place("grad_norm", grad_norms)
            for place, members in self.groups.items():
                size = sum(self.weights[i].numel() for i in members)
                empty = size - sum(nonzero[i] for i in members)
                self._fields[place]["zero_grad_fraction"] = empty / size
            values = [norm / divisor for norm in mended(parts, slices)[0]]
            self._set_matrices("grad_norm", values)
            for (place, field, _), value in zip(readings, forward, strict=True):
                unscaled = value / scale if field == "stream_grad_rms" else value
                self._fields.setdefault(place, {})[field] = unscaled
        return Gradients(
            loss=losses[0],
            unigram_loss=losses[1],
            norms=grad_norms,
            grad_norm=grad_norm,
            overflowed=overflowed,
            nonfinite=0 if isfinite(grad_norm) else nonfinite_elements(grads),
        )

    def weight_norm(self) -> float:
        """Of all weights; non-finite where an element is."""
        (norm,) = fetch([total_norm(self.flat)])[0]
        return norm if trusted(norm) else total(self.weight_norms())

    def weight_norms(self) -> list[float]:
        """Of each tensor."""
        return mended(fetch(norms(self.weights))[0], self.weights)[0]

    def keep_weights(self) -> None:
        """Before the update, so that what it does can be told."""
        weight_norms = self.weight_norms()
        for place, fields in self._by_place("weight_norm", weight_norms).items():
            self._fields[place].update(fields)
        if self.full:
            slices = self._slices(self.weights)
            self._set_matrices("weight_norm", mended(fetch(norms(slices))[0], slices)[0])
        self.kept = [w.detach().clone() for w in self.weights]

    def updated(self) -> float:
        """After the update: the norm of what it did."""
        updates = list(_foreach_sub([w.detach() for w in self.weights], self.kept))
        slices = self._slices(updates) if self.full else []
        moved, parts = fetch(norms(updates), norms(slices))
        update_norms = mended(moved, updates)[0]
        for place, fields in self._by_place("update_norm", update_norms).items():
            self._fields[place].update(fields)
        self._set_matrices("update_norm", mended(parts, slices)[0])
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

    def rows(self, step: int) -> list[LayerRow]:
        """The reading's rows, by layer."""
        return [
            LayerRow(step=step, layer=layer, part=part, **fields)
            for (layer, part), fields in sorted(
                self._fields.items(), key=lambda item: (item[0][0], PART_ORDER.index(item[0][1]))
            )
        ]

    def _by_place(self, field: str, values: list[float]) -> dict[tuple[int, Part], dict]:
        return {
            place: {field: total([values[i] for i in members])}
            for place, members in self.groups.items()
        }

    def _forward_readings(self) -> list[tuple[tuple[int, Part], str, Tensor]]:
        return [
            (place, field, tensor)
            for place, fields in self.forward.readings.items()
            for field, tensor in fields.items()
        ]

    def _block_matrices(self, model: GPT) -> Iterator[tuple[tuple[int, Part], int, int | None]]:
        positions = {name: i for i, name in enumerate(self.names)}
        for layer in range(len(model.blocks)):
            for part, (half, module, third) in MATRICES.items():
                name = f"blocks.{layer}.{half}.body.{module}.weight"
                if name in positions:
                    yield (layer, part), positions[name], third

    def _slices(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [
            tensors[i] if third is None else tensors[i].chunk(3)[third]
            for _, i, third in self.matrices
        ]

    def _set_matrices(self, field: str, values: list[float]) -> None:
        if values:
            for (place, *_), value in zip(self.matrices, values, strict=True):
                self._fields.setdefault(place, {})[field] = value


PART_ORDER = ("embed", "attn", "mlp", "norm", "head", *MATRICES)
