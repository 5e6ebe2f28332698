"""A norm worked out step by step on a few numbers: the lesson's example.

Shapes: R rows (tokens), D features. Per-token steps are R x 1, per-feature ones 1 x D.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from lnexp.model.catalog import EXAMPLES
from lnexp.model.norms import ALPHA

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True)
class Step:
    name: str
    values: Tensor  # R x D, R x 1 or 1 x D


@dataclass(frozen=True)
class Inputs:
    x_RD: Tensor
    eps: Tensor  # 0-d, in the type of x: what that type holds of it
    gain_D: Tensor
    bias_D: Tensor


Steps = Iterator[tuple[str, Tensor]]


def _learned(y_RD: Tensor, given: Inputs, shift: bool = True) -> Steps:
    yield "normalised", y_RD
    y_RD = y_RD * given.gain_D
    yield "times gain", y_RD
    if shift:
        yield "plus bias", y_RD + given.bias_D


def _layernorm(given: Inputs, axis: int = -1) -> Steps:
    x_RD = given.x_RD
    mean = x_RD.mean(axis, keepdim=True)
    yield "mean", mean
    yield "minus mean", x_RD - mean
    variance = (x_RD - mean).square().mean(axis, keepdim=True)
    yield "variance", variance
    yield "variance + eps", variance + given.eps
    root = (variance + given.eps).sqrt()
    yield "root", root
    yield from _learned((x_RD - mean) / root, given)


def _layernorm_std(given: Inputs) -> Steps:
    x_RD = given.x_RD
    mean = x_RD.mean(-1, keepdim=True)
    yield "mean", mean
    yield "minus mean", x_RD - mean
    variance = (x_RD - mean).square().sum(-1, keepdim=True) / (x_RD.shape[-1] - 1)
    yield "variance (unbiased)", variance
    yield "standard deviation", variance.sqrt()
    root = variance.sqrt() + given.eps
    yield "deviation + eps", root
    yield from _learned((x_RD - mean) / root, given)


def _rmsnorm(given: Inputs) -> Steps:
    square = given.x_RD.square().mean(-1, keepdim=True)
    yield "mean square", square
    yield "mean square + eps", square + given.eps
    root = (square + given.eps).sqrt()
    yield "root", root
    yield from _learned(given.x_RD / root, given, shift=False)


def _scalenorm(given: Inputs) -> Steps:
    length = given.x_RD.square().sum(-1, keepdim=True).sqrt()
    yield "norm of x", length
    yield "max(norm, eps)", torch.maximum(length, given.eps)
    y_RD = given.x_RD / torch.maximum(length, given.eps)
    yield "direction", y_RD
    yield "times sqrt(d)", y_RD * sqrt(given.x_RD.shape[-1])


def _dyt(given: Inputs) -> Steps:
    x_RD = ALPHA * given.x_RD
    yield f"a x, a = {ALPHA}", x_RD
    yield from _learned(x_RD.tanh(), given)


WORKED: dict[str, Callable[[Inputs], Steps]] = {
    "layernorm": _layernorm,
    "layernorm_std": _layernorm_std,
    "rmsnorm": _rmsnorm,
    "batchnorm": lambda given: _layernorm(given, axis=0),
    "scalenorm": _scalenorm,
    "dyt": _dyt,
}


def work_out(
    norm: str,
    rows: list[list[float]],
    *,
    eps: float | None = None,
    gain: list[float] | None = None,
    bias: list[float] | None = None,
    dtype: str = "fp64",
) -> list[Step]:
    """Every intermediate value of a norm on `rows`, in that number format."""
    kind = DTYPES[dtype]
    x_RD = torch.tensor(rows, dtype=kind)
    width = x_RD.shape[-1]
    given = Inputs(
        x_RD=x_RD,
        eps=torch.tensor(EXAMPLES[norm].eps if eps is None else eps, dtype=kind),
        gain_D=torch.tensor(gain or [1.0] * width, dtype=kind),
        bias_D=torch.tensor(bias or [0.0] * width, dtype=kind),
    )
    return [Step("x", x_RD), *(Step(name, values) for name, values in WORKED[norm](given))]


def rms_over_eps(norm: str, rows: list[list[float]], eps: list[float], dtype: str) -> list[float]:
    """RMS of the normalised values for each eps: sigma / sqrt(sigma^2 + eps) for LayerNorm."""
    return [
        float(work_out(norm, rows, eps=e, dtype=dtype)[-1].values.double().square().mean().sqrt())
        for e in eps
    ]
