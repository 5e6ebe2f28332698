"""Loss scaling: none, a fixed factor, or torch's dynamic GradScaler.

A half-precision gradient below 6e-8 is 0; a loss multiplied by S keeps gradients S times smaller.
"""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..config import Train


class LossScale:
    """The factor S of a run.

    With fp32 master weights gradients are divided by S after backward. With fp16 weights they stay
    scaled: Adam sees them so (its eps acts as eps / S), and only figures and clipping divide.
    """

    def __init__(self, train: Train, device: torch.device) -> None:
        wanted = train.loss_scale
        if wanted == "auto":
            wanted = "dynamic" if train.precision == "fp16-mixed" else "none"
        self.fixed = float(wanted) if not isinstance(wanted, str) else 1.0
        self.scaler = torch.amp.GradScaler(device.type) if wanted == "dynamic" else None
        self.on = wanted != "none"
        self.stays = train.precision == "fp16"
        self.skips_in_a_row = 0

    @property
    def dynamic(self) -> bool:
        return self.scaler is not None

    @property
    def value(self) -> float:
        return self.scaler.get_scale() if self.scaler else self.fixed

    @property
    def divisor(self) -> float:
        """What a gradient's figure is divided by after `unscale`."""
        return self.fixed if self.stays else 1.0

    def scale(self, objective: Tensor) -> Tensor:
        if self.scaler:
            return self.scaler.scale(objective)
        return objective * self.fixed if self.on else objective

    def unscale(self, optimizer: Optimizer, gradients_N: Tensor) -> None:
        """`gradients_N`: the memory of the optimizer's gradients."""
        if self.scaler:
            self.scaler.unscale_(optimizer)
        elif self.on and not self.stays:
            gradients_N.div_(self.fixed)

    def state_dict(self) -> dict[str, Any]:
        return {
            "skips_in_a_row": self.skips_in_a_row,
            "scaler": self.scaler.state_dict() if self.scaler else None,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.skips_in_a_row = saved["skips_in_a_row"]
        if self.scaler:
            self.scaler.load_state_dict(saved["scaler"])

    def update(self, skipped: bool) -> None:
        """After the step; a skipped one halves a dynamic scale."""
        self.skips_in_a_row = self.skips_in_a_row + 1 if skipped else 0
        if self.scaler:
            self.scaler.update()
