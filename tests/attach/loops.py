"""Training loops as other people write them."""

import contextlib
import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lnexp

VOCABULARY = 20


class Separate(nn.Module):
    """A pre-norm block with q, k and v as modules of their own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({n: nn.Linear(width, width) for n in "qkvo"})
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, h):
        x = self.norm1(h)
        q, k, v = (self.attn[n](x) for n in "qkv")
        p = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1)
        h = h + self.attn["o"](p @ v)
        return h + self.mlp(self.norm2(h))


class Text(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self, blocks: nn.Module, width: int = 16, tie: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.encoder = blocks
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        if tie:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        h = self.embed(ids)
        if isinstance(self.encoder, nn.ModuleList):
            for block in self.encoder:
                h = block(h)
        else:
            h = self.encoder(h)
        return self.head(h)


def encoder(
    depth: int = 4, norm_first: bool = True, dropout: float = 0.1, width: int = 16, **more: Any
) -> Text:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        width, 2, 2 * width, dropout, norm_first=norm_first, batch_first=True
    )
    stack = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    return xavier(Text(stack, width, **more))


def separate(depth: int = 3, width: int = 16) -> Text:
    torch.manual_seed(0)
    return Text(nn.ModuleList(Separate(width) for _ in range(depth)), width)


def xavier(model: Text) -> Text:
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.xavier_uniform_(weight)
    return model


def batches(steps: int, size: int = 4, length: int = 8):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randint(VOCABULARY, (size, length), generator=generator)


def cross_entropy(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def trained(
    model: nn.Module,
    out: Path | None = None,
    steps: int = 6,
    *,
    accumulate: int = 1,
    clip: float = 1.0,
    optimizers: Callable[[nn.Module], list[torch.optim.Optimizer]] | None = None,
    at: Callable[[int], None] = lambda step: None,
    **options: Any,
) -> list[float]:
    """The loop; its losses. `out`: watched."""
    torch.manual_seed(3)
    several = (optimizers or (lambda m: [torch.optim.AdamW(m.parameters(), lr=1e-3)]))(model)
    losses = []
    with contextlib.ExitStack() as stack:
        w = stack.enter_context(lnexp.watch(model, several, out, **options)) if out else None
        for step, ids in enumerate(batches(steps)):
            at(step)
            parts = ids.chunk(accumulate)

            def again(parts=parts):
                return sum(cross_entropy(model, part) / len(parts) for part in parts)

            loss = 0.0
            for part in parts:
                share = cross_entropy(model, part) / accumulate
                share.backward()
                loss += share.item()
            if w:
                w.step(loss, replay=again)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            for optimizer in several:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss)
    return losses


def rows(folder: Path, table: str) -> list[dict[str, str]]:
    with (folder / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def origin(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "autopsy.json").read_text())["origin"]


def hooks_of(model: nn.Module) -> int:
    modules = [
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
        for m in model.modules()
    ]
    weights = [
        len(p._backward_hooks or {}) + len(getattr(p, "_post_accumulate_grad_hooks", None) or {})
        for p in model.parameters()
    ]
    return sum(modules) + sum(weights)
