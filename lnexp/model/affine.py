"""Gain and bias of a norm.

Shapes: D features (any leading dimensions).
"""

from typing import ClassVar

import torch
from torch import Tensor, nn


class Affine(nn.Module):
    """y g + b, both learned; y as it is without."""

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
