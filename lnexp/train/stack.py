"""Runs of one shape in one forward and backward: their weights are rows of one matrix, their
batches lie one after the other. Loss and gradients of each are, bit for bit, those of it alone.

A narrow network's time goes into calls more than into arithmetic; so many runs share them.
Shapes: R runs, N elements of all parameters, B batch, T time, M = B T, D features in, E out.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from ..model.check import is_norm, on_meta
from ..model.gpt import GPT, Embedding
from .passes import Pass


class Each(nn.Module):
    """Each run's own module on its own part of the batch."""

    def __init__(self, own: Sequence[nn.Module]) -> None:
        super().__init__()
        self.own = tuple(own)  # not modules of this one

    def forward(self, x: Tensor) -> Tensor:
        parts = x.chunk(len(self.own))
        return torch.cat([module(part) for module, part in zip(self.own, parts, strict=True)])


class Linears(nn.Module):
    """y = x W^T + b with each run's own W and b, whose gradients are added in their places."""

    def __init__(self, weight: tuple[Tensor, Tensor], bias: tuple[Tensor, Tensor] | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        x_RMD = x.reshape(len(self.weight[0]), -1, x.shape[-1])
        y_RME = _Products.apply(x_RMD, self.weight, self.bias)
        return y_RME.view(*x.shape[:-1], -1)


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_RMD: Tensor,
        weight: tuple[Tensor, Tensor],
        bias: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        ctx.save_for_backward(x_RMD)
        ctx.weight, ctx.bias = weight, bias
        if bias is None:
            return torch.bmm(x_RMD, weight[0].mT)
        return torch.baddbmm(bias[0].unsqueeze(1), x_RMD, weight[0].mT)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (x_RMD,), (g_RME,) = ctx.saved_tensors, gradients
        weight_RED, gradient_RED = ctx.weight
        gradient_RED += torch.bmm(g_RME.mT, x_RMD)
        if ctx.bias is not None:
            gradient_RE = ctx.bias[1]
            gradient_RE += g_RME.sum(1)
        return torch.bmm(g_RME, weight_RED), None, None


class Stack:
    """The memory of up to R runs, and their passes."""

    def __init__(self, runs: int = 0) -> None:
        self.runs = runs
        self.trusted = True
        self._rows: dict[nn.Module, int] = {}
        self._weights_RN = self._gradients_RN = torch.empty(0)
        self._networks: dict[tuple[int, int], GPT] = {}

    def row(self, model: GPT) -> tuple[Tensor, Tensor]:
        """Where this run's weights and gradients are to lie."""
        if not self._rows:
            N = sum(p.numel() for p in model.parameters())
            self._weights_RN = torch.zeros(self.runs, N)
            self._gradients_RN = torch.zeros(self.runs, N)
        at = self._rows[model] = len(self._rows)
        # A snapshot holds a tensor's whole storage: each row has one of its own.
        weights_N, gradients_N = (
            torch.from_numpy(whole_RN.numpy()[at])
            for whole_RN in (self._weights_RN, self._gradients_RN)
        )
        return weights_N, gradients_N

    def make(self, passes: Sequence[Pass]) -> None:
        """All of them, those of neighbouring rows together."""
        for some in self._stretches(passes):
            if len(some) == 1 or not self.trusted:
                for one in some:
                    one.alone()
            else:
                self._together(some)

    def _stretches(self, passes: Sequence[Pass]) -> Iterator[list[Pass]]:
        fit = []
        for one in passes:
            row = self._rows.get(one.state.model)
            if row is None or one.heard or one.state.recompute:
                yield [one]
            else:
                fit.append((row, one))
        fit.sort(key=lambda placed: placed[0])
        # Neighbours have the same distance between their row and their place in the list.
        for _, some in groupby(enumerate(fit), lambda item: item[1][0] - item[0]):
            yield [one for _, (_, one) in some]

    def _together(self, passes: Sequence[Pass]) -> None:
        first = self._rows[passes[0].state.model]
        network = self._networks.get((first, len(passes)))
        if network is None:
            self._try(passes, first)
        else:
            _pass(network, passes)

    def _try(self, passes: Sequence[Pass], first: int) -> None:
        """A network's first pass, beside each run's own: another processor's library may round a
        product among others in another way."""
        gradients_RN = self._gradients_RN[first : first + len(passes)]
        for one in passes:
            one.alone()
        alone_RN, losses = gradients_RN.clone(), [one.loss for one in passes]
        gradients_RN.zero_()
        network = self._networks[first, len(passes)] = self._network(passes, first)
        _pass(network, passes)
        pairs = zip(losses, (one.loss for one in passes), strict=True)
        if not (_same(gradients_RN, alone_RN) and all(_same(*pair) for pair in pairs)):
            self.trusted = False
            gradients_RN.copy_(alone_RN)
            for one, loss in zip(passes, losses, strict=True):
                one.loss = loss

    def _network(self, passes: Sequence[Pass], first: int) -> GPT:
        """The model's own equations over all runs: what holds weights is put in its place."""
        models = [one.state.model for one in passes]
        network = on_meta(passes[0].state.config.model, models[0].head.out_features)
        for name, module in list(network.named_modules()):
            own = [model.get_submodule(name) for model in models]
            if isinstance(linear := own[0], nn.Linear):
                bias = None if linear.bias is None else self._columns(linear.bias, first, len(own))
                put = Linears(self._columns(linear.weight, first, len(own)), bias)
            elif is_norm(module) or isinstance(module, Embedding):
                put = Each(own)
            else:
                continue
            parent, _, last = name.rpartition(".")
            setattr(network.get_submodule(parent), last, put)
        return network

    def _columns(self, of: Tensor, first: int, runs: int) -> tuple[Tensor, Tensor]:
        """The same tensor of several runs, and its gradients."""
        at = of.storage_offset()
        weights, gradients = (
            whole_RN[first : first + runs, at : at + of.numel()].view(runs, *of.shape)
            for whole_RN in (self._weights_RN, self._gradients_RN)
        )
        return weights, gradients


def _pass(network: GPT, passes: Sequence[Pass]) -> None:
    logits = network(torch.cat([one.x_BT for one in passes])).chunk(len(passes))
    torch.autograd.backward(
        [one.objective(lambda _, own=own: own) for one, own in zip(passes, logits, strict=True)]
    )


def _same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, NaN included."""
    return torch.equal(one.detach().view(torch.int32), other.detach().view(torch.int32))
