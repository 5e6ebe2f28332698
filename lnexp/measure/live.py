"""The probe of anybody's model: over the parameters that have a gradient in this step."""

from collections.abc import Callable, Sequence
from math import isfinite

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from ..config import Measure
from .nonfinite import stacked, total
from .optimizer import underflow
from .places import places, plain
from .probes import Probe, norms
from .replay import bare
from .stream import StreamProbe

# Private names of torch, looked up here alone.
_foreach_copy_: Callable[..., None] = getattr(torch, "_foreach_copy_")  # noqa: B009
_foreach_sub_: Callable[..., None] = getattr(torch, "_foreach_sub_")  # noqa: B009


class LargeProbe(Probe):
    """Models may be large: what can be is done in place, and memory is taken once."""

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
        now = [w.detach() for w in self.weights]
        if self._copy is None:
            self._copy = [w.clone() for w in now]
        else:
            _foreach_copy_(self._copy, now)
        return self._copy

    def updates(self) -> list[Tensor]:
        """With the opposite sign, in place of the copy; an autopsy of the update needs the copy."""
        if not self._finite:
            return super().updates()
        _foreach_sub_(self.kept, [w.detach() for w in self.weights])
        updates, self.kept = self.kept, []
        return updates


class LiveProbe:
    """Frozen, unused and newly unfrozen parameters come and go; a probe sees those that count."""

    def __init__(self, model: nn.Module, measure: Measure, blocks: str) -> None:
        self.model, self.measure = bare(model), measure
        self.places = places(self.model, blocks)
        self.named = [
            (plain(name), p) for name, p in self.model.named_parameters() if p.numel() > 0
        ]
        self.stream = StreamProbe(self.model, self.places.blocks, measure.sample)
        self.moved: set[str] = set()
        self._key: tuple[int, ...] = ()
        self._probe: Probe | None = None

    @property
    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.named if p.requires_grad]

    def now(self) -> Probe | None:
        """None: no parameter has a gradient. A weight whose memory moved is looked up anew."""
        live = [(name, p) for name, p in self.named if p.grad is not None]
        if not live:
            return None
        key = tuple(p.data_ptr() for _, p in live)
        if key != self._key or self._probe is None:
            groups = self.places.groups([name for name, _ in live])
            self._probe, self._key = LargeProbe(live, groups, self.measure, self.stream), key
            self._probe.moved = self.moved
        return self._probe


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside a wrapper that holds one (accelerate's)."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrapped(inner) if isinstance(inner, Optimizer) else optimizer


def adam_shares(optimizers: list[Optimizer]) -> tuple[float | None, float | None]:
    """Of Adam: shares of elements whose second moment underflowed, and whose lies below eps."""
    elements = vanished = below = 0
    for optimizer in optimizers:
        if type(optimizer) not in (Adam, AdamW):
            continue
        weights = [p for g in optimizer.param_groups for p in g["params"] if p in optimizer.state]
        for found in underflow(optimizer, weights) if weights else []:
            elements += found.elements
            vanished += found.vanished
            below += found.below_eps
    return (vanished / elements, below / elements) if elements else (None, None)


class Scale:
    """A GradScaler, read from outside. None: there is none."""

    def __init__(self, scaler: "torch.amp.GradScaler | None") -> None:
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None

    @property
    def on(self) -> bool:
        return self.scaler is not None

    @property
    def value(self) -> float:
        return float(self.scaler.get_scale()) if self.scaler else 1.0

    def divisor(self, optimizer: Optimizer) -> float:
        """What this optimizer's gradients are to be divided by: 1 once they are unscaled."""
        if self.scaler is None:
            return 1.0
        # A private table of torch's; without it gradients count as scaled.
        stages = getattr(self.scaler, "_per_optimizer_states", {})
        stage = stages[id(optimizer)]["stage"] if id(optimizer) in stages else None
        return 1.0 if getattr(stage, "name", "READY") != "READY" else self.value
