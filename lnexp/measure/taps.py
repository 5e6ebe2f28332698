"""What passes through a model in one forward, noted by functions that stand in for modules' own and
copied a few places at a time.

A stand-in takes less time than a hook, for which torch calls a module the long way. It
holds what it saw, uncopied, until enough has come together: no module of lnexp's own models writes
into what it was given or has given on.

Shapes: B sequences read; P places of one kind at once; U different tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from ..layerrows import Place


class Taps:
    """`then` is called with a module's first input and its output, while the taps are open."""

    def __init__(self) -> None:
        self._stand_ins: dict[tuple[nn.Module, str], Callable[..., Any]] = {}

    def on(
        self, module: nn.Module, then: Callable[[Any, Any], None], method: str = "forward"
    ) -> None:
        own: Callable[..., Any] = self._stand_ins.get((module, method)) or getattr(module, method)

        def stand_in(*inputs: Any) -> Any:
            output = own(*inputs)
            then(inputs[0], output)
            return output

        self._stand_ins[module, method] = stand_in

    def open(self) -> None:
        for (module, method), stand_in in self._stand_ins.items():
            vars(module)[method] = stand_in

    def close(self) -> None:
        for module, method in self._stand_ins:
            vars(module).pop(method, None)


class Copies:
    """The first sequences of tensors of one shape caught at some places, those of one type in one
    stack; a tensor that is several places' is there once."""

    def __init__(
        self, caught: Mapping[str, Sequence[tuple[Place, Tensor]]], sequences: int
    ) -> None:
        types: dict[torch.dtype, dict[int, Tensor]] = {}
        for several in caught.values():
            for _, x in several:
                types.setdefault(x.dtype, {})[id(x)] = x
        order = {key: row for row, key in enumerate(key for xs in types.values() for key in xs)}
        self.places = {kind: [place for place, _ in several] for kind, several in caught.items()}
        self.rows = {
            kind: tuple([order[id(x)] for _, x in several]) for kind, several in caught.items()
        }
        with torch.no_grad():
            self.stacks = [
                torch.stack([x[:sequences] for x in xs.values()]) for xs in types.values()
            ]

    def double(self) -> "Copies":
        """In fp64."""
        wide = copy(self)
        wide.stacks = [stack.double() for stack in self.stacks]
        return wide

    def each(self, number: Callable[[Tensor], Tensor]) -> Tensor:
        """U..., in the order that `rows` count in."""
        found = [number(stack) for stack in self.stacks]
        return found[0] if len(found) == 1 else torch.cat(found)

    def of(self, kind: str, number: Callable[[Tensor], Tensor]) -> Tensor:
        """P..., in the order of the places."""
        if len(self.stacks) == 1:
            return number(picked(self.stacks[0], self.rows[kind]))
        found, order, start = [], [], 0
        for stack in self.stacks:
            rows = {p: row - start for p, row in enumerate(self.rows[kind])}
            mine = {p: row for p, row in rows.items() if 0 <= row < stack.shape[0]}
            if mine:
                found.append(number(picked(stack, tuple(mine.values()))))
                order += mine
            start += stack.shape[0]
        return picked(torch.cat(found), tuple(sorted(range(len(order)), key=order.__getitem__)))


def picked(stack: Tensor, rows: tuple[int, ...]) -> Tensor:
    return stack[_index(rows, stack.device)]


@lru_cache(1024)  # of one model they are the same at every step
def _index(rows: tuple[int, ...], device: torch.device) -> slice | Tensor:
    """Rows one after the other need no copy."""
    if rows == tuple(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)
