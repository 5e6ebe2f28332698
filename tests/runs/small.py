"""A sweep that trains in a second, and its rows."""

import csv
from collections.abc import Iterable
from pathlib import Path

from lnexp.records import Status
from lnexp.runs.execute import write_index
from lnexp.runs.plan import Plan, PlannedRun
from lnexp.runs.worker import train_run

SMALL = """
question: a test
data: {source: markov, length: 4000}
model: {depth: 2, width: 16, heads: 2, context: 16, init: xavier}
train: {steps: 12, batch_size: 4, lr: 3e-3}
measure: {level: full, eval_every: 5}
sweep: {model.placement: [pre, post], model.dropout: [0.0, 0.1]}
seeds: [0, 1]
"""


def write_config(folder: Path, text: str = SMALL, name: str = "small.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def rows(results: Path, sweep: str = "small") -> dict[str, list[list[str]]]:
    """Run and file -> its rows without the column of wall time."""
    found = {}
    for path in sorted((results / sweep / "runs").glob("*/*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            table = list(csv.reader(file))
        drop = table[0].index("seconds") if "seconds" in table[0] else None
        found[f"{path.parent.name}/{path.name}"] = [
            [cell for i, cell in enumerate(row) if i != drop] for row in table
        ]
    return found


def files(results: Path) -> dict[str, tuple[int, bytes]]:
    """Every file's time and bytes, to see that nothing was touched."""
    return {
        str(p.relative_to(results)): (p.stat().st_mtime_ns, p.read_bytes())
        for p in sorted(results.rglob("*"))
        if p.is_file()
    }


def train_here(plan: Plan, out: Path, todo: Iterable[PlannedRun] | None = None) -> list[Status]:
    """The runs one after the other in this process, as its workers train them."""
    write_index(plan, plan.folder(out))
    runs = plan.folder(out) / "runs"
    return [
        train_run(str(runs / run.name), run.config, run.device, run.corpus.sha256)
        for run in (plan.runs if todo is None else todo)
    ]
