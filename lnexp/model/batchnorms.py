"""Normalizers whose statistics belong to a feature, over batch and time, and are kept running.

Shapes: D features (any leading dimensions).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .affine import AffineEps

MOMENTUM = 0.1  # weight of the newest batch: PyTorch's default, and 1 - alpha in Shen 2020


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
