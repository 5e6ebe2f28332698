"""Which module made an operation: known in forward from the calls that are open, in backward from
a tag on the autograd node.

torch.utils.module_tracker cannot tell siblings apart in backward; tagging each node with the
module whose forward made it can, also for q, k, v and inside containers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lnexp.measure.groups import plain, plain_modules

TAG = "lnexp.module"

# A private name of torch, looked up here alone; without it backward names operations only.
_current_node: Callable[[], Any] | None = getattr(torch._C, "_current_autograd_node", None)


class ModuleTags:
    """While open: `module` names the innermost module in forward, `node_module` in backward."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.names = {module: name or "model" for name, module in plain_modules(model)}
        self.kinds = {name: type(m).__name__ for m, name in self.names.items()}
        self.parameters = {id(p): plain(name) for name, p in model.named_parameters()}
        self.calls: list[tuple[str, nn.Module, Tensor | None]] = []

    @property
    def module(self) -> str:
        """Empty outside every forward: what computes the loss."""
        return self.calls[-1][0] if self.calls else ""

    @property
    def call(self) -> tuple[nn.Module, Tensor | None] | None:
        """The innermost open module and its first input."""
        return self.calls[-1][1:] if self.calls else None

    @contextmanager
    def open(self) -> Iterator["ModuleTags"]:
        handles = []
        try:
            for module, name in self.names.items():
                enter = self._enter(name)
                handles += [
                    module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True),
                    module.register_forward_hook(self._leave),
                ]
            yield self
        finally:
            self.calls.clear()
            for handle in handles:
                handle.remove()

    def node(self) -> tuple[str, str]:
        """Module and name of the autograd node that is running; empty where unknown."""
        node = _current_node() if _current_node else None
        if node is None:
            return "", ""
        variable = getattr(node, "variable", None)  # AccumulateGrad
        if variable is not None:
            return self.parameters.get(id(variable), ""), node.name()
        return node.metadata.get(TAG, ""), node.name()

    def _enter(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # What the inputs hang on was made before this call: by the module around it.
            inputs = [*args, *kwargs.values()]
            _tag(inputs, self.module)
            first = next((x for x in inputs if isinstance(x, Tensor)), None)
            self.calls.append((name, module, first))

        return enter

    def _leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        _tag(output, self.module)
        self.calls.pop()


def _tag(value: Any, name: str) -> None:
    """Tag every untagged node below a value's tensors."""
    nodes = [x.grad_fn for x in tensors(value) if x.grad_fn is not None]
    while nodes:
        node: Any = nodes.pop()
        if TAG in node.metadata or hasattr(node, "variable"):
            continue
        node.metadata[TAG] = name
        nodes += [below for below, _ in node.next_functions if below is not None]


def tensors(value: Any) -> Iterator[Tensor]:
    """Those in a value that modules take and give."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, Tensor))


def leaves(value: Any) -> Iterator[Any]:
    """What nested lists, tuples and dicts hold."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value
