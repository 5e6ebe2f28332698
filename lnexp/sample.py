"""Text from a finished run.

Shapes: B batch (1), T time, V vocabulary.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lnexp.messages import UserError
from lnexp.model.gpt import GPT
from lnexp.runs.trained import load_trained


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
    trained = load_trained(folder)
    return Sampler(trained.model.float(), trained.vocabulary, trained.config.model.context)
