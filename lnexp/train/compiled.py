"""torch.compile, block by block: blocks of one form share a compilation, whatever the depth.

The compiled calls stand beside the model, not in it: its modules keep their names, so snapshots
and rows are the same with and without.

"""

import os
import shutil
from collections.abc import Callable
from typing import Any

import torch

from ..model.gpt import GPT

COMPILERS = ("g++", "clang++", "c++", "cl")  # one of them turns what torch writes into code

# Dropout draws from torch's own generator, as without compile; no helper processes of the
# compiler, which a killed worker would leave behind.
OPTIONS = {"fallback_random": True, "compile_threads": 1}


def compile_problem() -> str:
    """Why torch.compile cannot work here, or ''."""
    wanted = os.environ.get("CXX", "")
    if any(shutil.which(name) for name in ((wanted,) if wanted else COMPILERS)):
        return ""
    looked = f"CXX is {wanted}, which is not there" if wanted else f"none of {', '.join(COMPILERS)}"
    return f"torch.compile needs a C++ compiler ({looked}); install one, or write compile: false"


def compiled(model: GPT) -> list[Callable[..., Any]]:
    """The blocks' calls, each compiled when it is first made."""
    # Blocks may differ in a constant (layernorm scaling's sqrt(l)): each form is compiled once.
    # Above torch's own limit the rest would silently run as if compile were off.
    limits = {"recompile_limit": 2, "accumulated_recompile_limit": 4}
    for name, forms in limits.items():
        least = forms * len(model.blocks)
        setattr(torch._dynamo.config, name, max(least, getattr(torch._dynamo.config, name)))
    return [torch.compile(block, dynamic=False, options=OPTIONS) for block in model.blocks]
