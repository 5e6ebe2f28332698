"""Where the norms stand. A new placement is one entry of PLACEMENTS.

N blocks (attention + MLP), R = 2N residual sublayers, h the residual stream, F a sublayer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log, sqrt

from lnexp.model.branches import Block, Branch, BypassBlock, DualBlock, Form, GainBlock

__all__ = ["PLACEMENTS", "Branch", "Placement", "Seat"]


@dataclass(frozen=True)
class Seat:
    """One sublayer of a network."""

    block: int  # from 0
    half: str  # attn or mlp
    depth: int  # N


Where = bool | Callable[[Seat], bool]


@dataclass(frozen=True)
class Placement:
    """Which of a sublayer's places hold a norm, whether the whole network ends with one, and the
    constants that go with it."""

    equation: str
    source: str
    before: Where = False  # F(norm(h))
    inside: Where = False  # h + norm(F(...))
    after: Where = False  # norm(h + F(...))
    final: bool = False
    skip: Callable[[Seat], float] = lambda seat: 1.0  # a in a h + F
    damp: Callable[[Seat], float] = lambda seat: 1.0  # s in F(norm(h) / s)
    shrunk: tuple[str, ...] = ()  # weights whose init std is multiplied
    shrink: Callable[[int], float] = lambda depth: 1.0  # by this
    plain_gpt2: bool = False  # init gpt2 without / sqrt(2N) on the residual projections
    block: type[Block] | type[DualBlock] = Block

    def at(self, seat: Seat) -> Form:
        def here(where: Where) -> bool:
            return where if isinstance(where, bool) else where(seat)

        return Form(
            before=here(self.before),
            inside=here(self.inside),
            after=here(self.after),
            skip=self.skip(seat),
            damp=self.damp(seat),
        )

    def init_factor(self, weight: str, depth: int) -> float:
        """Of 'blocks.3.attn.body.wv': what its std is multiplied by."""
        return self.shrink(depth) if weight.rpartition(".")[2] in self.shrunk else 1.0


def early(seat: Seat) -> bool:
    """In the first quarter of the blocks; a part of a block counts as one."""
    return seat.block < seat.depth / 4


def admin(seat: Seat) -> float:
    """sqrt((R + 1) / ln(R + 1) - 1)."""
    sublayers = 2 * seat.depth + 1
    return sqrt(sublayers / log(sublayers) - 1)


PLACEMENTS: dict[str, Placement] = {
    "pre": Placement("h + F(norm(h)); final norm", "Xiong 2020", before=True, final=True),
    "post": Placement("norm(h + F(h))", "Xiong 2020", after=True),
    "none": Placement("h + F(h)", ""),
    "sandwich": Placement(
        "h + norm2(F(norm1(h))); final norm",
        "CogView; Gemma 2",
        before=True,
        inside=True,
        final=True,
    ),
    "output": Placement("h + norm(F(h)); final norm", "OLMo 2; Swin v2", inside=True, final=True),
    "deepnorm": Placement(
        "norm(a h + F(h)), a = (2N)^(1/4); init of W1, W2, W_V, W_O times (8N)^(-1/4)",
        "Wang 2022 (DeepNet)",
        after=True,
        skip=lambda seat: (2 * seat.depth) ** 0.25,
        shrunk=("w1", "w2", "wv", "wo"),
        shrink=lambda depth: (8 * depth) ** -0.25,
    ),
    "admin": Placement(
        "norm(w h + F(h)), w = sqrt((R + 1) / ln(R + 1) - 1)",
        "Liu 2020; admin-torch",
        after=True,
        skip=admin,
    ),
    "keel": Placement(
        "norm(a h + F(norm(h))), a = R; first block a = 1, first attention without outer norm",
        "Chen 2026 (KEEL)",
        before=True,
        after=lambda seat: (seat.block, seat.half) != (0, "attn"),
        skip=lambda seat: 2.0 * seat.depth if seat.block else 1.0,
    ),
    "rezero": Placement(
        "h + a F(h), a learned, one a block, 0 at the start", "Bachlechner 2020", block=GainBlock
    ),
    "tfixup": Placement(
        "h + F(h); init of W_O, W2, W_V and both embeddings times (9N)^(-1/4)",
        "Huang 2020",
        shrunk=("wo", "w2", "wv", "token", "position"),
        shrink=lambda depth: (9 * depth) ** -0.25,
    ),
    "lns": Placement(
        "h + F(norm(h) / sqrt(l)), l the block from 1; final norm; init gpt2 without / sqrt(2N)",
        "Sun 2025 (LayerNorm scaling)",
        before=True,
        final=True,
        damp=lambda seat: sqrt(seat.block + 1),
        plain_gpt2=True,
    ),
    "mix": Placement(
        "the first N/4 blocks, rounded up, norm(h + F(h)), the rest h + F(norm(h)); final norm",
        "Li 2024 (Mix-LN)",
        before=lambda seat: not early(seat),
        after=early,
        final=True,
    ),
    "b2t": Placement(
        "post; the MLP half is norm(x + h + F(h)), x the block's input",
        "Takase 2022",
        after=True,
        block=BypassBlock,
    ),
    "residual_dual": Placement(
        "h' = norm(h + F(h)), r' = r + F(h); the network ends with h + norm(r)",
        "Xie 2023 (ResiDual)",
        after=True,
        final=True,
        block=DualBlock,
    ),
}
