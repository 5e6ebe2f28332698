"""Number formats, which of them work here and how fast, and the scale of the loss."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from lnexp.config.schema import Train
from lnexp.model.catalog import PRECISIONS

SLOW = 2.0  # times fp32: from here on a precision is announced as slow


@dataclass(frozen=True)
class Format:
    """The type of the weights (and so of gradients and moments), and autocast's, if any."""

    weights: torch.dtype
    autocast: torch.dtype | None = None

    @property
    def products(self) -> torch.dtype:
        return self.autocast or self.weights

    def forward(self, device: torch.device) -> AbstractContextManager[object]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.autocast)


FORMATS: dict[str, Format] = {
    name: Format(getattr(torch, p.weights), getattr(torch, p.autocast) if p.autocast else None)
    for name, p in PRECISIONS.items()
}


def resolve_device(wanted: str) -> str:
    """`auto` is CUDA where there is one, else the CPU."""
    if wanted != "auto":
        return wanted
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_problem(device: str) -> str | None:
    """Why this machine cannot train there; None: it can."""
    if device == "cuda" and not torch.cuda.is_available():
        return "this machine has no CUDA device; write cpu or auto"
    if device == "mps" and not torch.backends.mps.is_available():
        return "this machine has no MPS device; write cpu or auto"
    if device == "mps":
        return "readings are taken in fp64, which MPS lacks; write cpu"
    return None


@cache
def precision_problem(precision: str, device: str) -> str | None:
    """Why a precision does not work there, by one small step of everything a model does."""
    number_format, place = FORMATS[precision], torch.device(device)
    try:
        weight = torch.nn.Parameter(torch.ones(8, 8, dtype=number_format.weights, device=place))
        gain = torch.ones(8, dtype=number_format.weights, device=place)
        optimizer = torch.optim.AdamW([weight], fused=True)
        with number_format.forward(place):
            x = F.layer_norm(weight @ weight, (8,), gain, gain)
            x = F.scaled_dot_product_attention(x[None], x[None], F.gelu(x)[None], is_causal=True)
            loss = F.cross_entropy(x[0].softmax(-1), torch.arange(8, device=place))
        loss.backward()
        optimizer.step()
    except (RuntimeError, TypeError) as error:
        return str(error).splitlines()[0]
    return None


def slowness(precision: str, device: str) -> float:
    """Time of a matrix product in that precision over fp32's."""
    narrow = FORMATS[precision].products
    return product_rate(torch.float32, device) / product_rate(narrow, device)


@cache
def product_rate(dtype: torch.dtype, device: str = "cpu") -> float:
    """FLOP/s of a product of 256 x 256 matrices, best of a few."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a run has it; with more, other kernels may be chosen
    try:
        a = torch.ones(256, 256, dtype=dtype, device=device)
        times = []
        for _ in range(5):
            began = perf_counter()
            float((a @ a)[0, 0])
            times.append(perf_counter() - began)
        return 2 * 256**3 / min(times)
    finally:
        torch.set_num_threads(threads)


class LossScale:
    """The factor S of a run: none, fixed, or that of torch's dynamic GradScaler. A half-precision
    gradient below 6e-8 is 0; a loss multiplied by S keeps gradients S times smaller.

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
