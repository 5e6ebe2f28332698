"""lnexp inspect: anybody's model and checkpoint, looked at from outside."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lnexp.files import strict_json
from lnexp.inspect.checkpoint_file import matched, read_checkpoint
from lnexp.inspect.model import concerns, inspected
from lnexp.inspect.show import in_words
from lnexp.messages import UserError, short
from lnexp.runs.trained import untrained
from lnexp.terminal.sheet import display
from lnexp.train.optim import names_in_order

Example = tuple[Any, ...] | None


def inspect(model: str, checkpoint: Path | None, as_json: bool) -> None:
    torch.set_num_threads(1)  # thousands of small tensors: threads cost more than they give
    folder = Path(model)
    example: Example = None
    order: list[str] = []
    if folder.is_dir():
        module = untrained(folder)
        order = names_in_order(module)
        if checkpoint is None and (folder / "checkpoint.pt").is_file():
            checkpoint = folder / "checkpoint.pt"
    else:
        module, example = _called(model)
    saved = None
    if checkpoint is not None:
        shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
        saved = matched(checkpoint, read_checkpoint(checkpoint), shapes)
    facts = inspected(module, example, saved, order)
    trained = bool(saved and saved.tensors)
    facts |= {
        "model": model,
        "checkpoint": str(checkpoint or ""),
        "warnings": concerns(facts, trained),
    }
    if as_json:
        print(strict_json(facts), end="")
    else:
        display(in_words(facts))


def _called(words: str) -> tuple[nn.Module, Example]:
    """'module:callable' -> what it returns: a model, or a model and the inputs of a forward."""
    file, colon, name = words.partition(":")
    if not (file and colon and name):
        raise UserError(
            f"{words}: neither a run folder nor module:callable, such as my_model:build"
        )
    sys.path.insert(0, os.getcwd())
    try:
        model: Any = importlib.import_module(file)
        for part in name.split("."):
            model = getattr(model, part)
        model = model if isinstance(model, nn.Module) else model()
    except Exception as problem:  # anybody's code may fail in any way
        if os.environ.get("LNEXP_DEBUG") == "1":
            raise
        why = short(f"{type(problem).__name__}: {problem}", 160)
        raise UserError(f"{words}: {why} (LNEXP_DEBUG=1 shows where)") from None
    finally:
        sys.path.remove(os.getcwd())
    example: Example = None
    if isinstance(model, tuple) and len(model) == 2:
        model, given = model
        example = given if isinstance(given, tuple) else (given,)
    if not isinstance(model, nn.Module):
        raise UserError(f"{words}: gave {type(model).__name__}, not a torch.nn.Module")
    return model, example
