"""Which layer and part a weight of anybody's model belongs to, by the model's own module names.

A block is a module with a number for a name ('transformer.h.3', 'model.layers.3', 'blocks.3');
blocks of several stacks (an encoder, then a decoder) are counted on.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from lnexp.measure.groups import in_order, plain, plain_modules
from lnexp.messages import UserError
from lnexp.rows import Part

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
