"""The network of a run as an inline SVG, with the place where its first bad value was born."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from lnexp.explain.case import Case
from lnexp.explain.words import module_words
from lnexp.model.catalog import PLACEMENTS, Seat
from lnexp.records import KINDS, PHASES

WHOLE = 6  # blocks that are all drawn; of more, the first, the last and the origin's neighbours
BARE = PLACEMENTS["none"]  # how a placement of a later version is drawn
DOWN = {"forward": "forward ▼", "loss": "loss ▼", "backward": "backward ▲", "optimizer": "update"}
NEEDS = ("model.depth", "model.placement", "model.residual")  # settings
WIDTH, ROW, LEFT, RIGHT = 340, 38, 12, 252


@dataclass(frozen=True)
class BirthMark:
    """A place in the network where a bad value was seen."""

    kind: str  # NaN, Inf
    phase: str
    module: str
    role: str = "born"  # or spread: the first bad gradient

    @property
    def place(self) -> tuple[int | None, str, str]:
        """Block, half and element: (13, 'mlp', 'body'), or (None, 'head', '').

        What a sublayer does itself, outside of its parts, is the sum with its skip.
        """
        head, *rest = self.module.split(".")
        if head != "blocks" or not rest or not rest[0].isdigit():
            return None, head, ""
        block, half, element = int(rest[0]), *[*rest[1:3], "", ""][:2]
        if half not in ("attn", "mlp"):
            return block, "", ""
        if element not in ("before", "inside", "after"):
            element = "body" if element else "plus"
        return block, half, element


def norms_at(placement: str, depth: int, block: int, half: str) -> str:
    """The norms of one sublayer, of 'before inside after'."""
    return " ".join(PLACEMENTS.get(placement, BARE).at(Seat(block, half, depth)).norms)


def marks(case: Case) -> list[BirthMark]:
    """From the autopsy, else from the events."""
    seen: list[BirthMark] = []
    if case.autopsy is not None and case.autopsy.origin is not None:
        births = (("born", case.autopsy.origin), ("spread", case.autopsy.propagated))
        seen = [BirthMark(KINDS[b.kind], b.phase, b.module, role) for role, b in births if b]
    elif case.judgement.verdict == "nonfinite":
        origin = (e for e in case.events_of("nan", "inf") if e["role"] == "origin")
        seen = [BirthMark(KINDS[e["kind"]], e["phase"], e["module"]) for e in origin][:1]
    return seen[:1] if len({mark.place for mark in seen}) == 1 else seen


def diagram(settings: dict[str, Any], seen: list[BirthMark]) -> Markup:
    """Text in at the top, loss at the bottom; `settings` by dotted name."""
    depth = int(settings["model.depth"])
    blocks = shown_blocks(depth, [mark.place[0] for mark in seen])
    drawing = Drawing(seen)
    drawing.box("embed", "embedding")
    last = -1
    for block in blocks:
        if block - last > 1:
            drawing.gap(block - last - 1)
        drawing.block(settings, depth, block)
        last = block
    if PLACEMENTS.get(settings["model.placement"], BARE).final:
        drawing.box("norm", "final norm")
    drawing.box("head", "head")
    drawing.box("loss", "loss")
    title = f"{depth} blocks, {settings['model.placement']}"
    return drawing.svg(". ".join([title, *(words(mark, depth) for mark in seen)]))


def shown_blocks(depth: int, origins: Iterable[int | None]) -> list[int]:
    if depth <= WHOLE:
        return list(range(depth))
    around = {block + d for block in origins if block is not None for d in (-1, 0, 1)}
    return sorted({0, depth - 1} | {block for block in around if 0 <= block < depth})


def words(mark: BirthMark, depth: int) -> str:
    """'Inf was born in the forward pass, in block 14 of 100 (layer 13), MLP, second matrix ...'"""
    where = f"{PHASES[mark.phase]}, in {module_words(mark.module, depth)}"
    if mark.role == "born":
        return f"{mark.kind} was born {where}."
    return f"It spread: the first bad gradient ({mark.kind}) was {where}."


class Drawing:
    """Collects the drawing from top to bottom."""

    def __init__(self, seen: list[BirthMark]) -> None:
        self.seen = seen
        self.parts: list[str] = []
        self.y = 6

    def box(self, module: str, words: str) -> None:
        """A part of the network that is no block."""
        mark = self._mark((None, module, ""))
        self._rect(LEFT, self.y, RIGHT - LEFT, 24, mark)
        self._text(LEFT + (RIGHT - LEFT) / 2, self.y + 16, words)
        self._birth(self.y + 16, mark)
        self._down(self.y + 24)
        self.y += 34

    def gap(self, count: int) -> None:
        words = f"… {count} more block{'s' * (count > 1)} …"
        self._text(LEFT + (RIGHT - LEFT) / 2, self.y + 11, words, "dots")
        self._down(self.y + 16)
        self.y += 26

    def block(self, settings: dict[str, Any], depth: int, block: int) -> None:
        top = self.y
        height = 2 * ROW + 26
        self.parts.append(
            f'<rect class="block" x="{LEFT}" y="{top}" width="{RIGHT - LEFT}" height="{height}" '
            'rx="5"/>'
        )
        self._text(LEFT + 8, top + 15, f"block {block + 1} of {depth}", "left")
        self._birth(top + 15, self._mark((block, "", "")))
        for i, half in enumerate(("attn", "mlp")):
            norms = norms_at(settings["model.placement"], depth, block, half)
            self._sublayer(top + 26 + i * ROW, block, half, norms, settings["model.residual"])
        self._down(top + height)
        self.y += height + 10

    def _sublayer(self, y: int, block: int, half: str, norms: str, residual: bool) -> None:
        """One row: the branch from left to right, its skip above it."""
        x, start = LEFT + 12, LEFT + 5
        names = {"before": "norm", "body": "attention" if half == "attn" else "MLP"}
        names |= {"inside": "norm", "plus": "+", "after": "norm"}
        wanted = {"body", *norms.split(), *(["plus"] if residual else [])}
        for element in ("before", "body", "inside", "plus", "after"):
            if element not in wanted:
                continue
            mark = self._mark((block, half, element))
            if element == "plus":
                role = mark.role if mark else "sum"
                self.parts.append(
                    f'<path class="skip" d="M{start} {y + 16}V{y + 1}H{x + 8}V{y + 8}"/>'
                    f'<circle class="{role}" cx="{x + 8}" cy="{y + 16}" r="8"/>'
                )
                self._text(x + 8, y + 20, "+")
                self._birth(y + 20, mark)
                x += 22
                continue
            if element == "body" and not residual:  # no sum: the branch is all there is
                mark = mark or self._mark((block, half, "plus"))
            width = 66 if element == "body" else 42
            self._rect(x, y + 5, width, 22, mark)
            self._text(x + width / 2, y + 20, names[element])
            self._birth(y + 20, mark)
            x += width + 6

    def _mark(self, place: tuple[int | None, str, str]) -> BirthMark | None:
        return next((mark for mark in self.seen if mark.place == place), None)

    def _rect(
        self, x: float, y: float, width: float, height: float, mark: BirthMark | None
    ) -> None:
        role = f' class="{mark.role}"' if mark else ""
        self.parts.append(
            f'<rect{role} x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>'
        )

    def _text(self, x: float, y: float, words: str, kind: str = "") -> None:
        role = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text{role} x="{x:g}" y="{y:g}">{escape(words)}</text>')

    def _birth(self, y: float, mark: BirthMark | None) -> None:
        """In the margin beside the place: what, and whether on the way down or back up."""
        if mark is None:
            return
        first = f"{mark.kind} born" if mark.role == "born" else f"{mark.kind} spread"
        self._text(RIGHT + 6, y - 6, first, f"left {mark.role}")
        self._text(RIGHT + 6, y + 8, DOWN.get(mark.phase, mark.phase), f"left {mark.role}")

    def _down(self, y: float) -> None:
        middle = LEFT + (RIGHT - LEFT) / 2
        self.parts.append(f'<path class="flow" d="M{middle:g} {y}v10"/>')

    def svg(self, title: str) -> Markup:
        self.parts.pop()  # nothing follows the loss
        head = f'<svg class="network" viewBox="0 0 {WIDTH} {self.y}" role="img">'
        return Markup(f"{head}<title>{escape(title)}</title>{''.join(self.parts)}</svg>")
