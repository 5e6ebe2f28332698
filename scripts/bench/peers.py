"""Time of a training step of transformers' models under lnexp.watch and under other tools.

    .venv/bin/python scripts/bench/peers.py [SECONDS A MODEL, default 60]

Needs transformers. Every way trains a model of its own, step by step in turns, on one thread; a
ratio is the median over rounds of paired steps. Tools that cost a multiple take part in every
third round. Tools that are not installed are left out, with a line. The table goes to standard
output, and its last line is the same as JSON.
"""

import contextlib
import gc
import importlib.util
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import lnexp

SHAPES = [(12, 256), (48, 64)]  # depth, width
SIZES = [(family, *shape) for shape in SHAPES for family in ("GPT-2", "Llama")]
BATCH, CONTEXT, VOCABULARY = 16, 64, 1000
FEWEST = 5  # rounds
TARGETS = {"light": 1.05, "full": 1.25}

Look = Callable[[Tensor], None]  # what a way does between backward and the optimizer's step


def built(family: str, depth: int, width: int) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    ends = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
    if family == "GPT-2":
        config = transformers.GPT2Config(
            n_layer=depth, n_embd=width, n_head=4, n_positions=CONTEXT, **ends
        )
        return transformers.GPT2LMHeadModel(config).train()
    config = transformers.LlamaConfig(
        num_hidden_layers=depth, hidden_size=width, num_attention_heads=4,
        intermediate_size=4 * width, max_position_embeddings=CONTEXT, **ends,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).train()


def plain(model: nn.Module, optimizer: Optimizer, folder: str, stack: contextlib.ExitStack) -> Look:
    return lambda loss: None


def by_hand(
    model: nn.Module, optimizer: Optimizer, folder: str, stack: contextlib.ExitStack
) -> Look:
    """What people write: the norm of every gradient, one by one, and clipping."""

    def look(loss: Tensor) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.norm().item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    return look


def ours(level: str):
    def way(
        model: nn.Module, optimizer: Optimizer, folder: str, stack: contextlib.ExitStack
    ) -> Look:
        out = os.path.join(folder, "run")
        return stack.enter_context(lnexp.watch(model, optimizer, out=out, level=level)).step

    return way


def anomaly(
    model: nn.Module, optimizer: Optimizer, folder: str, stack: contextlib.ExitStack
) -> Look:
    """Its mode is on around each step: see `steps`."""
    return lambda loss: None


def underflow_overflow(
    model: nn.Module, optimizer: Optimizer, folder: str, stack: contextlib.ExitStack
) -> Look:
    from transformers.debug_utils import DebugUnderflowOverflow

    DebugUnderflowOverflow(model)
    return lambda loss: None


def wandb_watch(
    model: nn.Module, optimizer: Optimizer, folder: str, stack: contextlib.ExitStack
) -> Look:
    """Histograms of all gradients, as it does by default, at every step; offline."""
    import wandb

    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    run = wandb.init(project="bench", dir=folder, mode="offline", settings=settings)
    stack.callback(run.finish)
    run.watch(model, log_freq=1)
    return lambda loss: run.log({"loss": loss.item()})


def trainscope(
    model: nn.Module, optimizer: Optimizer, folder: str, stack: contextlib.ExitStack
) -> Look:
    from trainscope import TrainScope, TrainScopeConfig

    # Without what it would send to wandb, whose run is open here.
    config = TrainScopeConfig(run_dir=folder, run_name="run", integrations={"wandb": False})
    scope = TrainScope(model, optimizer, config)
    stack.enter_context(scope)
    return lambda loss: scope.step(loss.item())


# A way to train, what it needs besides, and whether it costs a multiple of a step.
WAYS = {
    "plain": (plain, "", False),
    "light": (ours("light"), "", False),
    "full": (ours("full"), "", False),
    "by hand": (by_hand, "", False),
    "anomaly mode": (anomaly, "", True),
    "DebugUnderflowOverflow": (underflow_overflow, "", True),
    "wandb.watch": (wandb_watch, "wandb", True),
    "trainscope": (trainscope, "trainscope", True),
}


def steps(name: str, family: str, depth: int, width: int) -> Iterator[None]:
    model = built(family, depth, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        look = WAYS[name][0](model, optimizer, folder, stack)
        while True:
            ids = torch.randint(VOCABULARY, (BATCH, CONTEXT), generator=generator)
            with torch.autograd.set_detect_anomaly(name == "anomaly mode"):
                loss = model(input_ids=ids, labels=ids).loss
                loss.backward()
            look(loss)
            optimizer.step()
            optimizer.zero_grad()
            yield


def timed(stream: Iterator[None]) -> float:
    began = perf_counter()
    next(stream)
    return perf_counter() - began


def measured(names: list[str], size: tuple[str, int, int], seconds: float) -> dict[str, list]:
    """Of each way, per round: its time and that of the plain step of this round."""
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    streams = {name: steps(name, *size) for name in names}
    with contextlib.redirect_stdout(sys.stderr):
        for stream in streams.values():  # warm; what starts lazily has started
            timed(stream)
        began, number = perf_counter(), 0
        while number < FEWEST or perf_counter() - began < seconds:
            turn = [name for name in names if not WAYS[name][2] or number % 3 == 0]
            shift = number % len(turn)  # nobody always follows the same one
            gc.collect()
            times = {name: timed(streams[name]) for name in turn[shift:] + turn[:shift]}
            for name, time in times.items():
                pairs[name].append((time, times["plain"]))
            number += 1
        for stream in streams.values():
            stream.close()  # type: ignore[attr-defined]
    return pairs


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    if importlib.util.find_spec("transformers") is None:
        sys.exit('peers.py needs transformers: pip install "lnexp[hf]"')
    torch.set_num_threads(1)
    names = [n for n, (_, needs, _) in WAYS.items() if not needs or importlib.util.find_spec(needs)]
    for missing in [name for name in WAYS if name not in names]:
        print(f"{missing}: not installed, left out")
    print(f"batch {BATCH}, context {CONTEXT}; times of a plain step. Targets: {TARGETS}")
    heads = ["model", "plain ms", *names[1:], "rounds"]
    print("  ".join(f"{head:>{max(len(head), 14)}}" for head in heads))
    results = []
    for family, depth, width in SIZES:
        pairs = measured(names, (family, depth, width), seconds)
        ratios = {n: statistics.median(a / b for a, b in pairs[n]) for n in names[1:]}
        milliseconds = statistics.median(a for a, _ in pairs["plain"]) * 1e3
        cells = [f"{family} {depth}x{width}", f"{milliseconds:.1f}"]
        cells += [*(f"{ratio:.3f}" for ratio in ratios.values()), str(len(pairs["plain"]))]
        print("  ".join(f"{c:>{max(len(h), 14)}}" for c, h in zip(cells, heads, strict=True)))
        sys.stdout.flush()
        results.append({
            "model": family, "depth": depth, "width": width, "plain_ms": milliseconds,
            "ratios": ratios, "rounds": {n: len(pairs[n]) for n in names},
        })  # fmt: skip
    about = {"torch": torch.__version__, "batch": BATCH, "context": CONTEXT, "targets": TARGETS}
    print(json.dumps({**about, "results": results}))


if __name__ == "__main__":
    main()
