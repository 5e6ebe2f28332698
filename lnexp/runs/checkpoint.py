"""checkpoint.pt: written whole or not at all."""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError
from ..train.state import State

NAME = "checkpoint.pt"


def save(folder: Path, state: State) -> None:
    """Weights, optimizer and random streams after the last update."""
    _write(
        folder,
        {
            "schema": 1,
            "steps_done": state.steps_done,
            "model": state.model.state_dict(),
            "optimizer": state.optimizer.state_dict(),
            "data_generator": state.batches.generator.get_state(),
            "dropout_state": state.dropout.state,
        },
    )


def read(folder: Path) -> dict[str, Any] | None:
    """None: the run kept none. Raises UserError where it cannot be read."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged or no checkpoint; train the run again")
    return found


def cut_to_weights(folder: Path) -> None:
    """Keep the weights alone: the run is over and nothing is left to be learned from its state."""
    whole = read(folder)
    if whole and "optimizer" in whole:
        _write(folder, {key: whole[key] for key in ("schema", "steps_done", "model")})


def _write(folder: Path, content: dict[str, Any]) -> None:
    draft = folder / (NAME + ".tmp")
    buffer = io.BytesIO()  # torch's own writer says nothing of a full disk
    torch.save(content, buffer)
    draft.write_bytes(buffer.getbuffer())
    os.replace(draft, folder / NAME)
