"""lnexp inspect: anybody's model and checkpoint, looked at from outside."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from lnexp.files import strict_json
from lnexp.inspect.checkpoint_file import matched, read_checkpoint
from lnexp.inspect.model import concerns, inspected
from lnexp.inspect.show import in_words
from lnexp.messages import UserError, short
from lnexp.runs.trained import untrained
from lnexp.train.optim import names_in_order

Example = tuple[Any, ...] | None


def inspect(model: str, checkpoint: Path | None, as_json: bool) -> None:
    torch.set_num_threads(1)  # thousands of small tensors: threads cost more than they give
    folder = Path(model)
    example: Example = None
    order: list[str] = []
    if folder.is_dir():
        made = untrained(folder)
        order = names_in_order(made)
        if checkpoint is None and (folder / "checkpoint.pt").is_file():
            checkpoint = folder / "checkpoint.pt"
    else:
        made, example = _called(model)
    saved = None
    if checkpoint is not None:
        shapes = {name: tensor.shape for name, tensor in made.state_dict().items()}
        saved = matched(checkpoint, read_checkpoint(checkpoint), shapes)
    found = inspected(made, example, saved, order)
    trained = bool(saved and saved.tensors)
    found |= {
        "model": model,
        "checkpoint": str(checkpoint or ""),
        "warnings": concerns(found, trained),
    }
    if as_json:
        print(strict_json(found), end="")
    else:
        Console(highlight=False).print(in_words(found))


def _called(words: str) -> tuple[nn.Module, Example]:
    """'module:callable' -> what it returns: a model, or a model and the inputs of a forward."""
    module, colon, name = words.partition(":")
    if not (module and colon and name):
        raise UserError(
            f"{words}: neither a run folder nor module:callable, such as my_model:build"
        )
    sys.path.insert(0, os.getcwd())
    try:
        made: Any = importlib.import_module(module)
        for part in name.split("."):
            made = getattr(made, part)
        made = made() if not isinstance(made, nn.Module) else made
    except Exception as problem:  # anybody's code may fail in any way
        if os.environ.get("LNEXP_DEBUG") == "1":
            raise
        said = short(f"{type(problem).__name__}: {problem}", 160)
        raise UserError(f"{words}: {said} (LNEXP_DEBUG=1 shows where)") from None
    finally:
        sys.path.remove(os.getcwd())
    example: Example = None
    if isinstance(made, tuple) and len(made) == 2:
        made, given = made
        example = given if isinstance(given, tuple) else (given,)
    if not isinstance(made, nn.Module):
        raise UserError(f"{words}: gave {type(made).__name__}, not a torch.nn.Module")
    return made, example
