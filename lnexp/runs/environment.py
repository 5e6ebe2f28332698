"""env.json: what a run really used, read off the objects that trained it.

The number types that a model computes in are read off one forward. CPU autocast leaves LayerNorm
and softmax in half precision, CUDA's lifts them to fp32: what a config says and what a kernel does
are two things.
"""

import platform
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lnexp import __version__
from lnexp.data import Corpus
from lnexp.model.check import norms_in
from lnexp.model.init import weights
from lnexp.train.state import State

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
        self.dtypes: dict[str, set[str]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        kind = "softmax" if "scaled_dot_product" in name else KINDS.get(name)
        first = out[0] if isinstance(out, tuple) else out
        if kind and isinstance(first, Tensor):
            self.dtypes.setdefault(kind, set()).add(_name(first.dtype))
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
    return {kind: ", ".join(sorted(types)) for kind, types in observer.dtypes.items()}


def environment(state: State, corpus: Corpus, device: str) -> dict[str, Any]:
    model = state.model
    norms = list(norms_in(model))
    return {
        **machine(device),
        "compile": "each block" if state.config.train.compile else "off",
        "checkpointing": "each block" if state.recompute else "off",
        "flush_denormal": state.config.train.flush_denormal,
        "optimizer": type(state.optimizer).__name__,
        "optimizer_kernel": "fused" if state.optimizer.defaults.get("fused") else "per tensor",
        "precision": state.config.train.precision,
        "weights_dtype": _name(next(model.parameters()).dtype),
        "autocast_dtype": _name(state.format.autocast or ""),
        "compute_dtypes": _compute_dtypes(state),
        "loss_scale": state.scale.value if state.scale.on else None,
        "loss_scaling": "dynamic" if state.scale.dynamic else "fixed" if state.scale.on else "none",
        "parameters": sum(p.numel() for p in model.parameters()),
        "norm_parameters": sum(p.numel() for _, norm, _ in norms for p in norm.parameters()),
        "tensors": len(list(model.parameters())),
        "norms": len(norms),
        "eps": sorted({eps for *_, eps in norms if eps is not None}),
        "init_std": _measured_std(state),
        "data_sha256": corpus.sha256,
        "characters": {"training": len(corpus.train), "validation": len(corpus.val)},
        "vocabulary": corpus.vocabulary,
        "letter_frequencies": corpus.letter_frequencies.tolist(),
        "ln_v": corpus.ln_v,
        "h1": corpus.h1,
        "h2": corpus.h2,
        "floor": corpus.floor,
    }


def machine(device: str) -> dict[str, Any]:
    """Versions, processor and threads."""
    return {
        "schema": 1,
        "lnexp": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "device": device,
        "device_name": torch.cuda.get_device_name() if device == "cuda" else _cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def _compute_dtypes(state: State) -> dict[str, str]:
    """Of matmul, norm, softmax and loss in a forward of zeros; of the moments: the weights'."""
    shape = (1, state.config.model.context)
    ids_BT = torch.zeros(shape, dtype=torch.long, device=state.batches.device)
    dtypes = observe(state.model, ids_BT, ids_BT, state.format.forward(ids_BT.device))
    # Fused kernels compute in fp32 whatever the weights' type; the others in that type.
    moments = _name(next(state.model.parameters()).dtype)
    if moments in ("float16", "bfloat16") and state.optimizer.defaults.get("fused"):
        moments = "float32"
    return {**dtypes, "optimizer": moments}


def _name(dtype: torch.dtype | str) -> str:
    return str(dtype).removeprefix("torch.")


def _measured_std(state: State) -> dict[str, float]:
    """Standard deviation of each kind of weight at the start, over all blocks."""
    pools: dict[str, list[torch.Tensor]] = {}
    for w in weights(state.model):
        if w.role not in ("gain", "shift"):
            kind = w.name.removesuffix(".bias").rsplit(".", 1)[-1]
            kind += ".bias" if w.role == "bias" else ""
            pools.setdefault(kind, []).append(w.tensor.detach().flatten())
    return {kind: float(torch.cat(pool).std(correction=0)) for kind, pool in pools.items()}


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = (row.split(":", 1)[1].strip() for row in file if row.startswith("model name"))
            return next(names, platform.processor())
    except OSError:  # not Linux
        return platform.processor()
