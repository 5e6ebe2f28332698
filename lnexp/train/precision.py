"""Number formats. A new precision is one entry of PRECISIONS."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Format:
    """The type of the weights (and so of gradients and moments), and autocast's, if any."""

    weights: torch.dtype
    autocast: torch.dtype | None = None

    def forward(self, device: torch.device) -> AbstractContextManager[object]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.autocast)


PRECISIONS: dict[str, Format] = {
    "fp32": Format(torch.float32),
    "fp64": Format(torch.float64),
    "bf16-mixed": Format(torch.float32, torch.bfloat16),
}


def resolve_device(wanted: str) -> str:
    """`auto` is CUDA where there is one, else the CPU."""
    if wanted != "auto":
        return wanted
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_problem(device: str) -> str | None:
    """Why this machine cannot train there; None: it can."""
    if device == "cuda" and not torch.cuda.is_available():
        return "this machine has no CUDA device; write cpu or auto"
    if device == "mps" and not torch.backends.mps.is_available():
        return "this machine has no MPS device; write cpu or auto"
    return None
