"""Names of modules and weights, and which layer and part a weight belongs to by its name: in our
GPT, and in anybody's model.

There a block is a module with a number for a name ('transformer.h.3', 'model.layers.3',
'blocks.3'); blocks of several stacks (an encoder, then a decoder) are counted on.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from lnexp.messages import UserError
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


NORM = re.compile(r"norm|(^|_)ln(_|\d|$)|_ln_|^bn\d?$")
ATTENTION = re.compile(r"attn|attention")
MLP = re.compile(r"mlp|ffn|feed_?forward|^dense|^fc|linear\d|experts?|moe")
PROJECTION = re.compile(r"^(wqkv|qkv|wq|wk|wv|wo|[qkvo]_proj|query|key|value)$")
EMBED = re.compile(r"emb|^(wte|wpe|tok|pos|patch|stem|shared)|cls_token")
HEAD = re.compile(r"head|classifier|^score$|^decoder$")


@dataclass(frozen=True)
class Places:
    """The places of a model's parameters, in the order of `model.named_parameters()`."""

    blocks: list[str]  # module name of each layer
    of: dict[str, tuple[int, Part]]  # parameter name, wrappers' words left out -> place

    @property
    def depth(self) -> int:
        return len(self.blocks)

    def groups(self, names: Sequence[str]) -> dict[tuple[int, Part], list[int]]:
        """Place -> positions of its tensors among `names`."""
        groups: dict[tuple[int, Part], list[int]] = {}
        for position, name in enumerate(names):
            groups.setdefault(self.of[name], []).append(position)
        return in_order(groups)


def places(model: nn.Module, blocks: str = "") -> Places:
    """`blocks`: a regular expression whose match in a parameter's name is its block."""
    names = [plain(name) for name, _ in model.named_parameters()]
    modules = dict(plain_modules(model))
    block_names = _matched(names, blocks) if blocks else _numbered(modules, names)
    order = list(dict.fromkeys(b for b in block_names if b))
    first = next((i for i, block in enumerate(block_names) if block), 0)
    of: dict[str, tuple[int, Part]] = {}
    for position, (name, block) in enumerate(zip(names, block_names, strict=True)):
        owner = modules.get(name.rpartition(".")[0])
        words = [word.lower() for word in name.removeprefix(block).split(".") if word]
        if block:
            of[name] = order.index(block), _inside(words, owner)
        else:
            of[name] = _outside(words, owner, len(order), before=position < first)
    return Places(order, of)


def _matched(names: Sequence[str], pattern: str) -> list[str]:
    try:
        matches = [re.search(pattern, name) for name in names]
    except re.error as problem:
        raise UserError(f"blocks={pattern!r}: no regular expression ({problem})") from None
    if not any(matches):
        raise UserError(
            f"blocks={pattern!r}: no parameter's name holds it; names look like {names[0]!r}"
        )
    return [
        name[: match.end()] if match else "" for name, match in zip(names, matches, strict=True)
    ]


def _numbered(modules: dict[str, nn.Module], names: Sequence[str]) -> list[str]:
    """The block of each parameter, '' outside of all. Stacks of modules that hold modules are
    meant; where there are none (a plain Sequential), single layers are."""
    matches = [re.match(r"(.*?(?:^|\.)\d+)\.", name) for name in names]
    candidates = [match[1] if match else "" for match in matches]
    whole: dict[str, bool] = {}
    for block in dict.fromkeys(filter(None, candidates)):
        stack = block.rpartition(".")[0]
        deep = block in modules and any(True for _ in modules[block].children())
        whole[stack] = whole.get(stack, True) and deep
    if any(whole.values()):
        return [c if c and whole[c.rpartition(".")[0]] else "" for c in candidates]
    return candidates


def _holder(words: list[str]) -> str:
    """The name of the module that holds the weight."""
    return words[-2] if len(words) > 1 else ""


def _is_norm(owner: nn.Module | None, words: list[str]) -> bool:
    return "norm" in type(owner).__name__.lower() or bool(NORM.search(_holder(words)))


def _inside(words: list[str], owner: nn.Module | None) -> Part:
    """By the name of the module that holds the weight, else by the path to it. What is neither
    norm nor attention is counted as MLP."""
    if _is_norm(owner, words):
        return "norm"
    if any(ATTENTION.search(word) for word in words):
        return "attn"
    if any(MLP.search(word) for word in words):
        return "mlp"
    return "attn" if any(PROJECTION.search(word) for word in words) else "mlp"


def _outside(
    words: list[str], owner: nn.Module | None, depth: int, before: bool
) -> tuple[int, Part]:
    embeds = isinstance(owner, nn.Embedding) or any(EMBED.search(word) for word in words)
    if embeds or (before and not HEAD.search(_holder(words))):
        return -1, "embed"
    return depth, "norm" if _is_norm(owner, words) else "head"
