"""The probe of a large model: what can be is done in place, and memory is taken once."""

from collections.abc import Callable, Sequence
from math import isfinite

import torch
from torch import Tensor

from .nonfinite import norms, stacked, total
from .probes import Probe

# Private names of torch, looked up here alone.
_foreach_copy_: Callable[..., None] = getattr(torch, "_foreach_copy_")  # noqa: B009
_foreach_sub_: Callable[..., None] = getattr(torch, "_foreach_sub_")  # noqa: B009


class LargeProbe(Probe):
    _copy: list[Tensor] | None = None
    _finite = True  # the weights, when they were last looked at

    def grads(self) -> list[Tensor]:
        """A sparse gradient (of an embedding) as the dense one it stands for."""
        return [g.to_dense() if g.is_sparse else g for g in super().grads()]

    def whole(self, grads: Sequence[Tensor], due: bool) -> list[Tensor]:
        return [] if due else [torch.linalg.vector_norm(stacked(norms(grads)).double())]

    def weight_norm(self) -> float:
        norm = total(self.weight_norms())
        self._finite = isfinite(norm)
        return norm

    def copied(self) -> list[Tensor]:
        """Into the same memory every time."""
        if self._copy is None:
            self._copy = super().copied()
        else:
            _foreach_copy_(self._copy, self.now())
        return self._copy

    def updates(self) -> list[Tensor]:
        """With the opposite sign, in place of the copy; an autopsy of the update needs the copy."""
        if not self._finite:
            return super().updates()
        _foreach_sub_(self.kept, self.now())
        updates, self.kept = self.kept, []
        return updates
