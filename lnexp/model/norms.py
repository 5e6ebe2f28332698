"""Normalizers. A new one is one entry of NORMS, beside its equation.

Shapes: D features (any leading dimensions).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class LayerNormPlain(nn.Module):
    """(x - mean) / sqrt(var + eps) * g + b, written out in the tensor's own dtype."""

    def __init__(self, width: int, eps: float, elementwise_affine: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width)) if elementwise_affine else None
        self.bias = nn.Parameter(torch.zeros(width)) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        y = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + self.eps)
        return y if self.weight is None or self.bias is None else y * self.weight + self.bias


def variance(x: Tensor) -> Tensor:
    """Biased variance over the features: what LayerNorm adds its eps to."""
    return x.var(-1, correction=0)


def mean_square(x: Tensor) -> Tensor:
    """mean x^2 over the features: what RMSNorm adds its eps to."""
    return x.square().mean(-1)


@dataclass(frozen=True)
class Norm:
    build: type[nn.Module]  # (width, eps=..., elementwise_affine=...)
    under_root: Callable[[Tensor], Tensor]  # one number a token, compared with eps
    equation: str
    source: str


NORMS: dict[str, Norm] = {
    "layernorm": Norm(
        nn.LayerNorm, variance, "(x - mean) / sqrt(var + eps) * g + b", "Ba 2016; PyTorch"
    ),
    "layernorm_plain": Norm(
        LayerNormPlain, variance, "the same, in the tensor's own dtype", "the lesson's function"
    ),
    "rmsnorm": Norm(nn.RMSNorm, mean_square, "x / sqrt(mean x^2 + eps) * g", "Zhang 2019; PyTorch"),
}


def build_norm(name: str, width: int, eps: float, affine: bool) -> nn.Module:
    return NORMS[name].build(width, eps=eps, elementwise_affine=affine)
