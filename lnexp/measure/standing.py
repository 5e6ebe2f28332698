"""Where each norm of a model stands, read off the graph of one forward; nothing is guessed.

x is the norm's input, o its output; a residual sum adds a stream s to something made of s.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from .dataflow import Graph

BEFORE = "before a sublayer"
INSIDE = "on a sublayer's output, before the addition"
AFTER = "after the addition"
OUTPUT = "on the output, after the last block"
EMBEDDING = "on the embedding, before the first block"
WITHIN = "inside a sublayer"
NOT_FOUND = "not found"


@dataclass(frozen=True)
class Sum:
    """One order of a residual sum's two operands: `skip` brings the stream, `branch` what is made
    of it."""

    node: int
    skip: int
    branch: int


def places(graph: Graph) -> dict[str, str]:
    """Norm's name -> where it stands; several places (a norm that is called twice) with 'and'."""
    sums = list(_residual_sums(graph))
    found: dict[str, list[str]] = {}
    last: list[tuple[str, int, int]] = []
    for name, source, out in graph.calls:
        place = _place(graph, sums, source, out)
        if place is None:
            last.append((name, source, out))
        else:
            found.setdefault(name, []).append(place)
    seen = {place for places in found.values() for place in places}
    for name, source, out in last:
        found.setdefault(name, []).append(_at_the_end(graph, sums, source, out, seen))
    return {name: " and ".join(dict.fromkeys(places)) for name, places in found.items()}


def _residual_sums(graph: Graph) -> Iterator[Sum]:
    for index, node in enumerate(graph.nodes):
        if node.kind != "sum" or len(node.parents) != 2:
            continue
        one, other = node.parents
        for skip, branch in ((one, other), (other, one)):
            stream, made = graph.nodes[skip].skips, graph.nodes[branch]
            if stream & made.ancestors & ~made.skips:
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


def _at_the_end(graph: Graph, sums: list[Sum], x: int, o: int, seen: set[str]) -> str:
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
    match AFTER in seen, bool(seen & {BEFORE, INSIDE}):
        case True, False:
            return AFTER
        case False, True:
            return OUTPUT
    return NOT_FOUND


def residual_projections(graph: Graph) -> list[str]:
    """Names of the modules whose outputs, normalised or not, are added to a stream."""
    found = []
    for sum_ in _residual_sums(graph):
        node = graph.nodes[sum_.branch]
        if node.kind == "norm":
            node = graph.nodes[node.parents[0]]
        if node.kind == "other":
            found.append(node.owner[1])
    return list(dict.fromkeys(found))
