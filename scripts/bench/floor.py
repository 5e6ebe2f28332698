"""How far a training step is from what the machine can do, and where the rest of its time goes.

    .venv/bin/python scripts/bench/floor.py

One thread, seconds of the processor. The floor of a step: its FLOPs at the rate of a large matrix
product; at the rates of the products that it is made of, each alone and in a loop; the bytes that
all its other operations read and write, at the rate of a large copy; the number of its operations
times what one of a single element costs. Then the time of its parts by torch.profiler, which makes
many small operations look slower than they are, and what torch.compile gains.
"""

import json
import statistics
from collections.abc import Callable
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import torch
import train as bench
from counted import Counted, flops, inner, passes, replay, step_of, work
from profiled import KINDS, profiled

from lnexp.model.check import step_flops
from lnexp.train.blocks import compile_problem

SQUARES = (512, 1024, 2048)
COPIED = 2**26  # elements
CHAIN = 300  # operations
BARE_STEPS, PROFILED_STEPS = 8, 5
COMPILED = [(12, 64, 16, 64), (100, 32, 8, 32)]
Size = tuple[int, int, int, int]


def best(call: Callable[[], object], least: float = 0.02, rounds: int = 4) -> float:
    """Seconds of one call: the least over rounds of at least `least` seconds."""
    began = process_time()
    call()
    times = max(1, ceil(least / max(process_time() - began, 1e-7)))

    def one() -> float:
        began = process_time()
        for _ in range(times):
            call()
        return (process_time() - began) / times

    return min(one() for _ in range(rounds))


def matrix_rate() -> float:
    """FLOPs a second of the best large square product."""

    def rate(n: int) -> float:
        a, b = torch.randn(n, n), torch.randn(n, n)
        return 2 * n**3 / best(lambda: a @ b)

    return max(map(rate, SQUARES))


def bandwidth() -> float:
    """Bytes a second, read and written, of a copy that no cache holds."""
    source, target = torch.ones(COPIED), torch.ones(COPIED)
    return 2 * source.nbytes / best(lambda: target.copy_(source))


def chained(shape: tuple[int, ...], view: bool) -> float:
    """Seconds of one of a chain of operations with its autograd, forward and backward alike."""
    start, factor = torch.ones(shape, requires_grad=True), torch.ones(shape)

    def chain() -> None:
        x = start
        for _ in range(CHAIN):
            x = x.view(shape) if view else x * factor
        x.backward(factor)

    return best(chain) / (2 * CHAIN)


def product_seconds(size: Size, forward: Counted, backward: Counted) -> dict[str, list[float]]:
    """Kind of product -> FLOPs of a step and their seconds, each product timed on its own."""
    depth, width, batch, context = size
    found: dict[str, list[float]] = {}

    def add(kind: str, count: int, amount: float, seconds: float) -> None:
        total = found.setdefault(kind, [0.0, 0.0])
        total[0] += count * amount
        total[1] += count * seconds

    for direction, counted in (("forward", forward), ("backward", backward)):
        for product, count in counted.products.items():
            kind = direction
            if direction == "backward":
                kind = "weights" if inner(product) == batch * context else "inputs"
            add(kind, count, work(product), best(replay(product), 0.01))
    heads = bench.config(*size, "off").model.heads
    q = torch.randn(batch * heads, context, width // heads)
    p = torch.randn(batch * heads, context, context)
    amount = 2 * p.numel() * q.shape[-1]
    # Scores, and in backward the same again and dL/dp; p v, and in backward dL/dv, dq and dk.
    add("attention", 3 * depth, amount, best(lambda: q @ q.mT, 0.01))
    add("attention", 4 * depth, amount, best(lambda: p @ q, 0.01))
    return found


def step_seconds(size: Size, corpus: bench.Corpus) -> float:
    stream = bench.bare_steps(bench.config(*size, "off"), corpus, False)
    next(stream)

    def one() -> float:
        began = process_time()
        next(stream)
        return process_time() - began

    return statistics.median(one() for _ in range(BARE_STEPS))


def floor(
    size: Size, corpus: bench.Corpus, rates: dict[str, float], folder: Path
) -> dict[str, object]:
    cfg = bench.config(*size, "off")
    depth, width, batch, context = size
    streams = bench.started(size, corpus, folder)
    counts = {}
    for name in ("bare", "off", "light", "full"):
        next(streams[name])  # the first step makes what others find
        counts[name] = step_of(streams[name])
    counted, formula = flops(streams["bare"]), step_flops(cfg, len(corpus.vocabulary))
    # Attention's backward computes the scores once more; the formula counts two products for one.
    again = 2 * depth * batch * context**2 * width
    products = product_seconds(size, *passes(cfg, corpus))
    assert counted == formula + again == sum(amount for amount, _ in products.values())
    bare = counts["bare"]
    parts = {
        "own": sum(seconds for _, seconds in products.values()),
        "bytes": bare.moved / rates["bytes"],
        "ops": bare.ops * rates["op"] + bare.views * rates["view"],
    }
    measured = step_seconds(size, corpus)
    return {
        "size": size,
        "flops": counted,
        "large_ms": counted / rates["flops"] * 1e3,
        **{f"{name}_ms": seconds * 1e3 for name, seconds in parts.items()},
        "bare_ms": measured * 1e3,
        "share": counted / rates["flops"] / measured,
        "accounted": sum(parts.values()) / measured,
        "rates": {kind: amount / seconds for kind, (amount, seconds) in products.items()},
        "alone_ms": {
            "matmul": (parts["own"] - products["attention"][1]) * 1e3,
            "attention": products["attention"][1] * 1e3,
        },
        "op_of_stream": chained((batch, context, width), False),
        "counts": {name: (c.ops, c.views, c.moved) for name, c in counts.items()},
        "profile": {name: profiled(streams[name], PROFILED_STEPS) for name in counts},
    }


def name_of(size: Size) -> str:
    return f"{size[0]:>4} x {size[1]:<4}"


def tell(found: list[dict]) -> None:
    print("\nfloor of a step, ms; share: at the large product's rate, over the bare step; in sum:")
    print("own shapes + bytes + operations, over the bare step")
    print("depth x width  GFLOP  large  own shapes  bytes  operations    bare  share  in sum")
    for row in found:
        print(
            f"{name_of(row['size']):<13} {row['flops'] / 1e9:6.2f} {row['large_ms']:6.1f} "
            f"{row['own_ms']:11.1f} {row['bytes_ms']:6.1f} {row['ops_ms']:11.1f} "
            f"{row['bare_ms']:7.1f} {row['share']:6.2f} {row['accounted']:7.2f}"
        )
    print("\nGFLOP/s of the products alone, by kind (backward: of inputs, of weights)")
    print("depth x width  forward  inputs  weights  attention   us: multiply of the stream")
    for row in found:
        cells = [row["rates"][kind] / 1e9 for kind in ("forward", "inputs", "weights", "attention")]
        print("{:<13} {:8.1f} {:7.1f} {:8.1f} {:10.1f} {:30.1f}".format(
            name_of(row["size"]), *cells, row["op_of_stream"] * 1e6))  # fmt: skip
    print("\noperations of a step; views and allocations; MB read and written outside of products")
    print(f"depth x width {'':6} " + " ".join(f"{n:>22}" for n in ("bare", "off", "light", "full")))
    for row in found:
        cells = (f"{ops:>7,} {views:>7,} {moved / 1e6:6.1f}"
                 for ops, views, moved in row["counts"].values())  # fmt: skip
        print(f"{name_of(row['size']):<20} " + " ".join(cells))
    print("\nms of a profiled step by kind (views: with allocations and calls of other operations;")
    print("alone: the products, each in a loop)")
    for row in found:
        heads = (*row["profile"], "alone")
        print(f"{name_of(row['size']):<13} " + " ".join(f"{head:>8}" for head in heads))
        for kind in KINDS:
            cells = [profile[kind] for profile in row["profile"].values()]
            cells += [row["alone_ms"][kind]] if kind in row["alone_ms"] else []
            print(f"  {kind:<11} " + " ".join(f"{cell:8.2f}" for cell in cells))
        totals = (sum(profile.values()) for profile in row["profile"].values())
        print(f"  {'in all':<11} " + " ".join(f"{total:8.2f}" for total in totals))


def compiled(size: Size, corpus: bench.Corpus, folder: Path) -> list[float]:
    """Quartiles of compiled over eager steps, level off."""
    cfg = bench.config(*size, "off")
    train = cfg.train.model_copy(update={"compile": True})
    configs = {"eager": cfg, "compiled": cfg.model_copy(update={"train": train})}
    streams = {n: bench.lnexp_steps(c, corpus, folder / n) for n, c in configs.items()}
    times = bench.timed(streams, 8)
    ratios = [a / b for a, b in zip(times["compiled"], times["eager"], strict=True)]
    return statistics.quantiles(ratios)


def main() -> None:
    torch.set_num_threads(1)
    corpus = bench.load(bench.Data())
    rates = {
        "flops": matrix_rate(),
        "bytes": bandwidth(),
        "op": chained((1,), False),
        "view": chained((1,), True),
    }
    print(
        f"large product {rates['flops'] / 1e9:.1f} GFLOP/s, large copy {rates['bytes'] / 1e9:.1f} "
        f"GB/s, multiply of one element {rates['op'] * 1e6:.2f} us, view {rates['view'] * 1e6:.2f} "
        "us (with autograd)",
        flush=True,
    )
    found = []
    for size in bench.SIZES:
        with TemporaryDirectory() as folder:
            found.append(floor(size, corpus, rates, Path(folder)))
    tell(found)
    ratios: dict[str, list[float]] = {}
    print("\ntorch.compile, compiled / eager step, level off", flush=True)
    problem = compile_problem()
    if problem:
        print(f"not measured: {problem}")
    for size in COMPILED if not problem else ():
        with TemporaryDirectory() as folder:
            low, middle, high = compiled(size, corpus, Path(folder))
        ratios[name_of(size).strip()] = [low, middle, high]
        print(f"{name_of(size):<13} {middle:.3f} [{low:.3f}, {high:.3f}]", flush=True)
    print(json.dumps({"torch": torch.__version__, "rates": rates, "floor": found,
                      "compiled": ratios}))  # fmt: skip


if __name__ == "__main__":
    main()
