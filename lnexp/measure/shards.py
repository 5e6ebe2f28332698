"""Weights of which every process holds a part (DTensor, as FSDP2's fully_shard makes them): each
reads its own part, and norms and counts are joined to those of the whole.

Every process has to read then, in the same order.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from ..config import Measure
from ..layerrows import Place
from .large import LargeProbe
from .local import is_sharded, local
from .nonfinite import mended, nonfinite_elements
from .probes import ForwardReader
from .ranks import Ranks


class ShardedProbe(LargeProbe):
    """`weights` are the parts that lie here."""

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        groups: Mapping[Place, Sequence[int]],
        measure: Measure,
        forward: ForwardReader,
        ranks: Ranks,
    ) -> None:
        here: Any = [(name, local(p.detach())) for name, p in named]
        super().__init__(here, groups, measure, forward)
        self.parameters = [p for _, p in named]
        self.sizes = [p.numel() for p in self.parameters]
        self.ranks = ranks
        self._counts = [_counts_here(p, ranks.rank) for p in self.parameters]

    def grads(self) -> list[Tensor]:
        found = [_as_sharded(cast(Tensor, p.grad), p) for p in self.parameters]
        return [g.to_dense() if g.is_sparse else g for g in found]

    def whole(self, grads: Sequence[Tensor], due: bool) -> list[Tensor]:
        return []

    def mended(
        self, norms: Sequence[float], tensors: Sequence[Tensor]
    ) -> tuple[list[float], list[int]]:
        if not norms:
            return [], []
        own, overflowed = mended(norms, tensors)
        flags = [float(i in overflowed) for i in range(len(own))]
        joined, anywhere = self.ranks.norms(self._once(own)), self.ranks.sums(flags)
        return joined, [i for i, count in enumerate(anywhere) if count]

    def summed(self, counts: Sequence[float]) -> list[float]:
        return self.ranks.sums(self._once(counts)) if counts else []

    def nonfinite(self, grads: Sequence[Tensor]) -> int:
        return int(sum(self.summed([nonfinite_elements([g]) for g in grads])))

    def _once(self, values: Sequence[float]) -> list[float]:
        """0 for what other processes hold too, all but the first of them."""
        return [v if counts else 0.0 for v, counts in zip(values, self._counts, strict=True)]


def _as_sharded(gradient: Any, parameter: Any) -> Tensor:
    """Of tensor parallelism a gradient may be a sum that is still to be taken."""
    if is_sharded(gradient) and gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
    return local(gradient)


def _counts_here(parameter: Any, rank: int) -> bool:
    """Of equal parts on several processes the first counts."""
    if not is_sharded(parameter):
        return rank == 0
    at = parameter.device_mesh.get_coordinate()
    return all(
        placement.is_shard() or here == 0
        for placement, here in zip(parameter.placements, at, strict=True)
    )
