"""Which layer and part a weight belongs to, by its name in our GPT."""

from collections.abc import Sequence

from ..rows import Part


def place_of(name: str, depth: int) -> tuple[int, Part]:
    """'blocks.3.attn.body.wo.weight' -> (3, 'attn'); the embedding is -1, the head `depth`.

    'blocks.3.gain', rezero's, scales both halves where a norm would: part norm.
    """
    head, *rest = name.split(".")
    if head == "embed":
        return -1, "embed"
    if head != "blocks":
        return depth, "norm" if head == "norm" else "head"
    index, half, *inner = rest
    if inner[:1] != ["body"] or inner[1] in ("q_norm", "k_norm"):
        return int(index), "norm"
    return int(index), "attn" if half == "attn" else "mlp"


def grouped(names: Sequence[str], depth: int) -> dict[tuple[int, Part], list[int]]:
    """(layer, part) -> positions of its tensors, in forward order of layers."""
    groups: dict[tuple[int, Part], list[int]] = {}
    for position, name in enumerate(names):
        groups.setdefault(place_of(name, depth), []).append(position)
    order = ("embed", "attn", "mlp", "norm", "head")
    return dict(sorted(groups.items(), key=lambda item: (item[0][0], order.index(item[0][1]))))
