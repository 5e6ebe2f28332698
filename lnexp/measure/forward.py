"""Forward readings of one step (level full), by hooks that are gone when the step is over.

Shapes: B sequences read, T time, D width. Readings are taken in fp64.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from ..model.branches import Sublayer
from ..model.check import is_norm
from ..model.gpt import GPT, Attention
from ..model.norms import NORMS
from ..rows import Part

Place = tuple[int, Part]


def rms(x: Tensor) -> Tensor:
    """sqrt(mean x^2) over all elements."""
    return x.square().mean().sqrt()


def token_cosine(x_BTD: Tensor) -> Tensor:
    """Mean off-diagonal cosine between positions: (|sum u|^2 - sum |u|^2) / (T (T - 1))."""
    T = x_BTD.shape[1]
    u_BTD = nn.functional.normalize(x_BTD, dim=-1)
    together = u_BTD.sum(1).square().sum(-1) - u_BTD.square().sum((1, 2))
    return (together / (T * (T - 1))).mean()


def attention_entropy(scores_BHTT: Tensor) -> Tensor:
    """Mean over rows t > 1 of -sum p ln p / ln t: 1 is uniform, 0 looks at one position."""
    entropies = torch.special.entr(scores_BHTT.softmax(-1)).sum(-1)[..., 1:]
    T = scores_BHTT.shape[-1]
    return (entropies / torch.tensor([log(t) for t in range(2, T + 1)]).to(entropies)).mean()


class ForwardProbe:
    """Listens to one forward and backward; `readings` then maps a place to its numbers."""

    def __init__(self, model: GPT, norm: str, eps: float, sample: int) -> None:
        self.model, self.sample, self.eps = model, sample, eps
        self.norm = NORMS[norm]
        self.readings: dict[Place, dict[str, Tensor]] = {}
        self.names = {module: name for name, module in model.named_modules()}
        self.queries: dict[Place, Tensor] = {}  # until the keys are known
        self.zero_outputs: dict[str, Tensor] = {}  # norm -> tokens it turned into 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        self.readings, self.queries, self.zero_outputs = {}, {}, {}
        handles, over = [], []

        def on(module: nn.Module, hook: Callable[[Tensor, Tensor], None]) -> None:
            def read(_: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
                if over:  # checkpointing computes a block again
                    return
                # Of two streams the first, the one that the next sublayer reads.
                first = output[0] if isinstance(output, tuple) else output
                with torch.no_grad(), torch.autocast(first.device.type, enabled=False):
                    hook(inputs[0], first)

            handles.append(module.register_forward_hook(read))

        try:
            on(self.model.embed, lambda _, h: self._stream((-1, "embed"), h))
            for layer, block in enumerate(self.model.blocks):
                self._attach_branch(on, (layer, "attn"), block.attn)  # type: ignore[arg-type]
                self._attach_branch(on, (layer, "mlp"), block.mlp)  # type: ignore[arg-type]
            depth = len(self.model.blocks)
            last: Place = (depth, "norm" if is_norm(self.model.norm) else "head")
            on(self.model.norm, lambda h, _: self._gradient(last, h))
            if is_norm(self.model.norm):
                self._attach_norm(on, last, self.model.norm)
            handles.append(self.model.head.register_forward_hook(lambda *_: over.append(True)))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _attach_branch(self, on: Callable, place: Place, branch: Sublayer) -> None:
        on(branch, lambda h, out: (self._gradient(place, h), self._stream(place, out)))
        # The branch's own output comes before the sum is known: its RMS is kept until then.
        on(branch.inside, lambda _, y: self._put(place, branch_rms=rms(self._take(y))))
        on(branch, lambda h, _: self._ratio(place, h))
        if branch.serving_norm is not None:
            self._attach_norm(on, place, branch.serving_norm)
        if isinstance(branch.body, Attention):
            attention = branch.body
            # As the forward made them: a norm over the batch, called again, would not be the same.
            on(attention.q_norm, lambda _, q: self.queries.update({place: q}))
            on(attention.k_norm, lambda _, k: self._attention(place, attention, k))

    def _attach_norm(self, on: Callable, place: Place, norm: nn.Module) -> None:
        name = self.names[norm]

        def read(whole: Tensor, y: Tensor) -> None:
            x = self._take(whole)
            silent = (self._take(y) == 0).all(-1) & (x != 0).any(-1)
            self.zero_outputs[name] = silent.sum()
            self._put(place, norm_input_rms=rms(x))
            if self.norm.beside_eps is not None:  # of tokens; of features where they share eps
                seen = whole.detach().double() if self.norm.over_batch else x
                floor = (self.norm.beside_eps(seen) < self.eps).double().mean()
                self._put(place, eps_floor_fraction=floor)
            gain = getattr(norm, "weight", None)
            if gain is not None:
                unit = getattr(norm, "unit", 1.0)  # of scalenorm: what makes the output's RMS 1
                self._put(place, norm_gain=rms(gain.detach().double()) / unit)

        on(norm, read)

    def _take(self, x: Tensor) -> Tensor:
        return x.detach()[: self.sample].double()

    def _put(self, place: Place, **numbers: Tensor) -> None:
        self.readings.setdefault(place, {}).update(numbers)

    def _stream(self, place: Place, h_BTD: Tensor) -> None:
        h_BTD = self._take(h_BTD)
        self._put(place, act_rms=rms(h_BTD), act_absmax=h_BTD.abs().max())
        if h_BTD.shape[1] > 1:
            self._put(place, token_cosine=token_cosine(h_BTD))

    def _ratio(self, place: Place, h_BTD: Tensor) -> None:
        branch_rms = self.readings[place].pop("branch_rms")
        self._put(place, branch_to_stream=branch_rms / rms(self._take(h_BTD)))

    def _attention(self, place: Place, attention: Attention, k_BHTK: Tensor) -> None:
        q_BHTK = self.queries.pop(place)
        scores_BHTT = attention.scores(self._take(q_BHTK), self._take(k_BHTK))
        self._put(place, attn_logit_max=scores_BHTT.tril().abs().max())
        if scores_BHTT.shape[-1] > 1:
            self._put(place, attn_entropy=attention_entropy(scores_BHTT))

    def _gradient(self, place: Place, h_BTD: Tensor) -> None:
        def read(gradient: Tensor) -> None:
            self._put(place, stream_grad_rms=rms(self._take(gradient)))

        if h_BTD.requires_grad:
            h_BTD.register_hook(read)
