"""Loops of several processes: what each sees of its own batch, before gradients are averaged
(afterwards a NaN of one is everybody's), and weights of which each process holds a part (DTensor,
as FSDP2's fully_shard makes them), whose norms and counts are joined to those of the whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lnexp.config.schema import Measure
from lnexp.measure.nonfinite import HALF, mended, nonfinite_elements
from lnexp.measure.probes import ForwardReader, LargeProbe, fetch
from lnexp.measure.tensors import is_sharded, local
from lnexp.rows import Place


@dataclass(frozen=True)
class RankBatch:
    """What one process's own batch gave in one step."""

    rank: int
    loss: float
    tensor: str  # the first whose own gradient was not finite, in backward order; '': none

    @property
    def bad(self) -> bool:
        return bool(self.tensor) or not isfinite(self.loss)


class Ranks:
    """`size` is 1 where nothing is distributed: then nothing is attached or sent."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        several = dist.is_available() and dist.is_initialized()
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if several else (0, 1)
        self.named = list(named)
        self.sharded = any(is_sharded(weight) for _, weight in named)
        self.silent = False  # nothing may be sent any more
        self._own_norms: list[tuple[int, Tensor]] = []  # position and norm, in backward order
        self._handles: list[Any] = []

    @property
    def reads(self) -> bool:
        """Whether this process reads gradients and weights; of whole ones the first one does."""
        return self.rank == 0 or self.sharded

    @property
    def alike(self) -> bool:
        """Whether every process has read the same."""
        return self.size == 1 or self.sharded

    def attach(self, model: nn.Module) -> None:
        """A hook on a weight sees its gradient before the reduction does. A sharded weight has no
        gradient of its own; the whole one, which stands in its module's place while that runs,
        has: it is the same tensor in every step."""
        if self.size == 1:
            return
        if not self.sharded:
            for position, (_, weight) in enumerate(self.named):
                self._listen(weight, position)
            return
        positions = {id(weight): i for i, (_, weight) in enumerate(self.named)}
        for module in model.modules():
            own = {n: positions[id(p)] for n, p in module._parameters.items() if id(p) in positions}
            if own:
                self._listen_inside(module, own)

    def _listen(self, weight: Tensor, position: int) -> None:
        def read(gradient: Tensor) -> None:
            wide = torch.float32 if gradient.dtype in HALF else None
            norm = torch.linalg.vector_norm(gradient.detach(), dtype=wide)
            self._own_norms.append((position, norm))

        self._handles.append(weight.register_hook(read))

    def _listen_inside(self, module: nn.Module, own: dict[str, int]) -> None:
        known: set[int] = set()

        def forward_begins(module: nn.Module, _: Any) -> None:
            for name, position in own.items():
                weight = module._parameters.get(name)
                if weight is None or is_sharded(weight) or id(weight) in known:
                    continue
                if weight.requires_grad:
                    known.add(id(weight))
                    self._listen(weight, position)

        self._handles.append(module.register_forward_pre_hook(forward_begins))

    def detach(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def gather(self, loss: Tensor, replays: bool) -> tuple[list[RankBatch], bool]:
        """Every process's own loss and first bad gradient since the last call, and whether all of
        them can replay the step. Every process has to call it."""
        own, self._own_norms = self._own_norms, []
        norms = fetch([norm for _, norm in own])[0]
        bad = (at for (at, _), norm in zip(own, norms, strict=True) if not isfinite(norm))
        every = self._every([float(loss), float(next(bad, -1)), float(replays)]).tolist()
        batches = [
            RankBatch(rank, own_loss, self.named[int(at)][0] if at >= 0 else "")
            for rank, (own_loss, at, _) in enumerate(every)
        ]
        return batches, all(replays for *_, replays in every)

    def norms(self, own: Sequence[float]) -> list[float]:
        """L2 norms of wholes from those of the parts: scaled by the largest, so that no square
        leaves the format; nan wins over inf."""
        every = self._every(own)
        largest = every.amax(0)
        shares = torch.where(largest > 0, every / largest, 0.0)
        whole = largest * shares.square().sum(0).sqrt()
        return torch.where(largest.isfinite(), whole, largest).tolist()

    def sums(self, own: Sequence[float]) -> list[float]:
        return self._every(own).sum(0).tolist()

    def first_of(self, value: Any) -> Any:
        """The first rank's value that is not None."""
        if self.size == 1:
            return value
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, value)
        return next((v for v in every if v is not None), None)

    def _every(self, own: Sequence[float]) -> Tensor:
        """(process, number), in fp64."""
        if self.size == 1:
            return torch.tensor([own], dtype=torch.float64)
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        mine = torch.tensor(own, dtype=torch.float64, device=device)
        every = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(every, mine)
        return torch.stack(every).cpu()


class ShardedProbe(LargeProbe):
    """`weights` are the parts that lie here. Every process has to read, in the same order."""

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        groups: Mapping[Place, Sequence[int]],
        measure: Measure,
        forward: ForwardReader,
        ranks: Ranks,
    ) -> None:
        own: Any = [(name, local(p.detach())) for name, p in named]
        super().__init__(own, groups, measure, forward)
        self.parameters = [p for _, p in named]
        self.sizes = [p.numel() for p in self.parameters]
        self.ranks = ranks
        self._counts = [_counts_here(p, ranks.rank) for p in self.parameters]

    def grads(self) -> list[Tensor]:
        grads = [_as_sharded(cast(Tensor, p.grad), p) for p in self.parameters]
        return [g.to_dense() if g.is_sparse else g for g in grads]

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
    coordinates = parameter.device_mesh.get_coordinate()
    return all(
        placement.is_shard() or coordinate == 0
        for placement, coordinate in zip(parameter.placements, coordinates, strict=True)
    )
