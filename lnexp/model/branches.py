"""Sublayers with their norms, blocks of two of them, networks of blocks. The equation is `forward`.

    Pre-LN     h_BTD + body(before(h_BTD))
    Post-LN    after(h_BTD + body(h_BTD))

A sublayer holds the norms that its placement asks for (catalog.py), Identities in the other places.

Shapes: B batch, T time, D width.
"""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lnexp.model.catalog import BlockName, Terms


class Sublayer(nn.Module):
    """A body (attention or MLP) and its norms."""

    def __init__(
        self, body: nn.Module, terms: Terms, residual: bool, new_norm: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        self.before = new_norm() if terms.before else nn.Identity()
        self.body = body
        self.inside = new_norm() if terms.inside else nn.Identity()
        self.after = new_norm() if terms.after else nn.Identity()
        self.residual = residual
        self.skip, self.damp = terms.skip, terms.damp

    def added(self, h_BTD: Tensor) -> Tensor:
        """What is added to the stream: inside(body(before(h) / damp))."""
        x_BTD = self.before(h_BTD)
        return self.inside(self.body(x_BTD if self.damp == 1 else x_BTD / self.damp))

    @property
    def serving_norm(self) -> nn.Module | None:
        """The norm that serves this sublayer; with two, the first. None: there is none."""
        norms = (self.before, self.inside, self.after)
        return next((norm for norm in norms if not isinstance(norm, nn.Identity)), None)


class Branch(Sublayer):
    """h -> after(skip h + added(h)), or the same without `skip h +`."""

    def forward(self, h_BTD: Tensor) -> Tensor:
        y_BTD = self.added(h_BTD)
        if self.residual:  # never `0 * h`: zero times inf is NaN
            y_BTD = (h_BTD if self.skip == 1 else self.skip * h_BTD) + y_BTD
        return self.after(y_BTD)


class GainBranch(Sublayer):
    """h -> h + gain body(h), the gain learned elsewhere."""

    def forward(self, h_BTD: Tensor, gain: Tensor) -> Tensor:
        return h_BTD + self.inside(gain * self.body(h_BTD))


class BypassBranch(Sublayer):
    """h -> after(bypass + h + added(h))."""

    def forward(self, h_BTD: Tensor, bypass_BTD: Tensor) -> Tensor:
        return self.after(bypass_BTD + h_BTD + self.added(h_BTD))


class DualBranch(Sublayer):
    """h, r -> after(h + added(h)), r + added(h)."""

    def forward(self, h_BTD: Tensor, r_BTD: Tensor) -> tuple[Tensor, Tensor]:
        y_BTD = self.added(h_BTD)
        return self.after(h_BTD + y_BTD), r_BTD + y_BTD


class Halves(nn.Module):
    """A block's two sublayers. `build` makes one: (class, half) -> sublayer."""

    kinds: ClassVar[tuple[type[Sublayer], type[Sublayer]]] = (Branch, Branch)

    def __init__(self, build: Callable[[type[Sublayer], str], Sublayer]) -> None:
        super().__init__()
        self.attn = build(self.kinds[0], "attn")
        self.mlp = build(self.kinds[1], "mlp")


class Block(Halves):
    """An attention sublayer, then an MLP sublayer."""

    def forward(self, h_BTD: Tensor) -> Tensor:
        return self.mlp(self.attn(h_BTD))

    @staticmethod
    def network(h_BTD: Tensor, blocks: Iterable[Callable[..., Any]], norm: nn.Module) -> Tensor:
        """Embedded text -> what the head reads."""
        for block in blocks:
            h_BTD = block(h_BTD)
        return norm(h_BTD)


class GainBlock(Block):
    """Both halves are multiplied by one learned gain, 0 at the start."""

    kinds = (GainBranch, GainBranch)

    def __init__(self, build: Callable[[type[Sublayer], str], Sublayer]) -> None:
        super().__init__(build)
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, h_BTD: Tensor) -> Tensor:
        return self.mlp(self.attn(h_BTD, self.gain), self.gain)


class BypassBlock(Block):
    """The block's input is added once more before its last norm."""

    kinds = (Branch, BypassBranch)

    def forward(self, h_BTD: Tensor) -> Tensor:
        return self.mlp(self.attn(h_BTD), h_BTD)


class DualBlock(Halves):
    """Two streams: h, normalised after every sum, which the sublayers read; r, the plain sum."""

    kinds = (DualBranch, DualBranch)

    def forward(self, h_BTD: Tensor, r_BTD: Tensor) -> tuple[Tensor, Tensor]:
        return self.mlp(*self.attn(h_BTD, r_BTD))

    @staticmethod
    def network(h_BTD: Tensor, blocks: Iterable[Callable[..., Any]], norm: nn.Module) -> Tensor:
        """h + norm(r)."""
        r_BTD = h_BTD
        for block in blocks:
            h_BTD, r_BTD = block(h_BTD, r_BTD)
        return h_BTD + norm(r_BTD)


BLOCKS: dict[BlockName, type[Block] | type[DualBlock]] = {
    "plain": Block,
    "gain": GainBlock,
    "bypass": BypassBlock,
    "dual": DualBlock,
}
