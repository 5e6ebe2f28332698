"""What torch is asked to do in a step: products, other operations, views, bytes."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from train import Corpus

from lnexp.config.schema import RunConfig
from lnexp.data import Batches
from lnexp.model.init import build

PRODUCTS = ("mm", "addmm", "bmm")
ATTENTION = "_scaled_dot_product"
ALLOCATIONS = ("empty", "new_empty", "_unsafe_view")  # beside views: they touch no element
OVERWRITES = ("copy_", "fill_", "zero_")  # what they write they do not read

Product = tuple[str, tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]]  # shapes and strides


def size(tensor: Tensor) -> int:
    """Bytes of its elements in memory; an expanded tensor's are there once."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


class Counted(TorchDispatchMode):
    """Counts every operation below autograd, forward and backward, while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.ops = self.views = self.moved = 0
        self.products: Counter[Product] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if func.is_view or name.startswith(ALLOCATIONS):
            self.views += 1
            return result
        self.ops += 1
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if name in PRODUCTS:
            shapes = tuple((tuple(t.shape), t.stride()) for t in tensors)
            self.products[name, shapes] += 1
        elif not name.startswith(ATTENTION):
            self.moved += sum(map(size, tensors))
            pairs = zip(func._schema.arguments, args, strict=False)
            written = tree_leaves([value for argument, value in pairs if argument.is_write])
            if name not in OVERWRITES:
                self.moved += sum(size(t) for t in written if isinstance(t, Tensor))
            known = {id(t) for t in tensors}
            made = [t for t in tree_leaves(result) if isinstance(t, Tensor) and id(t) not in known]
            self.moved += sum(map(size, made))
        return result


def step_of(stream: Iterator[object]) -> Counted:
    """What its next step does."""
    with Counted() as counted:
        next(stream)
    return counted


def passes(cfg: RunConfig, corpus: Corpus) -> tuple[Counted, Counted]:
    """Forward, and backward."""
    model = build(cfg.model, len(corpus.vocabulary), 0).train()
    cpu = torch.device("cpu")
    x, y = Batches(corpus, cfg.train.batch_size, cfg.model.context, 0, cpu).draw()
    with Counted() as forward:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    with Counted() as backward:
        loss.backward()
    return forward, backward


def _attention(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    return sdpa_flop_count(q, k, v)


def _attention_backward(out: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    return sdpa_backward_flop_count(out, q, k, v)


def flops(stream: Iterator[object]) -> int:
    """Of its next step by torch's counter, which knows no attention on the CPU by itself."""
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    mapping = {attention: _attention, backward: _attention_backward}
    with FlopCounterMode(display=False, custom_mapping=cast(Any, mapping)) as counter:
        next(stream)
    return counter.get_total_flops()


def replay(product: Product) -> Callable[[], Tensor]:
    """The same product of other numbers, laid out the same way."""
    name, shapes = product
    tensors = [torch.empty_strided(*shape).normal_() for shape in shapes]
    op = getattr(torch, name)
    return lambda: op(*tensors)


def work(product: Product) -> int:
    """FLOPs."""
    (*_, (left, _), (right, _)) = product[1]
    batch = left[0] if len(left) == 3 else 1
    return 2 * batch * left[-2] * left[-1] * right[-1]


def inner(product: Product) -> int:
    """The dimension that it sums over."""
    (*_, (left, _), _) = product[1]
    return left[-1]
