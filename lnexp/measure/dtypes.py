"""The number types that a model really computes in, read off one forward.

CPU autocast leaves LayerNorm and softmax in half precision, CUDA's lifts them to fp32: what a
config says and what a kernel does are two things.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

# Operation -> what it stands for; the output's type is the type it works in.
KINDS = {
    "mm": "matmul",
    "addmm": "matmul",
    "bmm": "matmul",
    "native_layer_norm": "norm",
    "_fused_rms_norm": "norm",
    "sqrt": "norm",  # a norm written out
    "rsqrt": "norm",
    "std": "norm",
    "_native_batch_norm_legit_no_training": "norm",
    "native_batch_norm": "norm",
    "linalg_vector_norm": "norm",
    "tanh": "norm",
    "_softmax": "softmax",
    "nll_loss_forward": "loss",
}


class _Observer(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, set[str]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        kind = "softmax" if "scaled_dot_product" in name else KINDS.get(name)
        first = out[0] if isinstance(out, tuple) else out
        if kind and isinstance(first, Tensor):
            self.found.setdefault(kind, set()).add(str(first.dtype).removeprefix("torch."))
        return out


@torch.no_grad()
def observe(
    model: nn.Module, x_BT: Tensor, y_BT: Tensor, context: AbstractContextManager[Any]
) -> dict[str, str]:
    """matmul, norm, softmax and loss -> the dtypes seen ('bfloat16, float32').

    In evaluation mode: nothing is drawn or changed.
    """
    was_training = model.training
    model.eval()
    try:
        with context, _Observer() as observer:
            F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
    finally:
        model.train(was_training)
    return {kind: ", ".join(sorted(types)) for kind, types in observer.found.items()}
