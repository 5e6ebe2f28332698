"""A step of somebody's own training loop again, as a call that computes its loss: first as it was,
then in fp64. Weights, gradients, buffers and random streams are afterwards the ones they were.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from lnexp.measure.tensors import is_sharded
from lnexp.messages import UserError
from lnexp.origin.autopsy import autopsy_of, replayed
from lnexp.records import Autopsy, Replay

Closure = Callable[[], Tensor]
RUNNING = ("running_", "num_batches_tracked")  # buffers that a training forward moves


def bare(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and torch.compile."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, DistributedDataParallel | nn.DataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


class Rewind:
    """The random streams and running statistics that a forward began with."""

    def __init__(self, model: nn.Module) -> None:
        self.buffers = [b for n, b in model.named_buffers() if n.split(".")[-1].startswith(RUNNING)]
        self.cuda = sorted({p.device.index for p in model.parameters() if p.is_cuda})
        self._marked: tuple[Any, ...] | None = None

    def mark(self) -> None:
        self._marked = self._state()

    @contextmanager
    def again(self) -> Iterator[Callable[[], None]]:
        """Yields what goes back to the mark; afterwards all is as it was."""
        now = self._state()
        try:
            yield lambda: self._set(self._marked or now)
        finally:
            self._set(now)

    def _state(self) -> tuple[Any, ...]:
        streams = [torch.cuda.get_rng_state(device) for device in self.cuda]
        return torch.get_rng_state(), streams, [b.detach().clone() for b in self.buffers]

    def _set(self, state: tuple[Any, ...]) -> None:
        stream, others, buffers = state
        torch.set_rng_state(stream)
        for device, other in zip(self.cuda, others, strict=True):
            torch.cuda.set_rng_state(other, device)
        with torch.no_grad():
            for buffer, then in zip(self.buffers, buffers, strict=True):
                buffer.copy_(then)


def examine_closure(
    model: nn.Module, closure: Closure, rewind: Rewind, *, step: int, scale: float = 1.0
) -> Autopsy:
    """Where the first non-finite value of `closure`'s loss, times `scale`, or of its gradients is
    born."""
    began = perf_counter()
    inner = bare(model)
    with ExitStack() as stack:
        stack.enter_context(gradients_kept(inner))
        # Operations inside compiled code are not seen.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        if isinstance(model, DistributedDataParallel):
            stack.enter_context(model.no_sync())
        again = stack.enter_context(rewind.again())
        again()
        replay, propagated = replayed(inner, lambda _: _loss_of(closure) * scale)
        again()
        # Sharded weights come into their modules as the forward runs, in their own type.
        sharded = any(is_sharded(p) for p in inner.parameters())
        shadows = _in_fp64(inner, closure) if replay.origin and not sharded else {}
    return autopsy_of(step, replay, propagated, shadows, began)


def _loss_of(closure: Closure) -> Tensor:
    loss = closure()
    if not isinstance(loss, Tensor) or not loss.requires_grad or loss.numel() != 1:
        was = "no loss with a graph" if isinstance(loss, Tensor) else type(loss).__name__
        raise UserError(
            f"the replay gave {was}; write one that computes the batch's loss and returns it, "
            "without backward: lambda: loss_function(model(x), y)"
        )
    return loss


@contextmanager
def gradients_kept(model: nn.Module) -> Iterator[None]:
    gradients = [(p, p.grad) for p in model.parameters()]
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


class Widen(TorchDispatchMode):
    """What a model itself casts to a fixed type (scores for their softmax, logits for the loss)
    stays in fp64 with the rest."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        dtype = kwargs.get("dtype")
        if func is torch.ops.aten._to_copy.default and dtype and dtype.is_floating_point:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def _in_fp64(model: nn.Module, closure: Closure) -> dict[str, Replay]:
    """Empty where the model or its loss insists on a narrower type."""
    try:
        with _widened(model), sdpa_kernel(SDPBackend.MATH), Widen():
            return {"float64": replayed(model, lambda _: _loss_of(closure))[0]}
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return {}


@contextmanager
def _widened(model: nn.Module) -> Iterator[None]:
    """The model's modules hold fp64 copies of their weights and buffers, take inputs in fp64 and
    leave autocast. The weights themselves are untouched: optimizers and DDP hold on to them."""
    twins: dict[int, Tensor] = {}
    replaced: list[tuple[dict[str, Any], str, Tensor]] = []
    handles = []
    try:
        for module in model.modules():
            tables: list[dict[str, Any]] = [module._parameters, module._buffers]  # type: ignore
            for table in tables:
                for name, tensor in table.items():
                    if tensor is not None and tensor.is_floating_point():
                        replaced.append((table, name, tensor))
                        table[name] = twins.setdefault(id(tensor), _wide(tensor))
            handles.append(
                module.register_forward_pre_hook(_widen_inputs, prepend=True, with_kwargs=True)
            )
        yield
    finally:
        for table, name, tensor in replaced:
            table[name] = tensor
        for handle in handles:
            handle.remove()


def _wide(tensor: Tensor) -> Tensor:
    wide = tensor.detach().double().clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(wide, requires_grad=tensor.requires_grad)
    return wide


def _widen_inputs(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict]:
    """Autocast ends here too: the caller's own context puts its state back when it closes."""
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            torch.set_autocast_enabled(device, False)

    def wide(value: Any) -> Any:
        floating = isinstance(value, Tensor) and value.is_floating_point()
        return value.double() if floating and value.dtype != torch.float64 else value

    return tuple(map(wide, args)), {name: wide(value) for name, value in kwargs.items()}
