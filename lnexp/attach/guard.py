"""What goes wrong between a loop and its watch, in one line each."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lnexp.messages import UserError


def check_kinds(model: Any, optimizers: Sequence[Any]) -> None:
    if not isinstance(model, nn.Module):
        raise UserError(f"lnexp.watch: the model is a {type(model).__name__}, no torch.nn.Module")
    other = [type(o).__name__ for o in optimizers if not isinstance(o, Optimizer)]
    if other or not optimizers:
        given = f"a {other[0]}" if other else "an empty list"
        raise UserError(
            f"lnexp.watch(model, optimizer): a torch.optim.Optimizer or a list of them is "
            f"expected, not {given}"
        )


def as_loss(loss: Any) -> Tensor:
    try:
        value = torch.as_tensor(loss).detach()
    except (TypeError, ValueError, RuntimeError):
        raise UserError(
            f"w.step(loss): one number is expected, not a {type(loss).__name__}; of a model's "
            "output pass its loss"
        ) from None
    if value.numel() != 1:
        shape = "x".join(map(str, value.shape))
        raise UserError(f"w.step(loss): one number is expected, not {shape}; pass its mean")
    return value


class Guard:
    """Looks at the objects once, and at the order of calls; its hooks on gradients are there to be
    removed once a step went well."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        own = {id(p) for p in model.parameters()}
        for optimizer in optimizers:
            if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
                raise UserError(
                    f"lnexp.watch: the {type(optimizer).__name__} updates no parameter of this "
                    f"{type(model).__name__}: was it made for another model, or for its copy?"
                )
        if not any(p.requires_grad for p in model.parameters()):
            raise UserError(
                f"lnexp.watch: every parameter of this {type(model).__name__} is frozen"
            )
        if any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules()):
            raise UserError(
                "lnexp.watch: FullyShardedDataParallel flattens the parameters, which cannot be "
                "read by layer; use torch.distributed.fsdp.fully_shard, or DistributedDataParallel"
            )
        self.model, self.several = model, len(optimizers) > 1
        self.unannounced = 0  # steps of the optimizer that no w.step came before
        self._backward = False
        self._warned: set[str] = set()
        self._handles: list[Any] = []

    def attach(self) -> None:
        def arrived(_: Tensor) -> None:
            self._backward = True

        self._handles = [
            p.register_post_accumulate_grad_hook(arrived)
            for p in self.model.parameters()
            if p.requires_grad
        ]

    def detach(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def before_reading(self) -> None:
        if self.unannounced and not self.several:
            raise UserError(
                "w.step(loss): the optimizer has stepped without it; call w.step at every step, "
                "after loss.backward() and before optimizer.step()"
            )
        if not self.model.training:
            self._warn("the model is in evaluation mode, without dropout: model.train() is missing")

    def no_gradients(self) -> UserError:
        if self._backward:
            what = "the gradients are gone already; call it before zero_grad()"
        else:
            what = (
                "no parameter has a gradient; call it after loss.backward() and before zero_grad()"
            )
        return UserError(f"w.step(loss): {what}")

    def all_zero(self) -> None:
        self._warn("every gradient is exactly 0: was zero_grad() called before w.step(loss)?")

    def _warn(self, words: str) -> None:
        if words not in self._warned:
            self._warned.add(words)
            warnings.warn(f"lnexp.watch: {words}", stacklevel=5)
