"""Forward readings of one step (level full): what each is, and the probe that takes them.

The probe listens by functions that stand in for modules' own and are gone when the forward is over:
a stand-in takes less time than a hook, for which torch calls a module the long way. What it saw it
holds uncopied until enough has come together, then copies it a few places at a time: no module of
lnexp's own models writes into what it was given or has given on.

Shapes: B sequences read, T time, D width; P places of one kind at once; U different tensors.
Readings are taken in fp64, those of attention scores in fp32 or wider.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import lru_cache, partial
from operator import setitem
from typing import Any

import torch
from torch import Tensor, nn

from lnexp.model.branches import Sublayer
from lnexp.model.catalog import NORMS
from lnexp.model.check import is_norm
from lnexp.model.gpt import GPT, Attention
from lnexp.model.norms import beside_eps
from lnexp.rows import Place

Reading = tuple[Sequence[Place], str, Tensor]  # P places, a field, its P values
AT_ONCE = 2**16  # elements of the stream, so that a thousand blocks are not all in fp64 together


def rms(x: Tensor) -> Tensor:
    """sqrt(mean x^2) over all elements."""
    return x.square().mean().sqrt()


def token_cosine(x_BTD: Tensor) -> Tensor:
    """Mean off-diagonal cosine between positions: (|sum u|^2 - sum |u|^2) / (T (T - 1)). Places
    may stand before B."""
    T = x_BTD.shape[-2]
    lengths_BT = torch.linalg.vector_norm(x_BTD, dim=-1)
    shrunk_BT = 1 / lengths_BT.clamp_min(1e-12)
    sum_BD = (shrunk_BT[..., None, :] @ x_BTD)[..., 0, :]
    together = sum_BD.square().sum(-1) - (lengths_BT * shrunk_BT).square().sum(-1)
    return (together / (T * (T - 1))).mean(-1)


def attention_entropy(scores_BHTT: Tensor) -> Tensor:
    """Mean over rows t > 1 of -sum p ln p / ln t: 1 is uniform, 0 looks at one position. Places may
    stand before B."""
    p = scores_BHTT.softmax(-1)
    # 0 ln 0 counts as 0; a row with a NaN is NaN everywhere.
    sums = (p * scores_BHTT.log_softmax(-1)).nansum(-1)
    entropies = torch.where(p[..., 0].isnan(), p[..., 0], -sums)[..., 1:]
    T = scores_BHTT.shape[-1]
    positions = torch.arange(2, T + 1, dtype=torch.float64, device=entropies.device)
    shares = entropies / positions.log().to(entropies)
    return shares.mean((-3, -2, -1))


def _rms(x_P: Tensor) -> Tensor:
    """P, over all else."""
    return x_P.double().flatten(1).square().mean(1).sqrt()


def _largest(x_PBTD: Tensor) -> Tensor:
    """PBT: of each token max |x|; 0 where all its features are."""
    return x_PBTD.abs().amax(-1)


def _wide(x: Tensor) -> Tensor:
    """fp32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Taps:
    """`then` is called with a module's first input and its output, while the taps are open."""

    def __init__(self) -> None:
        self._stand_ins: dict[tuple[nn.Module, str], Callable[..., Any]] = {}

    def on(
        self, module: nn.Module, then: Callable[[Any, Any], None], method: str = "forward"
    ) -> None:
        own: Callable[..., Any] = self._stand_ins.get((module, method)) or getattr(module, method)

        def stand_in(*inputs: Any) -> Any:
            output = own(*inputs)
            then(inputs[0], output)
            return output

        self._stand_ins[module, method] = stand_in

    def open(self) -> None:
        for (module, method), stand_in in self._stand_ins.items():
            vars(module)[method] = stand_in

    def close(self) -> None:
        for module, method in self._stand_ins:
            vars(module).pop(method, None)


class Copies:
    """The first sequences of tensors of one shape caught at some places, those of one type in one
    stack; a tensor that is several places' is there once."""

    def __init__(
        self, caught: Mapping[str, Sequence[tuple[Place, Tensor]]], sequences: int
    ) -> None:
        types: dict[torch.dtype, dict[int, Tensor]] = {}
        for several in caught.values():
            for _, x in several:
                types.setdefault(x.dtype, {})[id(x)] = x
        order = {key: row for row, key in enumerate(key for xs in types.values() for key in xs)}
        self.places = {kind: [place for place, _ in several] for kind, several in caught.items()}
        self.rows = {
            kind: tuple([order[id(x)] for _, x in several]) for kind, several in caught.items()
        }
        with torch.no_grad():
            self.stacks = [
                torch.stack([x[:sequences] for x in xs.values()]) for xs in types.values()
            ]

    def double(self) -> "Copies":
        """In fp64."""
        wide = copy(self)
        wide.stacks = [stack.double() for stack in self.stacks]
        return wide

    def each(self, number: Callable[[Tensor], Tensor]) -> Tensor:
        """U..., in the order that `rows` count in."""
        numbers = [number(stack) for stack in self.stacks]
        return numbers[0] if len(numbers) == 1 else torch.cat(numbers)

    def of(self, kind: str, number: Callable[[Tensor], Tensor]) -> Tensor:
        """P..., in the order of the places."""
        if len(self.stacks) == 1:
            return number(picked(self.stacks[0], self.rows[kind]))
        numbers, order, start = [], [], 0
        for stack in self.stacks:
            rows = {p: row - start for p, row in enumerate(self.rows[kind])}
            mine = {p: row for p, row in rows.items() if 0 <= row < stack.shape[0]}
            if mine:
                numbers.append(number(picked(stack, tuple(mine.values()))))
                order += mine
            start += stack.shape[0]
        return picked(torch.cat(numbers), tuple(sorted(range(len(order)), key=order.__getitem__)))


def picked(stack: Tensor, rows: tuple[int, ...]) -> Tensor:
    return stack[_index(rows, stack.device)]


@lru_cache(1024)  # of one model they are the same at every step
def _index(rows: tuple[int, ...], device: torch.device) -> slice | Tensor:
    """Rows one after the other need no copy."""
    if rows == tuple(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)


class ForwardProbe:
    """Listens to one forward and backward. Then `read` has its numbers, and `silent` those of norms
    how many tokens each turned into 0."""

    def __init__(self, model: GPT, norm: str, eps: float, sample: int) -> None:
        self.model, self.sample, self.eps = model, sample, eps
        self.norm, self.beside_eps = NORMS[norm], beside_eps(norm)
        self.read: list[Reading] = []
        self.silent: list[tuple[list[str], Tensor]] = []
        self.names = {module: name for name, module in model.named_modules()}
        self._norms: dict[Place, nn.Module] = {}  # those that are read
        self._taps: Taps | None = None  # made when they are first needed
        self._clear()

    def _clear(self) -> None:
        self._caught: dict[str, list[tuple[Place, Tensor]]] = defaultdict(list)
        self._copied: list[list[Copies]] = []
        self._gradients: dict[Place, Tensor] = {}
        self._fit = 1  # places at once

    @contextmanager
    def listening(self) -> Iterator[None]:
        self.read, self.silent = [], []
        self._taps = self._taps or self._attached()
        self._taps.open()
        try:
            yield
            with torch.no_grad():
                self._read()
        finally:
            self._taps.close()
            self._clear()

    def _attached(self) -> Taps:
        taps, model, depth = Taps(), self.model, len(self.model.blocks)
        taps.on(model.embed, self._begin)
        for layer, block in enumerate(model.blocks):
            self._attach_branch(taps, (layer, "attn"), block.attn)  # type: ignore[arg-type]
            self._attach_branch(taps, (layer, "mlp"), block.mlp)  # type: ignore[arg-type]
        last: Place = (depth, "norm" if is_norm(model.norm) else "head")
        taps.on(model.norm, lambda h, _: self._gradient(last, h))
        if is_norm(model.norm):
            self._attach_norm(taps, last, model.norm)

        def end(*_: Tensor) -> None:  # of the forward: backward may compute blocks again
            taps.close()
            if self._caught:
                self._copy()

        taps.on(model.head, end)
        return taps

    def _attach_branch(self, taps: Taps, place: Place, branch: Sublayer) -> None:
        taps.on(branch.inside, lambda _, y: self._catch("branch", place, y))
        if branch.serving_norm is not None:
            self._attach_norm(taps, place, branch.serving_norm)
        if isinstance(branch.body, Attention):
            # As the forward made them: a norm over the batch, called again, would not be the same.
            def split(_: Tensor, qkv: tuple[Tensor, Tensor, Tensor]) -> None:
                self._catch("q", place, qkv[0])
                self._catch("k", place, qkv[1])

            taps.on(branch.body, split, "split")

        def leave(h: Tensor, out: Tensor | tuple[Tensor, ...]) -> None:
            self._gradient(place, h)
            self._catch("before", place, h)
            # Of two streams the first, the one that the next sublayer reads.
            self._catch("stream", place, out[0] if isinstance(out, tuple) else out)
            if len(self._caught["stream"]) >= self._fit:
                self._copy()

        taps.on(branch, leave)

    def _attach_norm(self, taps: Taps, place: Place, norm: nn.Module) -> None:
        self._norms[place] = norm

        def read(x: Tensor, y: Tensor) -> None:
            self._catch("normed", place, x)
            self._catch("norm output", place, y)
            if self.norm.over_batch:  # features share eps: all sequences count
                with torch.no_grad():
                    self._put([place], eps_floor_fraction=self._below_eps(x.double())[None])

        taps.on(norm, read)

    def _begin(self, _: Tensor, h_BTD: Tensor) -> None:
        self._fit = max(1, AT_ONCE // max(1, h_BTD[: self.sample].numel()))
        self._catch("stream", (-1, "embed"), h_BTD)

    def _catch(self, kind: str, place: Place, x: Tensor) -> None:
        self._caught[kind].append((place, x))

    def _gradient(self, place: Place, h_BTD: Tensor) -> None:
        if h_BTD.requires_grad:
            h_BTD.register_hook(partial(setitem, self._gradients, place))

    def _copy(self) -> None:
        caught, self._caught = self._caught, defaultdict(list)
        together = ("normed", "stream", "branch", "before"), ("norm output",), ("q", "k")
        self._copied.append(
            [Copies({kind: caught[kind] for kind in kinds}, self.sample) for kinds in together]
        )

    def _read(self) -> None:
        for streams, normed, heads in self._copied:
            largest_UBT = self._streams(streams)
            if normed.stacks:
                zero = normed.of("norm output", _largest) == 0
                silent = zero & (picked(largest_UBT, streams.rows["normed"]) != 0)
                names = [self.names[self._norms[place]] for place in streams.places["normed"]]
                self.silent.append((names, silent.flatten(1).sum(1)))
            if heads.stacks:
                self._attention(heads)
        gradients = list(self._gradients.items())
        for start in range(0, len(gradients), self._fit):
            some = Copies({"gradient": gradients[start : start + self._fit]}, self.sample)
            self._put(some.places["gradient"], stream_grad_rms=some.of("gradient", _rms))
        self._gains()

    def _streams(self, streams: Copies) -> Tensor:
        """Reads all but norms turned silent; of each tensor `_largest`."""
        places, rows = streams.places, streams.rows
        largest_UBT = streams.each(_largest)
        wide = streams.double()
        rms_U = wide.each(_rms)
        stream, normed, branch = places["stream"], places["normed"], places["branch"]
        if stream:
            largest_P = picked(largest_UBT, rows["stream"]).flatten(1).amax(1)
            self._put(stream, act_rms=picked(rms_U, rows["stream"]), act_absmax=largest_P)
            if largest_UBT.shape[-1] > 1:
                self._put(stream, token_cosine=wide.of("stream", token_cosine))
        if normed:
            self._put(normed, norm_input_rms=picked(rms_U, rows["normed"]))
            if self.beside_eps is not None and not self.norm.over_batch:
                below = wide.of("normed", lambda x: self._below_eps(x.flatten(1, -2)))
                self._put(normed, eps_floor_fraction=below)
        if branch:
            ratios = picked(rms_U, rows["branch"]) / picked(rms_U, rows["before"])
            self._put(branch, branch_to_stream=ratios)
        return largest_UBT

    def _below_eps(self, x: Tensor) -> Tensor:
        """Share of tokens, or of features that share eps; of each place where x is PND."""
        assert self.beside_eps is not None
        return (self.beside_eps(x) < self.eps).double().mean(-1)

    def _attention(self, heads: Copies) -> None:
        places = heads.places["q"]
        products = Attention.products(heads.of("q", _wide), heads.of("k", _wide)).tril()
        self._put(places, attn_logit_max=products.abs().flatten(1).amax(1))
        if products.shape[-1] > 1:
            later = torch.full_like(products[0, 0, 0], float("-inf")).triu(1)
            self._put(places, attn_entropy=attention_entropy(products + later))

    def _gains(self) -> None:
        places = [p for p, norm in self._norms.items() if getattr(norm, "weight", None) is not None]
        if places:
            norms = [self._norms[place] for place in places]
            gains_P = _rms(torch.stack([norm.weight for norm in norms])[:, None])  # type: ignore[misc]
            # Of scalenorm: what makes the output's RMS 1.
            units_P = gains_P.new_tensor([getattr(norm, "unit", 1.0) for norm in norms])
            self._put(places, norm_gain=gains_P / units_P)

    def _put(self, places: list[Place], **numbers: Tensor) -> None:
        self.read += [(places, field, values_P) for field, values_P in numbers.items()]
