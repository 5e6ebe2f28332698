"""Time of a training step of a transformers model under other tools' watching and lnexp.watch's.

    .venv/bin/python scripts/bench/peers.py [ROUNDS]

Blocks of steps are interleaved, one thread; a ratio is the median over rounds of paired blocks.
Tools that are not installed are left out.
"""

import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from time import perf_counter

import torch
from torch import nn

import lnexp

SIZES = [(12, 256, 16, 64), (48, 64, 16, 64)]  # depth, width, batch, context
VOCABULARY, STEPS = 1000, 4


class Loss(nn.Module):
    """GPT-2 of transformers where it is installed, else torch's own pre-norm encoder."""

    def __init__(self, depth: int, width: int, context: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        try:
            from transformers import GPT2Config, GPT2LMHeadModel

            config = GPT2Config(
                n_layer=depth, n_embd=width, n_head=4, n_positions=context,
                vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0,
            )  # fmt: skip
            self.model: nn.Module = GPT2LMHeadModel(config)
            self.gpt2 = True
        except ImportError:
            layer = nn.TransformerEncoderLayer(
                width, 4, 4 * width, batch_first=True, norm_first=True
            )
            encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
            embed, head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
            self.model, self.gpt2 = nn.Sequential(embed, encoder, head), False

    def forward(self, ids):
        if self.gpt2:
            return self.model(input_ids=ids, labels=ids).loss
        return nn.functional.cross_entropy(self.model(ids).flatten(0, 1), ids.flatten())


def steps(size: tuple[int, int, int, int], how: str) -> Iterator[None]:
    depth, width, batch, context = size
    model = Loss(depth, width, context).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    w = None
    with contextlib.ExitStack() as stack:
        if how in ("light", "full"):
            out = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "run")
            w = stack.enter_context(lnexp.watch(model, optimizer, out=out, level=how))
        elif how == "DebugUnderflowOverflow":
            from transformers.debug_utils import DebugUnderflowOverflow

            DebugUnderflowOverflow(model)
        while True:
            ids = torch.randint(VOCABULARY, (batch, context))
            anomaly = torch.autograd.detect_anomaly() if how == "anomaly" else None
            with anomaly or contextlib.nullcontext():
                loss = model(ids)
                loss.backward()
            if w is not None:
                w.step(loss)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield


def by_hand(size: tuple[int, int, int, int]) -> Iterator[None]:
    """What people write: the norm of every gradient, one by one."""
    depth, width, batch, context = size
    model = Loss(depth, width, context).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while True:
        ids = torch.randint(VOCABULARY, (batch, context))
        model(ids).backward()
        norms = [p.grad.norm().item() for p in model.parameters() if p.grad is not None]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert norms
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


def start(how: str) -> Callable[[tuple[int, int, int, int]], Iterator[None]]:
    return by_hand if how == "by hand" else lambda size: steps(size, how)


def tools() -> list[str]:
    names = ["plain", "light", "full", "by hand", "anomaly"]
    with contextlib.suppress(ImportError):
        import transformers.debug_utils  # noqa: F401

        names.append("DebugUnderflowOverflow")
    return names


def block(stream: Iterator[None]) -> float:
    began = perf_counter()
    for _ in range(STEPS):
        next(stream)
    return (perf_counter() - began) / STEPS


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    torch.set_num_threads(1)
    names, results = tools(), []
    for size in SIZES:
        streams = {name: start(name)(size) for name in names}
        times: dict[str, list[float]] = {name: [] for name in names}
        with contextlib.redirect_stdout(sys.stderr):
            for stream in streams.values():
                block(stream)  # warm
            for _ in range(rounds):
                for name in names:
                    times[name].append(block(streams[name]))
        ratios = {
            n: statistics.median(a / b for a, b in zip(times[n], times["plain"], strict=True))
            for n in names
        }
        plain = statistics.median(times["plain"]) * 1e3
        print(f"{size[0]} x {size[1]}: plain {plain:.1f} ms; "
              + ", ".join(f"{n} {r:.3f}" for n, r in ratios.items() if n != "plain"))  # fmt: skip
        results.append({"depth": size[0], "width": size[1], "plain_ms": plain, **ratios})
        for stream in streams.values():
            stream.close()  # type: ignore[attr-defined]
    print(json.dumps({"torch": torch.__version__, "rounds": rounds, "results": results}))


if __name__ == "__main__":
    main()
