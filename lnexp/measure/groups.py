"""Names of modules and weights, and which layer and part a weight of our GPT belongs to by its."""

import re
from collections.abc import Iterator, Sequence

from torch import nn

from lnexp.rows import PARTS, Part

# What wrappers (DDP, torch.compile, checkpointing, FSDP) put into a name.
WRAPPERS = re.compile(
    r"(^|(?<=\.))(module|_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\."
)

# The matrices of a block: part -> (half, module, which third of a joint matrix).
MATRICES: dict[Part, tuple[str, str, int | None]] = {
    "wq": ("attn", "wqkv", 0),
    "wk": ("attn", "wqkv", 1),
    "wv": ("attn", "wqkv", 2),
    "wo": ("attn", "wo", None),
    "w1": ("mlp", "w1", None),
    "w2": ("mlp", "w2", None),
}
Matrix = tuple[tuple[int, Part], int, int | None]  # place, position of its tensor, which third


def plain(name: str) -> str:
    """A module's or parameter's name without what wrappers add to it."""
    return WRAPPERS.sub("", name)


def plain_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """`model.named_modules()` under plain names."""
    return ((plain(f"{name}.")[:-1], module) for name, module in model.named_modules())


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
    return in_order(groups)


def in_order(groups: dict[tuple[int, Part], list[int]]) -> dict[tuple[int, Part], list[int]]:
    return dict(sorted(groups.items(), key=lambda i: (i[0][0], PARTS.index(i[0][1]))))


def matrices(names: Sequence[str], depth: int) -> list[Matrix]:
    """Of all blocks."""
    positions = {name: i for i, name in enumerate(names)}
    return [
        ((layer, part), positions[name], third)
        for layer in range(depth)
        for part, (half, module, third) in MATRICES.items()
        if (name := f"blocks.{layer}.{half}.body.{module}.weight") in positions
    ]
