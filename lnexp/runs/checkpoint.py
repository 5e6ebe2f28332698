"""checkpoint.pt: written whole or not at all; a run goes on from it bit for bit."""

import io
from pathlib import Path
from typing import Any

import torch

from lnexp.config.names import NOT_IDENTITY
from lnexp.config.schema import RunConfig
from lnexp.files import write_whole
from lnexp.messages import UserError
from lnexp.train.state import State

NAME = "checkpoint.pt"
SCHEMA = 1


def save(folder: Path, state: State, data_sha256: str) -> None:
    """All that training changes, after the last update, and whose it is."""
    _write(
        folder,
        {
            "schema": SCHEMA,
            "of": belongs_to(state.config, data_sha256),
            "steps_done": state.steps_done,
            "seconds": state.seconds,
            "skipped": state.skipped,
            "first_bad_step": state.first_bad_step,
            "seen": sorted(state.seen),
            "model": state.model.state_dict(),
            "optimizer": state.optimizer.state_dict(),
            "scale": state.scale.state_dict(),
            "data_generator": state.batches.generator.get_state(),
            "dropout_state": state.dropout.state,
        },
    )


def belongs_to(config: RunConfig, data_sha256: str) -> dict[str, str]:
    """The settings that decide a run's rows; a larger train.steps only makes more of them."""
    settings = {**config.settings(), "data.sha256": data_sha256, "seed": config.seed.model_dump()}
    # What a snapshot holds is the same with and without compile.
    left_out = set(NOT_IDENTITY) | {"data.path", "data.encoding", "train.compile"}
    if config.train.schedule == "constant":
        left_out.add("train.steps")
    return {key: repr(value) for key, value in settings.items() if key not in left_out}


def restore(folder: Path, state: State, data_sha256: str) -> bool:
    """Put a run's last snapshot into `state`; False: there is none to go on from.

    Raises UserError where the snapshot is that of other settings.
    """
    try:
        saved = read(folder)
    except UserError:  # a damaged file: the run starts anew
        return False
    if saved is None or "optimizer" not in saved:
        return False
    if saved["schema"] != SCHEMA:
        raise UserError(f"{folder / NAME} has schema {saved['schema']}, this lnexp has {SCHEMA}")
    wanted = belongs_to(state.config, data_sha256)
    for key in {**saved["of"], **wanted}:
        theirs, ours = saved["of"].get(key), wanted.get(key)
        if theirs != ours:
            raise UserError(
                f"{folder / NAME} is of another run: {key} was {theirs}, is {ours}; --force trains "
                "anew"
            )
    state.model.load_state_dict(saved["model"])
    state.optimizer.load_state_dict(saved["optimizer"])
    state.scale.load_state_dict(saved["scale"])
    state.batches.generator.set_state(saved["data_generator"])
    state.dropout.state = saved["dropout_state"]
    state.steps_done, state.seconds = saved["steps_done"], saved["seconds"]
    state.skipped, state.first_bad_step = saved["skipped"], saved["first_bad_step"]
    state.seen = {(kind, module) for kind, module in saved["seen"]}
    return True


def read(folder: Path) -> dict[str, Any] | None:
    """None: the run kept none. Raises UserError where it cannot be read."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # whatever an unpickler makes of damaged bytes
        saved = None
    if not isinstance(saved, dict):
        raise UserError(f"{path} is damaged or no checkpoint; train the run again")
    return saved


def cut_to_weights(folder: Path) -> None:
    """Keep the weights alone: the run is over and nothing is left to be learned from its state."""
    saved = read(folder)
    if saved and "optimizer" in saved:
        _write(folder, {key: saved[key] for key in ("schema", "steps_done", "model")})


def _write(folder: Path, content: dict[str, Any]) -> None:
    buffer = io.BytesIO()  # torch's own writer says nothing of a full disk
    torch.save(content, buffer)
    write_whole(folder / NAME, buffer.getbuffer())
