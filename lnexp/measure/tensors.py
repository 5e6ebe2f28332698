"""A tensor in a few numbers; of one that is spread over processes, what lies here."""

from typing import Any, cast

import torch
from torch import Tensor

from lnexp.records import TensorFigures


def is_sharded(tensor: Tensor) -> bool:
    """A DTensor: known by its method, since its module takes long to import."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """The part that lies here; an ordinary tensor is all here."""
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


def full(tensor: Tensor) -> Tensor:
    """The whole of it, gathered from every process."""
    return cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def describe(tensor: Tensor) -> TensorFigures:
    """Shape, type, range over the finite elements (None: there are none), NaN and Inf counts."""
    values = tensor.detach().double()
    finite = values[torch.isfinite(values)]
    some = finite.numel() > 0
    return TensorFigures(
        shape=list(tensor.shape),
        dtype=type_name(tensor.dtype),
        min=float(finite.min()) if some else None,
        max=float(finite.max()) if some else None,
        absmax=float(finite.abs().max()) if some else None,
        nan=int(values.isnan().sum()),
        inf=int(values.isinf().sum()),
    )


def held(value: float, dtype: torch.dtype) -> float:
    """A number as that type holds it: 1e-8 is 0 in float16."""
    return float(torch.tensor(value, dtype=torch.float64).to(dtype))
