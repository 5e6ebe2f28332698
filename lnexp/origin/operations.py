"""The first operation with clean inputs whose output holds something non-finite.

-inf that a constant puts in on purpose (an attention mask) counts as clean, and so does what is
copied or added from it; NaN or +Inf born from it does not.
"""

from collections.abc import Iterator
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lnexp.measure.nonfinite import HALF
from lnexp.measure.tensors import describe, held, local
from lnexp.origin.tags import ModuleTags, leaves, tensors
from lnexp.records import Birth
from lnexp.rows import Phase

# Values between processes: what comes is another's, and its memory is unwritten at first.
SENT = ("fsdp", "c10d", "_c10d_functional")
# Their outputs are memory that nobody has written yet.
UNWRITTEN = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "set_")
FUSED = (nn.LayerNorm, nn.RMSNorm)  # they add eps in fp32 whatever the type of their input
GIVEN = "(given)"  # stands for the op where a weight or an input was bad before the step


class OperationMode(TorchDispatchMode):
    """Looks at every operation's outputs until the first bad one; then, in backward, until the
    first bad gradient."""

    def __init__(self, tags: ModuleTags, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self.tags = tags
        self.backward = False
        self.origin: Birth | None = None
        self.propagated: Birth | None = None
        # Storages that hold -inf on purpose; the tensors are kept, so that no address is reused.
        self._masks: dict[int, Tensor] = {}
        self._given = {name: p for name, p in parameters.items() if not _finite(p)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self.backward and self.tags.calls:  # checkpointing computes a forward again
            return out
        space, name = func._schema.name.split("::")
        # A view makes no value: in backward the first one would be a saved tensor taken up again.
        if not (self._seen_enough() or func.is_view or name in UNWRITTEN or space in SENT):
            for tensor in _floats(out):
                if not _finite(tensor):
                    self._examine(func, args, kwargs, tensor)
        return out

    def _seen_enough(self) -> bool:
        return (self.origin if not self.backward else self.propagated) is not None

    def _examine(self, func: Any, args: tuple[Any, ...], kwargs: dict, out: Tensor) -> None:
        if self._on_purpose(func, args, kwargs, out):
            self._masks[out.untyped_storage()._cdata] = out
            return
        if self._seen_enough():  # another output of the same operation
            return
        birth = self._birth(func, args, kwargs, out)
        if self.origin is None:
            self.origin = birth
            # In backward the origin is the first bad gradient itself.
            self.propagated = birth if self.backward else None
        else:
            self.propagated = birth

    def _on_purpose(self, func: Any, args: tuple[Any, ...], kwargs: dict, out: Tensor) -> bool:
        """Every non-finite element is -inf and comes from a constant."""
        if bool((out.isnan() | (out == inf)).any()):
            return False
        sources = [
            tensor
            for tensor in _floats([args, kwargs])
            if self._is_mask(tensor) or bool(_least(tensor).any())
        ]
        constant = any(isinstance(x, float) and x == -inf for x in leaves([args, kwargs]))
        if not sources and not constant:
            return False
        if constant and not _reads_mask(func, args):
            return True
        masked = torch.zeros(out.shape, dtype=torch.bool, device=out.device)
        for source in sources:
            try:
                masked = masked | (source == -inf) | _least(source)
            except RuntimeError:  # not elementwise: a view, a product, a reduction
                return True
        if constant:
            masked = masked | args[1]
        return masked.shape != out.shape or not bool(((out == -inf) & ~masked).any())

    def _is_mask(self, tensor: Tensor) -> bool:
        if tensor.untyped_storage()._cdata in self._masks:
            return True
        # A leaf that is no weight and holds nothing worse than -inf: a 0/-inf mask.
        leaf = tensor.grad_fn is None and id(tensor) not in self.tags.parameters
        bad = not _finite(tensor)
        return leaf and bad and not bool((tensor.isnan() | (tensor == inf)).any())

    def _birth(self, func: Any, args: tuple[Any, ...], kwargs: dict, out: Tensor) -> Birth:
        op = str(func)
        if self.backward:
            phase: Phase = "backward"
            module, node = self.tags.node()
            op = f"{node}/{op}" if node else op
            module = module or "loss"
        else:
            given = self._already_bad(func, args, kwargs)
            if given is not None:
                return given
            phase, module = ("forward", self.tags.module) if self.tags.calls else ("loss", "loss")
        inputs = list(_floats([args, kwargs]))
        return Birth(
            phase=phase,
            kind=_kind(out),
            module=module,
            module_kind=self.tags.kinds.get(module, ""),
            op=op,
            inputs=[describe(tensor) for tensor in inputs],
            outputs=[describe(out)],
            norm=None if self.backward else self._norm_facts(),
            attention=_score(op, inputs),
        )

    def _already_bad(self, func: Any, args: tuple[Any, ...], kwargs: dict) -> Birth | None:
        """A weight or a model input that was not finite before any operation touched it."""
        written = {
            i
            for i, a in enumerate(func._schema.arguments)
            if a.alias_info and a.alias_info.is_write
        }
        read = [value for i, value in enumerate(args) if i not in written]
        for tensor in _floats([read, kwargs]):
            for name, parameter in self._given.items():
                if parameter.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
                    return _given(name, parameter, "Parameter")
            if not _finite(tensor) and not self._is_mask(tensor):
                return _given("input", tensor, "")
        return None

    def _norm_facts(self) -> dict[str, float] | None:
        """Of the norm that is running: its smallest variance against eps, as its type holds it."""
        module, x = self.tags.call or (None, None)
        if module is None or x is None or not hasattr(module, "eps"):
            return None
        eps = float(module.eps)  # type: ignore[arg-type]
        inside = torch.float32 if x.dtype in HALF and isinstance(module, FUSED) else x.dtype
        return {
            "eps": eps,
            "eps_held": held(eps, inside),
            "smallest_variance": float(x.detach().double().var(-1, correction=0).min()),
        }


def _given(name: str, tensor: Tensor, module_kind: str) -> Birth:
    return Birth(
        phase="forward",
        kind=_kind(tensor),
        module=name,
        module_kind=module_kind,
        op=GIVEN,
        inputs=[],
        outputs=[describe(tensor)],
        note="was not finite before the step",
    )


def _reads_mask(func: Any, args: tuple[Any, ...]) -> bool:
    """masked_fill(x, where, -inf): known to the element what the constant filled."""
    name = func._schema.name
    return "masked_fill" in name and isinstance(args[1], Tensor) and args[1].dtype == torch.bool


def _score(op: str, inputs: list[Tensor]) -> dict[str, float] | None:
    """The largest score that goes into a softmax."""
    if "softmax" not in op or "log_softmax" in op or "backward" in op or not inputs:
        return None
    finite = inputs[0].detach()[torch.isfinite(inputs[0].detach())]
    return {"largest_score": float(finite.abs().max())} if finite.numel() else None


def _least(tensor: Tensor) -> Tensor:
    """The elements that hold the type's least number, which some masks write for -inf."""
    return tensor == torch.finfo(tensor.dtype).min


def _kind(tensor: Tensor) -> Literal["nan", "inf"]:
    """An operation that makes both made the Inf first: its NaN is born from it."""
    return "inf" if bool(tensor.isinf().any()) else "nan"


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(local(tensor.detach())).all())


def _floats(value: Any) -> Iterator[Tensor]:
    return (local(tensor) for tensor in tensors(value) if tensor.is_floating_point())
