"""Where the norms stand. A new placement is one entry of PLACEMENTS.

Shapes: B batch, T time, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Placement:
    """Which of a sublayer's places hold a norm, and whether the whole network ends with one."""

    equation: str
    source: str
    before: bool = False  # F(norm(h))
    inside: bool = False  # h + norm(F(...))
    after: bool = False  # norm(h + F(...))
    final: bool = False


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
}


class Branch(nn.Module):
    """h -> after(h + inside(body(before(h)))), or the same without `h +`."""

    def __init__(
        self,
        body: nn.Module,
        placement: Placement,
        residual: bool,
        new_norm: Callable[[], nn.Module],
    ) -> None:
        super().__init__()

        def norm_if(wanted: bool) -> nn.Module:
            return new_norm() if wanted else nn.Identity()

        self.before = norm_if(placement.before)
        self.body = body
        self.inside = norm_if(placement.inside)
        self.after = norm_if(placement.after)
        self.residual = residual

    def forward(self, h_BTD: Tensor) -> Tensor:
        y_BTD = self.inside(self.body(self.before(h_BTD)))
        if self.residual:  # never `0 * h`: zero times inf is NaN
            y_BTD = h_BTD + y_BTD
        return self.after(y_BTD)

    @property
    def serving_norm(self) -> nn.Module | None:
        """The norm that serves this sublayer; with two, the first. None: there is none."""
        norms = (self.before, self.inside, self.after)
        return next((norm for norm in norms if not isinstance(norm, nn.Identity)), None)
