"""Forward readings of one step (level full), by hooks that are gone when the step is over.

Hooks copy the sequences that are read; the arithmetic is done afterwards, for many places at once.
Shapes: B sequences read, T time, D width; P places at once. Readings are taken in fp64, those of
attention scores in fp32 or wider.
"""

from collections.abc import Callable, Iterator, Sequence
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
Reading = tuple[Sequence[Place], str, Tensor]  # P places, a field, its P values
Hook = Callable[[nn.Module, tuple[Tensor, ...], Any], None]
On = Callable[[nn.Module, Callable[[Tensor, Tensor], None]], None]
AT_ONCE = 2**17  # elements, so that a thousand blocks are not all in fp64 together


def rms(x: Tensor) -> Tensor:
    """sqrt(mean x^2) over all elements."""
    return x.square().mean().sqrt()


def token_cosine(x_BTD: Tensor) -> Tensor:
    """Mean off-diagonal cosine between positions: (|sum u|^2 - sum |u|^2) / (T (T - 1)). Places
    may stand before B."""
    T = x_BTD.shape[-2]
    u_BTD = nn.functional.normalize(x_BTD, dim=-1)
    together = u_BTD.sum(-2).square().sum(-1) - u_BTD.square().sum((-2, -1))
    return (together / (T * (T - 1))).mean(-1)


def attention_entropy(scores_BHTT: Tensor) -> Tensor:
    """Mean over rows t > 1 of -sum p ln p / ln t: 1 is uniform, 0 looks at one position. Places may
    stand before B."""
    entropies = torch.special.entr(scores_BHTT.softmax(-1)).sum(-1)[..., 1:]
    T = scores_BHTT.shape[-1]
    shares = entropies / torch.tensor([log(t) for t in range(2, T + 1)]).to(entropies)
    return shares.mean((-3, -2, -1))


def _rms(x_P: Tensor) -> Tensor:
    """P, over all else."""
    return x_P.flatten(1).square().mean(1).sqrt()


class ForwardProbe:
    """Listens to one forward and backward. Then `read` has its numbers, and `silent` those of norms
    how many tokens each turned into 0."""

    def __init__(self, model: GPT, norm: str, eps: float, sample: int) -> None:
        self.model, self.sample, self.eps = model, sample, eps
        self.norm = NORMS[norm]
        self.read: list[Reading] = []
        self.silent: list[tuple[list[str], Tensor]] = []
        self.names = {module: name for name, module in model.named_modules()}
        self._norms: dict[Place, nn.Module] = {}  # those that are read
        self._attentions: dict[Place, Attention] = {}
        self._hooks: list[tuple[dict, Hook]] = []
        self._clear()

    def _clear(self) -> None:
        self._caught: dict[str, dict[Place, Tensor]] = {}
        self._stream: Tensor | None = None  # as it is now, and the place that made it
        self._made_by: Place = (-1, "embed")
        self._over = False  # the forward: checkpointing computes blocks again, in backward

    @contextmanager
    def listening(self) -> Iterator[None]:
        self.read, self.silent = [], []
        attached = self._attached()
        try:
            for hooks, hook in attached:
                hooks[id(self)] = hook
            yield
            with torch.no_grad():
                self._read()
        finally:
            self._clear()
            for hooks, _ in attached:
                hooks.pop(id(self), None)

    def _attached(self) -> list[tuple[dict, Hook]]:
        """A module's table of forward hooks, and what is put into it: by torch's own function it
        takes as long as the reading. Looked for once."""
        if not self._hooks:
            hooks: dict[nn.Module, list[Callable[[Tensor, Tensor], None]]] = {}

            def on(module: nn.Module, hook: Callable[[Tensor, Tensor], None]) -> None:
                hooks.setdefault(module, []).append(hook)

            self._attach(on)
            self._hooks = [
                (module._forward_hooks, self._hook(several)) for module, several in hooks.items()
            ]
        return self._hooks

    def _attach(self, on: On) -> None:
        on(self.model.embed, lambda _, h: self._flow((-1, "embed"), h))
        for layer, block in enumerate(self.model.blocks):
            self._attach_branch(on, (layer, "attn"), block.attn)  # type: ignore[arg-type]
            self._attach_branch(on, (layer, "mlp"), block.mlp)  # type: ignore[arg-type]
        depth = len(self.model.blocks)
        last: Place = (depth, "norm" if is_norm(self.model.norm) else "head")
        on(self.model.norm, lambda h, _: self._gradient(last, h))
        if is_norm(self.model.norm):
            self._attach_norm(on, last, self.model.norm)
        on(self.model.head, self._end)

    def _attach_branch(self, on: On, place: Place, branch: Sublayer) -> None:
        on(branch.inside, lambda _, y: self._catch("branch", place, y))
        if branch.serving_norm is not None:
            self._attach_norm(on, place, branch.serving_norm)
        if isinstance(branch.body, Attention):
            # As the forward made them: a norm over the batch, called again, would not be the same.
            self._attentions[place] = branch.body
            on(branch.body.q_norm, lambda _, q: self._catch("q", place, q))
            on(branch.body.k_norm, lambda _, k: self._catch("k", place, k))

        def leave(h: Tensor, out: Tensor) -> None:
            self._gradient(place, h)
            self._catch("before", place, h)
            self._flow(place, out)

        on(branch, leave)

    def _attach_norm(self, on: On, place: Place, norm: nn.Module) -> None:
        self._norms[place] = norm

        def read(x: Tensor, y: Tensor) -> None:
            self._catch("normed", place, x)
            self._catch("norm output", place, y)
            if self.norm.over_batch:  # features share eps: all sequences count
                with torch.no_grad():
                    self._floor([place], x.detach().double(), "features")

        on(norm, read)

    def _end(self, *_: Tensor) -> None:
        self._over = True

    def _flow(self, place: Place, h: Tensor) -> None:
        """The stream leaves this place."""
        self._stream = None
        self._catch("stream", place, h)
        self._stream, self._made_by = h, place

    def _catch(self, kind: str, place: Place, x: Tensor) -> None:
        if x is self._stream:
            kept = self._caught["stream"][self._made_by]
        else:
            kept = x.detach()[: self.sample].clone()  # whoever comes next may write into x
        self._caught.setdefault(kind, {})[place] = kept

    def _gradient(self, place: Place, h_BTD: Tensor) -> None:
        if h_BTD.requires_grad:
            h_BTD.register_hook(lambda gradient: self._catch("gradient", place, gradient))

    def _read(self) -> None:
        for places, h_PBTD in self._batches("stream"):
            wide = h_PBTD.double()
            self._put(places, act_rms=_rms(wide), act_absmax=h_PBTD.abs().flatten(1).amax(1))
            if wide.shape[-2] > 1:
                self._put(places, token_cosine=token_cosine(wide))
        for places, x_PBTD in self._batches("normed"):
            wide = x_PBTD.double()
            self._put(places, norm_input_rms=_rms(wide))
            if not self.norm.over_batch:
                self._floor(places, wide)
        for places, x_PBTD, y_PBTD in self._batches("normed", "norm output"):
            silent = (y_PBTD == 0).all(-1) & (x_PBTD != 0).any(-1)
            names = [self.names[self._norms[place]] for place in places]
            self.silent.append((names, silent.flatten(1).sum(1)))
        for places, y_PBTD, h_PBTD in self._batches("branch", "before"):
            self._put(places, branch_to_stream=_rms(y_PBTD.double()) / _rms(h_PBTD.double()))
        for places, g_PBTD in self._batches("gradient"):
            self._put(places, stream_grad_rms=_rms(g_PBTD.double()))
        for places, q_PBHTK, k_PBHTK in self._batches("q", "k"):
            self._attention(places, q_PBHTK, k_PBHTK)
        gains = {place: getattr(norm, "weight", None) for place, norm in self._norms.items()}
        self._caught["gain"] = {p: gain for p, gain in gains.items() if gain is not None}
        for places, gain_PD in self._batches("gain"):
            # Of scalenorm: what makes the output's RMS 1.
            units = [getattr(self._norms[place], "unit", 1.0) for place in places]
            gains_P = _rms(gain_PD.detach().double()[:, None])
            units_P = gains_P.new_tensor(units)
            self._put(places, norm_gain=gains_P / units_P)

    def _floor(self, places: list[Place], x: Tensor, of: str = "tokens") -> None:
        """`x`: a place's own, where features share eps; else that of all places."""
        if self.norm.beside_eps is not None:
            below = self.norm.beside_eps(x) < self.eps
            below_P = below[None] if of == "features" else below.flatten(1)
            self._put(places, eps_floor_fraction=below_P.double().mean(1))

    def _attention(self, places: list[Place], q_PBHTK: Tensor, k_PBHTK: Tensor) -> None:
        attention = self._attentions[places[0]]  # the same equation at each of them
        wide = torch.promote_types(q_PBHTK.dtype, torch.float32)
        scores = attention.scores(q_PBHTK.to(wide), k_PBHTK.to(wide))
        largest = scores.tril().abs().flatten(1).amax(1)
        self._put(places, attn_logit_max=largest)
        if scores.shape[-1] > 1:
            self._put(places, attn_entropy=attention_entropy(scores))

    def _batches(self, *kinds: str) -> Iterator[tuple[Any, ...]]:
        """Places, and for each kind what was caught at them, as many as fit; those of one form."""
        alike: dict[tuple, list[Place]] = {}
        several = [self._caught.get(kind, {}) for kind in kinds]
        for place in several[0]:
            if all(place in caught for caught in several):
                form = tuple((caught[place].shape, caught[place].dtype) for caught in several)
                alike.setdefault(form, []).append(place)
        for form, places in alike.items():
            fit = max(1, AT_ONCE // max(1, form[0][0].numel()))
            for start in range(0, len(places), fit):
                some = places[start : start + fit]
                yield some, *(torch.stack([c[place] for place in some]) for c in several)

    def _put(self, places: list[Place], **numbers: Tensor) -> None:
        self.read += [(places, field, values_P) for field, values_P in numbers.items()]

    def _hook(self, several: list[Callable[[Tensor, Tensor], None]]) -> Hook:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
            if self._over:
                return
            # Of two streams the first, the one that the next sublayer reads.
            first = output[0] if isinstance(output, tuple) else output
            for one in several:
                one(inputs[0], first)

        return hook
