"""Seconds that `lnexp plot` takes on many runs, and that a long layers table takes to load.

    python scripts/bench/plot.py [runs] [rows]

Made-up run folders of 200 steps and 4 to 12 blocks, read every 5 steps at level full; nothing is
trained. The table of `rows` rows (default 10,000,000; 0: left out) is ten long runs at level light,
read from the CSVs and, with the extra `parquet`, from what is kept of them.
"""

import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import yaml

from lnexp.commands.read import plot
from lnexp.config.schema import Model, RunConfig, Train
from lnexp.results import tables as stored
from lnexp.results.load import Results, load
from lnexp.results.tables import SETTLED
from lnexp.rows import LayerRow, StepRow, header, line

ENV = {"ln_v": 4.36, "h1": 3.25, "h2": 2.48, "floor": 2.48, "parameters": 1000, "tensors": 10}
STATUS = {"schema": 1, "status": "finished", "first_bad_step": None, "seconds": 1.5, "error": None}
DEPTHS, PLACEMENTS, RATES = (4, 8, 12), ("pre", "post"), (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
STEPS, EVERY = 200, 5
LIGHT = 4  # columns of layers.csv beyond its keys that level light has


@contextmanager
def timed(what: str) -> Iterator[None]:
    began, used = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    print(f"{what:<56} {wall:7.2f} s, {cpu:6.2f} s of CPU", flush=True)


def layer_lines(depth: int, full: bool, steps: range, rng: np.random.Generator) -> Iterator[str]:
    """The rows of all readings; no number twice, so that nothing packs better than real ones."""
    parts = [(-1, "embed"), *product(range(depth), ("attn", "mlp")), (depth, "head")]
    heads = [f"{layer},{part}" for layer, part in parts]
    columns = len(header(LayerRow)) - 3
    measured = columns if full else LIGHT
    rest = "," * (columns - measured)
    for step in steps:
        values = rng.lognormal(size=(len(parts), measured)).tolist()
        for head, row in zip(heads, values, strict=True):
            yield f"{step},{head},{','.join(map(repr, row))}{rest}\n"


def write_run(folder: Path, config: RunConfig, seed: int, every: int, full: bool) -> int:
    """A run folder of made-up numbers; how many rows its layers.csv has."""
    rng, steps = np.random.default_rng(seed), config.train.steps
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump()))
    (folder / "env.json").write_text(json.dumps(ENV))
    gap = 1.2 * np.exp(-np.arange(steps) / 40) - 0.9 + rng.normal(0, 0.02, steps)
    level = 3.25 + rng.normal(0, 0.1, steps)
    rows = [
        StepRow(i, 8 * i, 0.1 * i, config.train.lr, float(g + u), float(u), None, 1.0, 0.01, 9.0)
        for i, (g, u) in enumerate(zip(gap, level, strict=True))
    ]
    names = header(StepRow)
    body = "".join(line([getattr(row, name) for name in names]) for row in rows)
    (folder / "steps.csv").write_text(line(names) + body)
    layers = list(layer_lines(config.model.depth, full, range(0, steps, every), rng))
    (folder / "layers.csv").write_text(line(header(LayerRow)) + "".join(layers))
    (folder / "events.csv").write_text("step,phase,kind,role,module,op,detail\n")
    (folder / "status.json").write_text(json.dumps(STATUS | {"steps_done": steps, "unmoved": []}))
    return len(layers)


def write_sweep(
    sweep: Path, runs: int, steps: int, every: int, full: bool, depths: Sequence[int] = DEPTHS
) -> int:
    grid = list(product(depths, PLACEMENTS, RATES))
    points, rows = [], 0
    for i in range(runs):
        (depth, placement, lr), seed = grid[i % len(grid)], i // len(grid)
        model = Model(depth=depth, placement=placement)
        config = RunConfig(model=model, train=Train(lr=lr, steps=steps))
        settings = {"model.depth": depth, "model.placement": placement, "train.lr": lr}
        rows += write_run(sweep / "runs" / f"r{i}", config, i, every, full)
        seeds = {"seed_init": seed, "seed_data": seed}
        points.append({"run": f"r{i}", **seeds, "settings": settings})
    whole = {"schema": 1, "name": sweep.name, "question": "", "axes": list(points[0]["settings"])}
    (sweep / "points.json").write_text(json.dumps(whole | {"runs": points}))
    return rows


def main() -> None:
    runs, rows = (int(word) for word in (*sys.argv[1:], *("1000", "10000000")[len(sys.argv) - 1 :]))
    with TemporaryDirectory() as folder:
        sweep = Path(folder) / "many"
        made = write_sweep(sweep, runs, STEPS, EVERY, full=True)
        print(f"{runs:,} runs of {STEPS} steps, {made:,} rows of layers")
        with timed("read every run folder and make runs.csv"):
            load(sweep)
        with timed("lnexp plot, every kind as png and svg"):
            plot(sweep, None, None, "png,svg", None)
    if not rows:
        return
    with TemporaryDirectory() as folder:
        sweep = Path(folder) / "long"
        made = write_sweep(sweep, 10, max(1, rows // 100), 1, full=False)  # 10 rows a step
        time.sleep(SETTLED)  # of a file that is still being written nothing is kept
        with mock.patch.object(stored, "PYARROW", False):
            results = load(sweep)
            read_layers(results, f"a layers table of {made:,} rows")
        if stored.PYARROW:
            with timed("the same, read once more and kept as Parquet"):
                results.layers()
            read_layers(results, "from there")
        print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB at most")


def read_layers(results: Results, what: str) -> None:
    with timed(f"{what}, all columns"):
        results.layers()
    with timed(f"{what}, gradient norms alone"):
        results.layers(["step", "layer", "part", "grad_norm"])


if __name__ == "__main__":
    main()
