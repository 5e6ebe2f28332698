"""Text from a finished run.

Shapes: B batch (1), T time, V vocabulary.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from .config import RunConfig
from .errors import UserError
from .model.gpt import GPT
from .runs import checkpoint
from .runs.rundir import read_status
from .yamlfile import read


@dataclass(frozen=True)
class Sampler:
    """A trained model with its letters."""

    model: GPT
    vocabulary: str
    context: int

    def ids(self, prompt: str) -> list[int]:
        """Raises UserError that names each letter the run never saw, with its position."""
        index = {letter: i for i, letter in enumerate(self.vocabulary)}
        unseen = {
            letter: at for at, letter in reversed(list(enumerate(prompt))) if letter not in index
        }
        if unseen:
            named = ", ".join(
                f"{letter!r} at position {at}"
                for letter, at in sorted(unseen.items(), key=lambda item: item[1])
            )
            raise UserError(f"--prompt: the run's text has no {named}")
        return [index[letter] for letter in prompt]

    def default_prompt(self) -> str:
        """A line end, else a space, else the first letter of the vocabulary."""
        return next((c for c in "\n " if c in self.vocabulary), self.vocabulary[0])

    @torch.no_grad()
    def generate(self, prompt: str, length: int, temperature: float, seed: int) -> str:
        """`length` letters after the prompt; temperature 0 takes the likeliest."""
        ids = self.ids(prompt or self.default_prompt())
        generator = torch.Generator().manual_seed(seed)
        start = len(ids)
        for _ in range(length):
            logits_V = self.model(torch.tensor([ids[-self.context :]]))[0, -1]
            ids.append(next_letter(logits_V, temperature, generator))
        return prompt + "".join(self.vocabulary[i] for i in ids[start:])


def next_letter(logits_V: Tensor, temperature: float, generator: torch.Generator) -> int:
    """Draws from softmax(logits / temperature). Raises UserError when a logit is not finite."""
    if not bool(torch.isfinite(logits_V).all()):
        nans, infs = int(logits_V.isnan().sum()), int(logits_V.isinf().sum())
        raise UserError(
            f"the model's logits are not finite ({nans} NaN and {infs} Inf of {len(logits_V)}): "
            "there is nothing to draw from"
        )
    if temperature == 0:
        return int(logits_V.argmax())
    logits_V = logits_V.double()
    p_V = ((logits_V - logits_V.max()) / temperature).softmax(-1)  # never inf / inf
    return int(torch.multinomial(p_V, 1, generator=generator))


def load_sampler(folder: Path) -> Sampler:
    """The model of a run folder. Raises UserError where there is none to sample from."""
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is no run folder (results/<sweep>/runs/<run>)")
    status = read_status(folder)
    if status is None or status.status != "finished":
        state = "not over" if status is None else status.status
        raise UserError(f"{folder.name} is {state}: only a finished run can be sampled")
    try:
        config = RunConfig.model_validate(read(folder / "config.yaml").value)
    except ValidationError:
        raise UserError(f"{folder / 'config.yaml'} is not the config of a run") from None
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
    vocabulary = _vocabulary(folder / "env.json")
    size = len(saved["model"]["head.weight"])
    if size != len(vocabulary):
        raise UserError(
            f"{folder.name}: the checkpoint has {size} letters, its vocabulary {len(vocabulary)}; "
            "they do not belong together"
        )
    model = GPT(config.model, len(vocabulary))
    try:
        model.load_state_dict(saved["model"])
    except RuntimeError:
        raise UserError(
            f"{folder.name}: the checkpoint's weights are not those of its config.yaml"
        ) from None
    return Sampler(model.float().eval(), vocabulary, config.model.context)


def _vocabulary(path: Path) -> str:
    try:
        letters = json.loads(path.read_text(encoding="utf-8"))["vocabulary"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        letters = None
    if not isinstance(letters, str) or not letters:
        raise UserError(f"{path} is missing or damaged: it holds the run's letters")
    return letters
