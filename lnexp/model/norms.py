"""Normalizers, each a module beside its equation, and the statistics that an eps stands beside.

A new one is its module in NORM_CLASSES here, its equation and facts in catalog.NORMS.

Shapes: D features (any leading dimensions).
"""

from collections.abc import Callable
from math import sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lnexp.model.catalog import NORMS, Statistic

MOMENTUM = 0.1  # weight of the newest batch: PyTorch's default, and 1 - alpha in Shen 2020
ALPHA = 0.5  # start of dyt's a

# What every parameter starts at that is no linear layer's or embedding's: of the norms, and `gain`
# of rezero's blocks; buffers of norms that keep running statistics.
STARTS = {
    "weight": 1.0,
    "bias": 0.0,
    "alpha": ALPHA,
    "gain": 0.0,
    "running_mean": 0.0,
    "running_var": 1.0,
    "mean_square": 1.0,
    "nu": 0.0,
}


class Affine(nn.Module):
    """y g + b, gain and bias both learned; y as it is without."""

    shift: ClassVar[bool] = True  # whether there is a bias

    def __init__(self, width: int, elementwise_affine: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) if elementwise_affine else None
        bias = elementwise_affine and self.shift
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def scaled(self, y: Tensor) -> Tensor:
        if self.weight is not None:
            y = y * self.weight
        return y if self.bias is None else y + self.bias


class AffineEps(Affine):
    """With the eps that keeps its root away from 0."""

    def __init__(self, width: int, eps: float, elementwise_affine: bool) -> None:
        super().__init__(width, elementwise_affine)
        self.eps = eps


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
        self.alpha = nn.Parameter(torch.tensor(ALPHA))

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(torch.tanh(self.alpha * x))


class BatchNorm(AffineEps):
    """(x - mean) / sqrt(var + eps) * g + b, each feature over batch and time; running statistics
    at evaluation. In a causal model it shows every token what comes later."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int, eps: float, elementwise_affine: bool) -> None:
        super().__init__(width, eps, elementwise_affine)
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(
            x.flatten(0, -2),
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            MOMENTUM,
            self.eps,
        ).view_as(x)


class PowerNorm(AffineEps):
    """x / psi * g + b, psi^2 = running mean x^2 of earlier batches + eps (Shen 2020).

    After a training forward psi^2 += (1 - alpha) (mean x^2 - psi^2); it starts at 1. Without the
    authors' warm-up on batch statistics and without their group scaling.
    """

    mean_square: Tensor  # psi^2 without eps
    nu: Tensor

    def __init__(self, width: int, eps: float, elementwise_affine: bool) -> None:
        super().__init__(width, eps, elementwise_affine)
        self.register_buffer("mean_square", torch.ones(width))
        self.register_buffer("nu", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        psi_D = torch.sqrt(self.mean_square + self.eps)
        if self.training:
            y = _Power.apply(x, psi_D, self.nu)
            batch_D = x.detach().flatten(0, -2).square().mean(0).to(self.mean_square.dtype)
            self.mean_square.lerp_(batch_D, MOMENTUM)
        else:
            y = x / psi_D
        return self.scaled(y)


class _Power(torch.autograd.Function):
    """y = x / psi; backward keeps a running nu instead of the exact derivative.

    dL/dx = (dL/dy - nu y) / psi, then nu = nu (1 - (1 - alpha) mean y^2) + (1 - alpha) mean y dL/dy
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, psi_D: Tensor, nu_D: Tensor) -> Tensor:
        y = x / psi_D
        ctx.save_for_backward(y, psi_D)
        ctx.nu_D = nu_D  # updated by backward, so not saved
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        y, psi_D = ctx.saved_tensors
        nu_D: Tensor = ctx.nu_D
        grad_x = (grad - nu_D * y) / psi_D
        rows, grads = y.flatten(0, -2), grad.flatten(0, -2)
        old_D = nu_D * (1 - MOMENTUM * rows.square().mean(0))
        nu_D.copy_(old_D + MOMENTUM * (grads * rows).mean(0))
        return grad_x, None, None


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


NORM_CLASSES: dict[str, Any] = {  # each called with (width, eps=..., elementwise_affine=...)
    "layernorm": nn.LayerNorm,
    "layernorm_plain": LayerNormPlain,
    "layernorm_std": LayerNormStd,
    "rmsnorm": nn.RMSNorm,
    "rmsnorm_plain": RMSNormPlain,
    "batchnorm": BatchNorm,
    "powernorm": PowerNorm,
    "scalenorm": ScaleNorm,
    "dyt": DynamicTanh,
}
STATISTICS: dict[Statistic, Callable[[Tensor], Tensor]] = {
    "variance": variance,
    "deviation": deviation,
    "mean_square": mean_square,
    "length": length,
    "batch_variance": batch_variance,
    "batch_mean_square": batch_mean_square,
}


def beside_eps(norm: str) -> Callable[[Tensor], Tensor] | None:
    """What a norm's eps is added to or compared with; None: it has no eps."""
    statistic = NORMS[norm].beside_eps
    return None if statistic is None else STATISTICS[statistic]


def build_norm(name: str, width: int, eps: float, affine: bool) -> nn.Module:
    return NORM_CLASSES[name](width, eps=eps, elementwise_affine=affine)
