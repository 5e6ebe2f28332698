"""The model that a finished run left behind."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from lnexp.config.document import read
from lnexp.config.schema import RunConfig
from lnexp.messages import UserError
from lnexp.model.gpt import GPT
from lnexp.model.init import build
from lnexp.records import BrokenRecord, read_json
from lnexp.runs import checkpoint
from lnexp.runs.rundir import read_status


@dataclass(frozen=True)
class Trained:
    """Weights in the type they were trained in, at evaluation, and the letters they stand for."""

    config: RunConfig
    model: GPT
    vocabulary: str


def load_trained(folder: Path) -> Trained:
    """Raises UserError where a run folder holds no such model."""
    config = _config(folder)
    status = read_status(folder)
    if status is None or status.status != "finished":
        state = "not over" if status is None else status.status
        raise UserError(f"{folder.name} is {state}: only a finished run has a model to use")
    saved = checkpoint.read(folder)
    if saved is not None and not isinstance(saved.get("model"), Mapping):
        raise UserError(f"{folder.name}: its checkpoint holds no weights")
    if saved is None:
        why = (
            f"a value was not finite at step {status.first_bad_step}, before the first snapshot"
            if status.first_bad_step is not None
            else "measure.keep was none"
        )
        raise UserError(f"{folder.name} has no checkpoint: {why}")
    vocabulary = _vocabulary(folder)
    head_VD = saved["model"]["head.weight"]
    if len(head_VD) != len(vocabulary):
        raise UserError(
            f"{folder.name}: the checkpoint has {len(head_VD)} letters, its vocabulary "
            f"{len(vocabulary)}; they do not belong together"
        )
    model = GPT(config.model, len(vocabulary)).to(head_VD.dtype)
    try:
        model.load_state_dict(saved["model"])
    except RuntimeError:
        raise UserError(
            f"{folder.name}: the checkpoint's weights are not those of its config.yaml"
        ) from None
    return Trained(config, model.eval(), vocabulary)


def untrained(folder: Path) -> GPT:
    """The model of a run folder as it started, whatever became of the run."""
    config = _config(folder)
    return build(config.model, len(_vocabulary(folder)), config.seed.init)


def _config(folder: Path) -> RunConfig:
    path = folder / "config.yaml"
    if not path.is_file():
        raise UserError(f"{folder} is no run folder (results/<sweep>/runs/<run>)")
    try:
        return RunConfig.model_validate(read(path).value)
    except ValidationError:
        raise UserError(f"{path} is not the config of a run") from None


def _vocabulary(folder: Path) -> str:
    path = folder / "env.json"
    try:
        letters = read_json(path).get("vocabulary")
    except BrokenRecord:
        letters = None
    if not isinstance(letters, str) or not letters:
        raise UserError(f"{path} is missing or damaged: it holds the run's letters")
    return letters
