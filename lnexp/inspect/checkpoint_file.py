"""Checkpoints of anybody's model: weights and Adam's state, read without running their code."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lnexp.messages import UserError, short

WEIGHTS = ("model", "state_dict", "model_state_dict", "module", "weights")
OPTIMIZERS = ("optimizer", "optimizer_state_dict", "optimizer_states", "optim")
PREFIXES = ("_orig_mod.", "module.", "model.")  # torch.compile, data parallel, Lightning


@dataclass(frozen=True)
class Checkpoint:
    tensors: dict[str, Tensor]
    optimizer: Mapping[str, Any] | None = None
    missing: list[str] = field(default_factory=list)  # of the model, not in the file
    unexpected: list[str] = field(default_factory=list)  # the other way


def read_checkpoint(path: Path) -> Checkpoint:
    if not path.is_file():
        raise UserError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}")
    document = _safetensors(path) if path.suffix == ".safetensors" else _torch(path)
    if not isinstance(document, Mapping):
        raise UserError(f"{path}: holds a {type(document).__name__}, not named tensors")
    states = map(_optimizer_state, (document, *map(document.get, OPTIMIZERS)))
    optimizer = next(filter(None, states), None)
    for entry in (document, *map(document.get, WEIGHTS)):
        if isinstance(entry, Mapping) and entry and all(map(_named, entry.items())):
            return Checkpoint(dict(entry), optimizer)
    if optimizer is not None:
        return Checkpoint({}, optimizer)
    keys = ", ".join(map(str, list(document)[:6])) or "nothing"
    raise UserError(f"{path}: no weights found; it has {short(keys)}")


def _named(item: tuple[Any, Any]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], Tensor)


def _optimizer_state(entry: Any) -> Mapping[str, Any] | None:
    entry = entry[0] if isinstance(entry, list) and entry else entry
    whole = isinstance(entry, Mapping) and {"state", "param_groups"} <= set(entry)
    return entry if whole else None


def _torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:  # whatever an unpickler makes of other bytes
        message = str(problem)
        if "Unsupported global" in message or "GLOBAL" in message:
            why = "holds more than tensors and plain values, which would run its code; save the "
            raise UserError(f"{path}: {why}state_dict alone") from None
        raise UserError(f"{path}: damaged, or no checkpoint of torch") from None


def _safetensors(path: Path) -> Any:
    try:
        from safetensors import SafetensorError  # pyright: ignore[reportMissingImports]
        from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(f'{path} needs safetensors: pip install "lnexp[safetensors]"') from None
    try:
        return load_file(path)
    except (SafetensorError, OSError) as problem:
        raise UserError(f"{path}: damaged or no safetensors file: {short(str(problem))}") from None


def matched(path: Path, checkpoint: Checkpoint, shapes: Mapping[str, torch.Size]) -> Checkpoint:
    """The file's tensors under the model's names. UserError where they are of another model."""
    tensors = checkpoint.tensors
    if not tensors:
        return checkpoint
    for prefix in PREFIXES:
        bare = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        if len(bare) == len(tensors) and len(bare.keys() & shapes) > len(tensors.keys() & shapes):
            tensors = bare
    if not tensors.keys() & shapes:
        raise UserError(
            f"{path}: none of its {len(tensors)} names is the model's: it has "
            f"{next(iter(tensors))}, the model {next(iter(shapes), 'no tensor')}"
        )
    for name, tensor in tensors.items():
        if name in shapes and tensor.shape != shapes[name]:
            theirs, ours = (
                "x".join(map(str, shape)) or "one number" for shape in (tensor.shape, shapes[name])
            )
            raise UserError(f"{path}: {name} is {theirs}, the model's is {ours}")
    return replace(
        checkpoint,
        tensors=tensors,
        missing=[name for name in shapes if name not in tensors],
        unexpected=[name for name in tensors if name not in shapes],
    )
