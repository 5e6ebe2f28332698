"""What is read of anybody's model: the probe over the parameters that have a gradient in a step, at
level full what its blocks are given and give, and the optimizers and GradScaler of its loop.

A block is read where it is called with the stream first and gives the stream first; whatever does
not fit is left out. Shapes: B sequences read, T time, D width. Readings are taken in fp64.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torch.utils.hooks import RemovableHandle

from lnexp.attach.distributed import Ranks, ShardedProbe
from lnexp.config.schema import Measure
from lnexp.measure.forward import Reading, rms, token_cosine
from lnexp.measure.groups import NORM, places, plain, plain_modules
from lnexp.measure.optimizer import underflow
from lnexp.measure.probes import LargeProbe, Probe
from lnexp.measure.tensors import local
from lnexp.origin.replay import bare
from lnexp.rows import Place

INSIDE_ATTENTION = ("q_norm", "k_norm", "q_layernorm", "k_layernorm")


class StreamProbe:
    """Hooks stay while `attach`ed, since nobody says when a forward begins; those of evaluation
    are passed over."""

    def __init__(self, model: nn.Module, blocks: list[str], sample: int, compiled: bool) -> None:
        self.sample = sample
        modules = dict(plain_modules(model))
        self.blocks = [modules[name] for name in blocks if name in modules]
        # Code that is compiled already does not see hooks, and what is yet to be compiled would
        # come out in other pieces, which may round differently.
        self.readable = not compiled and len(self.blocks) == len(blocks)
        self.time_first = any(getattr(m, "batch_first", True) is False for m in model.modules())
        self.readings: dict[Place, dict[str, Tensor]] = {}
        self.silent: list[tuple[list[str], Tensor]] = []  # not looked for
        self.paused = False
        self._handles: list[RemovableHandle] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        self.attach()
        try:
            yield
        finally:
            self.detach()

    def attach(self) -> None:
        if self._handles or not self.readable:
            return
        for layer, block in enumerate(self.blocks):
            self._on(block, self._block(layer))
            for part, norm in zip(("attn", "mlp"), _two_norms(block), strict=False):
                self._on(norm, self._norm((layer, part)))

    def detach(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def clear(self) -> None:
        """What the next forward says starts anew."""
        self.readings = {}

    @property
    def read(self) -> list[Reading]:
        return [
            ([place], field, value.reshape(1))
            for place, numbers in self.readings.items()
            for field, value in numbers.items()
        ]

    def _on(self, module: nn.Module, read: Callable[[Tensor, Tensor], None]) -> None:
        def hook(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            if self.paused or not module.training or not torch.is_grad_enabled():
                return
            given: Any = args[0] if args else next(iter(kwargs.values()), None)
            gives: Any = output[0] if isinstance(output, tuple) and output else output
            if _is_stream(given) and _is_stream(gives):
                with torch.no_grad(), torch.autocast(gives.device.type, enabled=False):
                    read(given, gives)

        self._handles.append(module.register_forward_hook(hook, with_kwargs=True))

    def _block(self, layer: int) -> Callable[[Tensor, Tensor], None]:
        def read(before: Tensor, after: Tensor) -> None:
            if before.shape != after.shape:  # no stream goes through here
                return
            if layer == 0:
                self._stream((-1, "embed"), before)
            self._stream((layer, "mlp"), after)
            self._gradient((layer, "attn"), before)

        return read

    def _norm(self, place: Place) -> Callable[[Tensor, Tensor], None]:
        return lambda before, _: self._put(place, norm_input_rms=rms(self._take(before)))

    def _take(self, x: Tensor) -> Tensor:
        x = x.detach()
        if self.time_first and x.dim() == 3:
            x = x.transpose(0, 1)
        return x[: self.sample].double()

    def _stream(self, place: Place, whole: Tensor) -> None:
        h_BTD = self._take(whole)
        self._put(place, act_rms=rms(h_BTD), act_absmax=h_BTD.abs().max())
        if h_BTD.dim() == 3 and h_BTD.shape[1] > 1:
            self._put(place, token_cosine=token_cosine(h_BTD))

    def _gradient(self, place: Place, h_BTD: Tensor) -> None:
        def read(gradient: Tensor) -> None:
            self._put(place, stream_grad_rms=rms(self._take(gradient)))

        if h_BTD.requires_grad:
            h_BTD.register_hook(read)

    def _put(self, place: Place, **numbers: Tensor) -> None:
        self.readings.setdefault(place, {}).update(numbers)


def _is_stream(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2


def is_compiled(model: nn.Module) -> bool:
    """Or a part of it is."""
    return any(
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def _two_norms(block: nn.Module) -> list[nn.Module]:
    """The norms of attention and MLP, where a block has exactly these two."""
    last = {module: name.split(".")[-1].lower() for name, module in block.named_modules() if name}
    norms = [
        module
        for module, word in last.items()
        if ("norm" in type(module).__name__.lower() or NORM.search(word))
        and not word.endswith(INSIDE_ATTENTION)
    ]
    return norms if len(norms) == 2 else []


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
            parts = live, groups, self.measure, self.stream
            sharded = self.ranks.sharded
            self._probe = ShardedProbe(*parts, self.ranks) if sharded else LargeProbe(*parts)
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
        for share in underflow(optimizer, weights) if weights else []:
            for i, n in enumerate((share.elements, share.vanished, share.below_eps)):
                counts[i] += n
    elements, vanished, below = ranks.sums(counts) if ranks.sharded else counts
    return (vanished / elements, below / elements) if elements else (None, None)


class ScalerReader:
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
