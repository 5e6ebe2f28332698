"""Whether training and its rows are, bit for bit, those of another tree.

    .venv/bin/python scripts/same_rows.py train OUT     82 runs: placements, precisions, norms,
                                                        optimizers, dropout, recomputing
    .venv/bin/python scripts/same_rows.py compare A B   every CSV of two results folders

Train with each tree (PYTHONPATH=TREE), then compare. Columns of wall time are left out.
"""

import csv
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

CALL = "import lnexp.cli; lnexp.cli.main()"
TIMES = {"seconds"}
DEEP = """
model: {depth: 40, width: 32, heads: 2, context: 32, dropout: 0.1, init: xavier}
train: {steps: 15, batch_size: 4, z_loss: 1e-4, checkpointing: RECOMPUTED}
measure: {level: light, keep: none}
sweep: {model.placement: [pre, post]}
seeds: [0, 1]
"""
SWEEPS = {
    "placements": """
model: {depth: 4, width: 32, heads: 2, context: 32, init: xavier}
train: {steps: 24, batch_size: 4, warmup: 3}
measure: {level: full, sample: 2, eval_every: 10, snapshot_every: 50, keep: none}
sweep:
  model.placement: [pre, post, none, sandwich, deepnorm, keel, rezero, residual_dual]
  train.precision: [fp32, fp64, fp16, bf16-mixed]
seeds: [0]
""",
    "norms": """
model: {depth: 3, width: 32, heads: 2, context: 32}
train: {steps: 24, batch_size: 4, lr: 3e-3, clip: 1.0, schedule: cosine}
measure: {level: full, eval_every: 10, keep: none}
sweep:
  model.norm: [layernorm, layernorm_plain, rmsnorm, batchnorm, powernorm, scalenorm, dyt]
  model.qk_norm: [false, true]
  train.optimizer: [adamw, adam, sgd]
seeds: [0]
""",
    "deep": DEEP.replace("RECOMPUTED", "false"),
    "deep_recomputed": DEEP.replace("RECOMPUTED", "true"),
}


def train(out: Path) -> int:
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.yaml" for name in SWEEPS]
        for path, text in zip(paths, SWEEPS.values(), strict=True):
            path.write_text(text, encoding="utf-8")
        return subprocess.call([sys.executable, "-c", CALL, "run", *map(str, paths), "-o", out])


def table(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    times = [i for i, name in enumerate(rows[0]) if name in TIMES] if rows else []
    return [[cell for i, cell in enumerate(row) if i not in times] for row in rows]


def compare(one: Path, other: Path) -> int:
    names = {str(p.relative_to(one)) for p in one.glob("*/runs/*/*.csv")}
    names |= {str(p.relative_to(other)) for p in other.glob("*/runs/*/*.csv")}
    absent = [n for n in sorted(names) if not ((one / n).exists() and (other / n).exists())]
    shared = sorted(names - set(absent))
    different = [name for name in shared if table(one / name) != table(other / name)]
    for name in absent:
        print(f"in one of them only: {name}")
    for name in different:
        print(f"differs: {name}")
    runs = len({str(Path(name).parent) for name in shared})
    print(f"{runs} runs, {len(shared)} CSVs: {len(different)} differ, {len(absent)} are missing")
    return bool(absent or different)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["train", out]:
            sys.exit(train(Path(out)))
        case ["compare", one, other]:
            sys.exit(compare(Path(one), Path(other)))
        case _:
            sys.exit(__doc__)
