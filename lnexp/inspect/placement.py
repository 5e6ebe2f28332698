"""Which value was made of which in one forward of anybody's model, and where each of its norms
stands, read off that graph; nothing is guessed.

Seen at the level of torch's functions, so a tensor is the very object that the model's code holds.
Below x is a norm's input and o its output; a residual sum adds a stream s to something made of s.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lnexp.origin.tags import tensors

# Functions that hand a value on: its shape, type or scale may change, not what it is a sum of.
HANDED_ON = {
    "view", "reshape", "transpose", "permute", "movedim", "swapaxes", "contiguous", "clone", "to",
    "float", "half", "bfloat16", "double", "type", "type_as", "detach", "dropout", "dropout_",
    "feature_dropout", "squeeze", "unsqueeze", "flatten", "unflatten", "expand", "expand_as",
    "__getitem__", "select", "narrow", "chunk", "split", "unbind", "alias", "view_as", "cpu",
    "cuda", "requires_grad_", "t", "index_select", "masked_fill", "nan_to_num", "__get__",
}  # fmt: skip
# With one operand that comes from the input: scale and shift by constants hand it on too.
SCALES = {
    "mul", "__mul__", "__rmul__", "__imul__", "mul_", "multiply", "div", "__truediv__", "div_",
}  # fmt: skip
SUMS = {"add", "__add__", "__radd__", "__iadd__", "add_", "addcmul"}

BEFORE = "before a sublayer"
INSIDE = "on a sublayer's output, before the addition"
AFTER = "after the addition"
OUTPUT = "on the output, after the last block"
EMBEDDING = "on the embedding, before the first block"
WITHIN = "inside a sublayer"
NOT_FOUND = "not found"


@dataclass
class Node:
    kind: str  # input, sum, norm, other
    parents: tuple[int, ...]
    owner: tuple[int, str] = (0, "")  # the call of the module that made it: its number, its name
    open: frozenset[int] = frozenset()  # the calls that were open then
    ancestors: int = 0  # a bit a node, its own too
    skips: int = 0  # the nodes that reach it by sums alone, its own too


@dataclass
class Graph:
    """Nodes in the order of their making; what only hands a value on makes none."""

    nodes: list[Node] = field(default_factory=list)
    calls: list[tuple[str, int, int]] = field(default_factory=list)  # norm's name, input, output

    def add(
        self, kind: str, parents: Iterable[int], owner: tuple[int, str], open_: Iterable[int]
    ) -> int:
        parents = tuple(dict.fromkeys(parents))
        bit = 1 << len(self.nodes)
        node = Node(kind, parents, owner, frozenset(open_), bit, bit)
        for parent in parents:
            node.ancestors |= self.nodes[parent].ancestors
            if kind == "sum":
                node.skips |= self.nodes[parent].skips
        self.nodes.append(node)
        return len(self.nodes) - 1


class _Recorder(TorchFunctionMode):
    def __init__(self, model: nn.Module, norms: dict[nn.Module, str]) -> None:
        super().__init__()
        self.graph = Graph()
        self.norms = norms
        self.names = {module: name for name, module in model.named_modules()}
        self.node_of: dict[int, int] = {}  # id of a tensor -> its node
        self.alive: list[Tensor] = []  # so that no id is used twice
        self.open: list[tuple[int, str]] = []  # calls
        self.inputs: list[int | None] = []  # of the norms that are open
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        outputs = list(tensors(out))
        sources = self._nodes([args, kwargs or {}]) if outputs else []
        if sources:
            node = self._made(getattr(func, "__name__", ""), sources)
            for tensor in outputs:
                self.hold(tensor, node)
        return out

    def _nodes(self, value: Any) -> list[int]:
        return [self.node_of[id(t)] for t in tensors(value) if id(t) in self.node_of]

    def _made(self, function: str, sources: list[int]) -> int:
        """What a function of these nodes makes: a new one, or the one that it hands on."""
        one = len(set(sources)) == 1
        alone = len(sources) == 1
        if (one and function in HANDED_ON) or (alone and function in SCALES | SUMS):
            return sources[0]
        return self.new("sum" if function in SUMS and not one else "other", sources)

    def new(self, kind: str, parents: Iterable[int]) -> int:
        owner = self.open[-1] if self.open else (0, "")
        return self.graph.add(kind, parents, owner, (call for call, _ in self.open))

    def hold(self, tensor: Tensor, node: int) -> None:
        self.node_of[id(tensor)] = node
        self.alive.append(tensor)

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.count += 1
        self.open.append((self.count, self.names.get(module, "")))
        if module in self.norms:
            sources = self._nodes([args, kwargs])
            self.inputs.append(sources[0] if len(sources) == 1 else None)

    def leave(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        self.open.pop()
        if module not in self.norms:
            return
        source, outputs = self.inputs.pop(), list(tensors(out))
        if source is None or len(outputs) != 1:
            return
        node = self.new("norm", [source])
        self.hold(outputs[0], node)
        self.graph.calls.append((self.norms[module], source, node))


def forward_graph(
    model: nn.Module, norms: dict[nn.Module, str], inputs: Callable[[], tuple[Any, ...]]
) -> Graph:
    """The graph of one forward in evaluation mode, without torch's fused encoder layer, which calls
    no norm of its own; raises what the model raises."""
    recorder, handles = _Recorder(model, norms), []
    training = {module: module.training for module in model.modules()}
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        model.eval()
        torch.backends.mha.set_fastpath_enabled(False)
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(recorder.enter, with_kwargs=True))
            handles.append(module.register_forward_hook(recorder.leave, with_kwargs=True))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            args = inputs()
            for tensor in tensors(args):
                recorder.hold(tensor, recorder.new("input", ()))
            with recorder:
                model(*args)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for handle in handles:
            handle.remove()
        for module, was in training.items():
            module.training = was
    return recorder.graph


@dataclass(frozen=True)
class Sum:
    """One order of a residual sum's two operands: `skip` brings the stream, `branch` what is made
    of it."""

    node: int
    skip: int
    branch: int


def norm_places(graph: Graph) -> dict[str, str]:
    """Norm's name -> where it stands; several places (a norm that is called twice) with 'and'."""
    sums = list(_residual_sums(graph))
    places: dict[str, list[str]] = {}
    last: list[tuple[str, int, int]] = []
    for name, x, o in graph.calls:
        place = _place(graph, sums, x, o)
        if place is None:
            last.append((name, x, o))
        else:
            places.setdefault(name, []).append(place)
    others = {place for several in places.values() for place in several}
    for name, x, o in last:
        places.setdefault(name, []).append(_at_the_end(graph, sums, x, o, others))
    return {name: " and ".join(dict.fromkeys(several)) for name, several in places.items()}


def _residual_sums(graph: Graph) -> Iterator[Sum]:
    for index, node in enumerate(graph.nodes):
        if node.kind != "sum" or len(node.parents) != 2:
            continue
        one, other = node.parents
        for skip, branch in ((one, other), (other, one)):
            stream, body = graph.nodes[skip].skips, graph.nodes[branch]
            if stream & body.ancestors & ~body.skips:
                yield Sum(index, skip, branch)


def _place(graph: Graph, sums: list[Sum], x: int, o: int) -> str | None:
    """None: after the last residual sum, where it matters what else the model has."""
    nodes = graph.nodes

    def made_of(node: int, what: int) -> bool:
        return bool(nodes[node].ancestors >> what & 1)

    def carries(node: int, what: int) -> bool:
        return bool(nodes[node].skips >> what & 1)

    after = sums[bisect_right(sums, o, key=lambda sum_: sum_.node) :]
    if any(
        carries(sum_.skip, x) and not carries(sum_.branch, o) and made_of(sum_.branch, o)
        for sum_ in after
    ):
        return BEFORE
    later = any(made_of(sum_.node, o) for sum_ in after)
    own = bisect_left(sums, x, key=lambda sum_: sum_.node)
    if own < len(sums) and sums[own].node == x:
        return AFTER if later else None
    if any(sum_.branch == o and nodes[sum_.skip].skips & nodes[x].ancestors for sum_ in after):
        return INSIDE
    for sum_ in after:
        stream = nodes[sum_.skip].skips & nodes[x].ancestors
        if stream and not carries(sum_.branch, o) and made_of(sum_.branch, o):
            return WITHIN
    before = any(made_of(x, sum_.node) for sum_ in sums)
    if not later:
        return None if before else NOT_FOUND
    return NOT_FOUND if before else EMBEDDING


def _at_the_end(graph: Graph, sums: list[Sum], x: int, o: int, others: set[str]) -> str:
    """After the addition or on the output: a norm that the last sum's own module calls belongs to
    that block. Where one module makes all sums, the other norms tell."""
    nodes, open_ = graph.nodes, graph.nodes[o].open
    owners = {nodes[sum_.node].owner[0] for sum_ in sums}
    if not any(sum_.node == x for sum_ in sums):
        return NOT_FOUND if owners & open_ else OUTPUT
    if nodes[x].owner[0] not in open_:
        return OUTPUT
    if len(owners) > 1:
        return AFTER
    after, elsewhere = AFTER in others, bool(others & {BEFORE, INSIDE})
    if after == elsewhere:
        return NOT_FOUND
    return AFTER if after else OUTPUT


def residual_projections(graph: Graph) -> list[str]:
    """Names of the modules whose outputs, normalised or not, are added to a stream."""
    names: dict[str, None] = {}
    for sum_ in _residual_sums(graph):
        node = graph.nodes[sum_.branch]
        if node.kind == "norm":
            node = graph.nodes[node.parents[0]]
        if node.kind == "other":
            names[node.owner[1]] = None
    return list(names)
