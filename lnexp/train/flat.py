"""The parameters of a model end to end in memory, and their probe. Clipping, an update or a copy is
one operation, not one for each of a thousand tensors; what the probe needs of one tensor, the same
tensor of all blocks has in the same operation. Every bit is as with the tensors apart.

Shapes: N elements of all parameters, J of those that are updated together; K blocks, n elements of
a tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lnexp.config.schema import RunConfig
from lnexp.measure.forward import ForwardProbe
from lnexp.measure.groups import grouped, matrices
from lnexp.measure.nonfinite import HALF, total_norm
from lnexp.measure.probes import Probe
from lnexp.model.gpt import GPT

# A kernel rounds the last elements of a tensor, which fill no vector of the processor's (of 512
# bits at most, so 32 in half precision), in its own way. A tensor of a multiple of 32 has none; the
# others are updated on their own.
VECTOR = 32


class Flat:
    """`optimizer` keeps the settings and, as views, every tensor's moments: for what reads, saves
    and loads them. `step` makes its update."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        groups = optimizer.param_groups
        split = [_split(group["params"]) for group in groups]
        updated = [p for whole, odd in split for p in (*whole, *odd)]
        known = set(updated)
        self.weights = [*updated, *(p for p in model.parameters() if p not in known)]
        self.weights_N = torch.cat([p.detach().reshape(-1) for p in self.weights])
        self.gradients_N = torch.zeros_like(self.weights_N)
        ends = accumulate((p.numel() for p in self.weights), initial=0)
        self.offset = dict(zip(self.weights, ends, strict=False))  # of each in the memory
        self._gradients = self._views(self.gradients_N)
        for weight, view in zip(self.weights, self._views(self.weights_N), strict=True):
            weight.data = view
        self._odd = [p for _, odd in split for p in odd]
        self._joint: list[tuple[nn.Parameter, list[nn.Parameter]]] = []
        self.together = optimizer
        if optimizer.defaults.get("fused"):
            parts = [self._join(*one) for one in split]
            own = [{**group, "params": part} for group, part in zip(groups, parts, strict=True)]
            self.together = type(optimizer)(own, fused=True)  # type: ignore[call-arg]
            self._adopt()
            optimizer.register_state_dict_post_hook(_apart)

    def _join(self, whole: list[nn.Parameter], odd: list[nn.Parameter]) -> list[nn.Parameter]:
        """What is updated in their place."""
        if not whole:
            return odd
        at, J = self.offset[whole[0]], sum(p.numel() for p in whole)
        joint_J = nn.Parameter(self.weights_N[at : at + J])
        joint_J.grad = self.gradients_N[at : at + J]
        self._joint.append((joint_J, whole))
        return [joint_J, *odd]

    def _views(self, whole_N: Tensor) -> list[Tensor]:
        """The parts of a tensor laid out like the parameters, in their shapes."""
        parts = whole_N.split([p.numel() for p in self.weights])
        return [part.view(p.shape) for part, p in zip(parts, self.weights, strict=True)]

    def ready(self) -> None:
        """Before backward, which adds each gradient to its place."""
        self.gradients_N.zero_()
        for weight, view in zip(self.weights, self._gradients, strict=True):
            weight.grad = view

    def step(self) -> None:
        """By the gradients in their memory."""
        groups = zip(self.together.param_groups, self.optimizer.param_groups, strict=True)
        for mine, theirs in groups:
            mine.update((key, value) for key, value in theirs.items() if key != "params")
        self.together.step()
        if not self.optimizer.state:
            self._share()

    def _share(self) -> None:
        state = self.optimizer.state
        for joint_J, weights in self._joint:
            sizes = [p.numel() for p in weights]
            for key, value in self.together.state[joint_J].items():
                apart = value.split(sizes) if _of(value, joint_J) else [value] * len(sizes)
                for weight, part in zip(weights, apart, strict=True):
                    own = part.view(weight.shape) if _of(part, weight) else part
                    state.setdefault(weight, {})[key] = own
        for weight in self._odd:
            state[weight] = self.together.state[weight]

    def _adopt(self) -> None:
        """The moments that the optimizer has already, tensor by tensor."""
        loaded = dict(self.optimizer.state)
        if not loaded:
            return
        self.optimizer.state.clear()
        for joint_J, weights in self._joint:
            self.together.state[joint_J] = {
                key: torch.cat([loaded[p][key].reshape(-1) for p in weights])
                if _of(value, weights[0])
                else _copy(value)
                for key, value in loaded[weights[0]].items()
            }
        for weight in self._odd:
            self.together.state[weight] = {k: _copy(v) for k, v in loaded[weight].items()}
        self._share()


def _apart(_: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """A state for any optimizer: one that updates tensor by tensor counts the steps of each."""
    state = {
        at: {key: _copy(value) if _is_count(value) else value for key, value in of.items()}
        for at, of in saved["state"].items()
    }
    return {**saved, "state": state}


def _is_count(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0


def _split(weights: Sequence[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Those that are updated together, and the others."""
    whole = [p for p in weights if p.numel() % VECTOR == 0]
    return whole, [p for p in weights if p.numel() % VECTOR]


def _of(value: Any, weight: Tensor) -> bool:
    """Whether it has an entry for each element; else it is one for all, as Adam's step is."""
    return isinstance(value, Tensor) and value.numel() == weight.numel() > 1


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


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
    known: dict[tuple[str, int], list[Row]] = {}
    for position in sorted(range(len(pieces)), key=lambda i: pieces[i][1]):
        kind, offset, length = pieces[position]
        row = known.setdefault((kind, length), [Row(length, offset, 0, [])])[-1]
        apart = offset - row.offset - row.stride * max(0, len(row.which) - 1)
        if len(row.which) < 2:
            row.stride = apart
        elif apart != row.stride:
            row = Row(length, offset, 0, [])
            known[kind, length].append(row)
        row.which.append(position)
    return [row for several in known.values() for row in several]


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
        self._before_N = self._moved_N = flat.weights_N
        self._before: list[Tensor] = []
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
        if not self._before:
            self._before_N = torch.empty_like(self.memory.weights_N)
            self._before = self._tensors(self._before_N)
        self._before_N.copy_(self.memory.weights_N)
        return self._before

    def updates(self, before: list[Tensor]) -> list[Tensor]:
        if not self._moved:
            self._moved_N = torch.empty_like(self.memory.weights_N)
            self._moved = self._tensors(self._moved_N)
        torch.sub(self.memory.weights_N, self._before_N, out=self._moved_N)
        return self._moved
