"""What each process of a data-parallel run sees of its own batch, before gradients are averaged:
afterwards a NaN of one is everybody's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .nonfinite import HALF
from .probes import fetch


@dataclass(frozen=True)
class Local:
    """Of one process in one step."""

    rank: int
    loss: float
    tensor: str  # the first whose own gradient was not finite, in backward order; '': none

    @property
    def bad(self) -> bool:
        return bool(self.tensor) or not isfinite(self.loss)


class Ranks:
    """`size` is 1 where nothing is distributed: then nothing is attached or sent."""

    def __init__(self) -> None:
        there = dist.is_available() and dist.is_initialized()
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if there else (0, 1)
        self.names: list[str] = []
        self._seen: list[tuple[int, Tensor]] = []
        self._handles: list[Any] = []

    def attach(self, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        """A hook on a weight sees its gradient before DDP's reduction does."""
        if self.size == 1:
            return
        self.names = [name for name, _ in named]
        for position, (_, weight) in enumerate(named):

            def look(gradient: Tensor, position: int = position) -> None:
                wide = torch.float32 if gradient.dtype in HALF else None
                norm = torch.linalg.vector_norm(gradient.detach(), dtype=wide)
                self._seen.append((position, norm))

            self._handles.append(weight.register_hook(look))

    def detach(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def gather(self, loss: Tensor, replayed: bool) -> tuple[list[Local], bool]:
        """Every process's own loss and first bad gradient since the last call, and whether all of
        them can replay the step. Every process has to call it."""
        norms = fetch([norm for _, norm in self._seen])[0] if self._seen else []
        bad = [at for (at, _), n in zip(self._seen, norms, strict=True) if not isfinite(n)]
        self._seen = []
        first = bad[0] if bad else -1
        mine = torch.tensor([float(loss), first, replayed], dtype=torch.float64, device=loss.device)
        every = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(every, mine)
        rows = [row.tolist() for row in every]
        locals_ = [
            Local(rank, row[0], self.names[int(row[1])] if row[1] >= 0 else "")
            for rank, row in enumerate(rows)
        ]
        return locals_, all(row[2] for row in rows)

    def first_of(self, value: Any) -> Any:
        """The first rank's value that is not None."""
        if self.size == 1:
            return value
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, value)
        return next((v for v in every if v is not None), None)
