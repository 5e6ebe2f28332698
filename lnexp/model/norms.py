"""Normalizers. A new one is one entry of NORMS, beside its equation.

Shapes: D features (any leading dimensions).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from .affine import Affine, AffineEps
from .batchnorms import BatchNorm, PowerNorm


class LayerNormPlain(AffineEps):
    """(x - mean) / sqrt(var + eps) * g + b, written out in the tensor's own dtype."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        root = torch.sqrt(centred.square().mean(-1, keepdim=True) + self.eps)
        return self.scaled(centred / root)


class LayerNormStd(AffineEps):
    """(x - mean) / (std + eps) * g + b; std unbiased, eps outside the root."""

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled((x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps))


class RMSNormPlain(AffineEps):
    """x / sqrt(mean x^2 + eps) * g, written out in the tensor's own dtype."""

    shift = False

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x / torch.sqrt(x.square().mean(-1, keepdim=True) + self.eps))


class ScaleNorm(nn.Module):
    """g x / max(|x|, eps), one g for all features; it starts, or without affine stays, at `unit`,
    which makes the output's RMS 1."""

    def __init__(self, width: int, eps: float, elementwise_affine: bool) -> None:
        super().__init__()
        self.eps = eps
        self.unit = sqrt(width)
        self.weight = nn.Parameter(torch.tensor(self.unit)) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        y = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=self.eps)
        return y * (self.unit if self.weight is None else self.weight)


class DynamicTanh(Affine):
    """tanh(a x) g + b; a, one for all features, is learned with and without affine. No eps."""

    def __init__(self, width: int, eps: float, elementwise_affine: bool) -> None:
        super().__init__(width, elementwise_affine)
        self.alpha = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(torch.tanh(self.alpha * x))


def variance(x: Tensor) -> Tensor:
    """Biased variance of each token: what LayerNorm adds its eps to."""
    # Not torch's var, which goes through the elements one by one.
    return (x - x.mean(-1, keepdim=True)).square().mean(-1)


def deviation(x: Tensor) -> Tensor:
    """Unbiased standard deviation of each token."""
    return x.std(-1)


def mean_square(x: Tensor) -> Tensor:
    """mean x^2 of each token: what RMSNorm adds its eps to."""
    return x.square().mean(-1)


def length(x: Tensor) -> Tensor:
    """|x| of each token."""
    return torch.linalg.vector_norm(x, dim=-1)


def batch_variance(x: Tensor) -> Tensor:
    """Biased variance of each feature over batch and time."""
    return x.flatten(0, -2).var(0, correction=0)


def batch_mean_square(x: Tensor) -> Tensor:
    """mean x^2 of each feature over batch and time: what PowerNorm's running one follows."""
    return x.flatten(0, -2).square().mean(0)


@dataclass(frozen=True)
class Norm:
    build: Callable[..., nn.Module]  # a class; (width, eps=..., elementwise_affine=...)
    beside_eps: Callable[[Tensor], Tensor] | None  # what eps is added to or compared with, if any
    equation: str
    source: str
    over_batch: bool = False  # statistics of a feature over batch and time, not of a token
    causal: bool = True  # False: a later token changes what an earlier one becomes


NORMS: dict[str, Norm] = {
    "layernorm": Norm(
        nn.LayerNorm, variance, "(x - mean) / sqrt(var + eps) * g + b", "Ba 2016; PyTorch"
    ),
    "layernorm_plain": Norm(
        LayerNormPlain, variance, "the same, in the tensor's own dtype", "lesson 1's function"
    ),
    "layernorm_std": Norm(
        LayerNormStd, deviation, "(x - mean) / (unbiased std + eps) * g + b", "lesson 2's class"
    ),
    "rmsnorm": Norm(nn.RMSNorm, mean_square, "x / sqrt(mean x^2 + eps) * g", "Zhang 2019; PyTorch"),
    "rmsnorm_plain": Norm(
        RMSNormPlain, mean_square, "the same, in the tensor's own dtype", "Zhang 2019"
    ),
    "batchnorm": Norm(
        BatchNorm,
        batch_variance,
        "(x - mean) / sqrt(var + eps) * g + b over batch and time; running ones at evaluation",
        "Ioffe 2015; PyTorch",
        over_batch=True,
        causal=False,
    ),
    "powernorm": Norm(
        PowerNorm,
        batch_mean_square,
        "x / sqrt(running mean x^2 over batch and time + eps) * g + b; approximate backward",
        "Shen 2020",
        over_batch=True,
    ),
    "scalenorm": Norm(
        ScaleNorm, length, "g x / max(|x|, eps); g starts at sqrt(width)", "Nguyen 2019"
    ),
    "dyt": Norm(DynamicTanh, None, "tanh(a x) g + b; a starts at 0.5", "Zhu 2025"),
}


def build_norm(name: str, width: int, eps: float, affine: bool) -> nn.Module:
    return NORMS[name].build(width, eps=eps, elementwise_affine=affine)
