"""What a model would be, without training it: built on the meta device, which holds no data."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from lnexp.config.schema import Model, RunConfig
from lnexp.messages import UserError
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
