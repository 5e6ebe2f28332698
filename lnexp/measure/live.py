"""The probe of anybody's model: over the parameters that have a gradient in this step."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Adam, AdamW, Optimizer

from ..config import Measure
from .large import LargeProbe
from .local import local
from .optimizer import underflow
from .places import places, plain
from .probes import Probe
from .ranks import Ranks
from .replay import bare
from .shards import ShardedProbe
from .stream import StreamProbe, is_compiled


class LiveProbe:
    """Frozen, unused and newly unfrozen parameters come and go; a probe sees those that count."""

    def __init__(self, model: nn.Module, measure: Measure, blocks: str) -> None:
        self.model, self.measure = bare(model), measure
        self.places = places(self.model, blocks)
        self.named = [
            (plain(name), p) for name, p in self.model.named_parameters() if p.numel() > 0
        ]
        compiled = is_compiled(model)  # wrapped by torch.compile, or in place
        self.stream = StreamProbe(self.model, self.places.blocks, measure.sample, compiled)
        self.ranks = Ranks(self.trainable)
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
        key = tuple(local(p).data_ptr() for _, p in live)
        if key != self._key or self._probe is None:
            groups = self.places.groups([name for name, _ in live])
            given = live, groups, self.measure, self.stream
            sharded = self.ranks.sharded
            self._probe = ShardedProbe(*given, self.ranks) if sharded else LargeProbe(*given)
            self._key, self._probe.moved = key, self.moved
        return self._probe


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside a wrapper that holds one (accelerate's)."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrapped(inner) if isinstance(inner, Optimizer) else optimizer


def adam_shares(optimizers: Sequence[Optimizer], ranks: Ranks) -> tuple[float | None, float | None]:
    """Of Adam: shares of elements whose second moment underflowed, and whose lies below eps."""
    counts = [0.0, 0.0, 0.0]
    for optimizer in optimizers:
        if type(optimizer) not in (Adam, AdamW):
            continue
        weights = [p for g in optimizer.param_groups for p in g["params"] if p in optimizer.state]
        for found in underflow(optimizer, weights) if weights else []:
            for i, n in enumerate((found.elements, found.vanished, found.below_eps)):
                counts[i] += n
    elements, vanished, below = ranks.sums(counts) if ranks.sharded else counts
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
