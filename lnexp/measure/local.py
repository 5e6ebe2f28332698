"""Tensors that are spread over processes: what of them lies here."""

from typing import Any, cast

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """A DTensor: known by its method, since its module takes long to import."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """The part that lies here; an ordinary tensor is all here."""
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


def full(tensor: Tensor) -> Tensor:
    """The whole of it, gathered from every process."""
    return cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor
