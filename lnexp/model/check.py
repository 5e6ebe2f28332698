"""What a model would be, without training it: built on the meta device, which holds no data.

Shapes: B batch, T time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ..config import Model, RunConfig
from .gpt import GPT
from .init import draw_of, weights
from .norms import NORMS

NORM_TYPES = tuple(norm.build for norm in NORMS.values())

BYTES = {"fp64": 8}  # of a weight; every other precision of this version keeps fp32 weights


@dataclass(frozen=True)
class Architecture:
    """Sizes of one model, and where its weights start."""

    parameters: int
    norm_parameters: int
    norms: list[tuple[str, str, float, int]]  # module, kind, eps, parameters
    init_std: list[tuple[str, tuple[int, ...], float]]  # weight, shape, std


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, NORM_TYPES)


def norms_in(model: nn.Module) -> Iterator[tuple[str, nn.Module, float]]:
    """Name, module and eps of every norm."""
    for name, module in model.named_modules():
        if is_norm(module):
            yield name, module, float(cast(float, module.eps))


def on_meta(config: Model, vocabulary: int) -> GPT:
    with torch.device("meta"):
        return GPT(config, vocabulary)


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


def step_bytes(config: RunConfig, vocabulary: int) -> int:
    """Bytes held at the end of a forward: weights, gradients, moments, activations kept for
    backward (read off a forward on the meta device)."""
    model = on_meta(config.model, vocabulary)
    width = BYTES.get(config.train.precision, 4)
    if width == 8:
        model.double()
    parameters = sum(p.numel() for p in model.parameters())
    moments = {"sgd": 1 if config.train.momentum else 0}.get(config.train.optimizer, 2)
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage.nbytes()
            held.append(tensor)  # a freed storage's address must not be counted for another
        return tensor

    held: list[Tensor] = []
    ids_BT = torch.zeros(
        config.train.batch_size, config.model.context, dtype=torch.long, device="meta"
    )
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(ids_BT)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids_BT.flatten())
    return (2 + moments) * parameters * width + sum(kept.values())
