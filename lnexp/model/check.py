"""What a model would be, without training it: built on the meta device, which holds no data; its
norms, FLOPs, and the memory that a run of it takes.

What a forward keeps for backward is read off one of fake tensors, which have shapes and types but
no values.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from lnexp.config.schema import Model, RunConfig
from lnexp.messages import UserError
from lnexp.model.catalog import OPTIMIZERS, PRECISIONS
from lnexp.model.gpt import GPT
from lnexp.model.init import draw_of, weights
from lnexp.model.norms import NORM_CLASSES

NORM_TYPES = tuple(NORM_CLASSES.values())


@dataclass(frozen=True)
class Architecture:
    """Sizes of one model, and where its weights start."""

    parameters: int
    norm_parameters: int
    norms: list[tuple[str, str, float | None, int]]  # module, kind, eps if it has one, parameters
    init_std: list[tuple[str, tuple[int, ...], float]]  # weight, shape, std


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, NORM_TYPES)


def norms_in(model: nn.Module) -> Iterator[tuple[str, nn.Module, float | None]]:
    """Name, module and eps of every norm; None: it has none (dyt)."""
    for name, module in model.named_modules():
        if is_norm(module):
            yield name, module, cast(float | None, getattr(module, "eps", None))


def norm_parameters(width: int, norms: int = 1) -> int:
    """Gain and bias of `norms` LayerNorms, `width` numbers each: 1,024 at width 512."""
    return 2 * width * norms


def encoder_decoder_norms(encoder: int, decoder: int) -> int:
    """LayerNorms of the original transformer: 2 an encoder layer (attention, MLP), 3 a decoder
    layer (self-attention, cross-attention, MLP). 6 + 6 at width 512: 30 norms, 30,720 parameters.
    """
    return 2 * encoder + 3 * decoder


def on_meta(config: Model, vocabulary: int) -> GPT:
    with torch.device("meta"), countable("model.width", "a weight"):
        return GPT(config, vocabulary)


@contextmanager
def countable(key: str, what: str) -> Iterator[None]:
    """torch refuses a tensor whose bytes no 64-bit integer counts, in several ways."""
    try:
        yield
    except (RuntimeError, TypeError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{key}: {what} is larger than torch can count ({reason}); write smaller sizes"
        ) from error


def architecture(config: Model, vocabulary: int) -> Architecture:
    model = on_meta(config, vocabulary)
    norms = [
        (name, type(norm).__name__, eps, sum(p.numel() for p in norm.parameters()))
        for name, norm, eps in norms_in(model)
    ]
    return Architecture(
        parameters=sum(p.numel() for p in model.parameters()),
        norm_parameters=sum(count for *_, count in norms),
        norms=norms,
        init_std=[
            (w.name, tuple(w.tensor.shape), draw_of(w, config).std)
            for w in weights(model)
            if w.role not in ("bias", "gain", "shift") or draw_of(w, config).std > 0
        ],
    )


def step_flops(config: RunConfig, vocabulary: int) -> int:
    """Matrix-product FLOPs of one training step: 3 times the forward's (backward costs two).

    Forward per token: 2 x (4 D^2 + 2 r D^2) a block, 4 T D a block for q k and p v (counted in
    full, as the kernels compute them), 2 D V for the head.
    """
    m = config.model
    block = 2 * (4 + 2 * m.mlp_ratio) * m.width**2 + 4 * m.context * m.width
    forward = m.depth * block + 2 * m.width * vocabulary
    return 3 * forward * m.context * config.train.batch_size


SAMPLED = 8  # blocks whose forward is looked at: a thousand would take seconds

# As measured (scripts/bench/depth.py).
PROCESS = 360 * 2**20  # Python and torch's CPU build, with what they load in a first step
BLOCK = 44 * 2**10  # a block's modules, and what is known of them
LOOSE = 1.15  # what activations take in all, with the gaps that freed ones leave between them


def peak_bytes(config: RunConfig, vocabulary: int, recompute: bool = False) -> int:
    """Of a run's process: weights, moments, gradients, activations, and a snapshot.

    A forward keeps its activations, with `recompute` (activation checkpointing) only the blocks'
    inputs and what the largest block makes. Where an update is measured, the weights before it and
    the difference have memory of their own. A snapshot is made in memory.
    """
    moments = OPTIMIZERS[config.train.optimizer].moments(config.train.momentum)
    weights = parameters(config, vocabulary) * _type(config).itemsize
    copies = 0 if config.measure.level == "off" else 2
    activations = int(LOOSE * activation_bytes(config, vocabulary, recompute))
    state = (1 + moments) * weights
    steady = PROCESS + config.model.depth * BLOCK + 2 * state
    return steady + activations + (1 + copies) * weights


def _type(config: RunConfig) -> torch.dtype:
    """Of the weights."""
    return getattr(torch, PRECISIONS[config.train.precision].weights)


def parameters(config: RunConfig, vocabulary: int) -> int:
    def count(c: RunConfig) -> int:
        return sum(p.numel() for p in on_meta(c.model, vocabulary).parameters())

    return _along_depth(config, count)


def activation_bytes(config: RunConfig, vocabulary: int, recompute: bool = False) -> int:
    """What a forward leaves for backward; with `recompute` also what the largest block makes."""
    return _along_depth(config, lambda c: kept_bytes(c, vocabulary, recompute))


def _along_depth(config: RunConfig, count: Callable[[RunConfig], int]) -> int:
    """Beyond 8 blocks, each counts as those of depth 5 to 8 do."""

    def at(depth: int) -> int:
        model = config.model.model_copy(update={"depth": depth})
        return count(config.model_copy(update={"model": model}))

    depth = config.model.depth
    if depth <= SAMPLED:
        return at(depth)
    half, whole = at(SAMPLED // 2), at(SAMPLED)
    return whole + (depth - SAMPLED) * (whole - half) // (SAMPLED // 2)


@contextmanager
def _made_in(dtype: torch.dtype) -> Iterator[None]:
    """New tensors are of that type: fake ones cannot be converted in place."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)


class Storages:
    """Those that autograd keeps, each counted once."""

    def __init__(self, without: Iterable[Tensor]) -> None:
        self.sizes: dict[int, int] = {}
        self.without = {tensor.untyped_storage()._cdata for tensor in without}
        self.held: list[Tensor] = []  # a freed storage's address must not be counted for another

    def keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.without:
            self.sizes[storage._cdata] = storage.nbytes()
            self.held.append(tensor)
        return tensor

    def listening(self) -> saved_tensors_hooks:
        return saved_tensors_hooks(self.keep, lambda tensor: tensor)

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())


def kept_bytes(config: RunConfig, vocabulary: int, recompute: bool) -> int:
    """activation_bytes() read off the whole model."""
    autocast = PRECISIONS[config.train.precision].autocast
    with FakeTensorMode(), countable("train.batch_size", "an activation"):
        with _made_in(_type(config)):
            model = GPT(config.model, vocabulary)
        ids_BT = torch.zeros(config.train.batch_size, config.model.context, dtype=torch.long)
        whole, inside = Storages(model.parameters()), list[Storages]()

        def apart(block: Callable[..., Any]) -> Callable[..., Any]:
            def call(*streams_BTD: Tensor) -> Any:
                for stream in streams_BTD:
                    whole.keep(stream)
                inside.append(Storages([*model.parameters(), *streams_BTD]))
                with inside[-1].listening():
                    return block(*streams_BTD)

            return call

        blocks = [apart(block) for block in model.blocks] if recompute else model.blocks
        with (
            whole.listening(),
            torch.autocast("cpu", getattr(torch, autocast)) if autocast else nullcontext(),
        ):
            logits = model.through(ids_BT, blocks)
            F.cross_entropy(logits.flatten(0, 1), ids_BT.flatten())
    return whole.bytes + max((block.bytes for block in inside), default=0)
