"""Seconds for a sweep of 10,000 points: to plan it, to skip what is finished, to show it.

    python scripts/bench/points.py [points]

One run is trained; every other point's folder holds links to its files, so that nothing but
reading is timed. 20 architectures: depths 1 to 20.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lnexp.commands.run import Choice
from lnexp.config.sweep import load_sweep
from lnexp.results.load import load
from lnexp.runs.execute import write_index
from lnexp.runs.plan import Plan, make_plan
from lnexp.runs.worker import train_run

CONFIG = """
data: {{source: markov, length: 20000}}
model: {{width: 16, heads: 2, context: 16}}
train: {{steps: 30, batch_size: 4}}
sweep: {{model.depth: [{depths}]}}
seeds: [{seeds}]
"""
DEPTHS = 20


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    print(f"{what:<42} {time.perf_counter() - began:7.2f} s")


def fill(plan: Plan, out: Path) -> None:
    """One trained run, and links to its files everywhere else."""
    write_index(plan, plan.folder(out))
    runs, first = plan.folder(out) / "runs", plan.runs[0]
    train_run(str(runs / first.name), first.config, first.device, first.corpus.sha256)
    files = list((runs / first.name).iterdir())
    for run in plan.runs[1:]:
        folder = runs / run.name
        folder.mkdir()
        for file in files:
            os.link(file, folder / file.name)


def main() -> None:
    points = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with TemporaryDirectory() as folder:
        config, out = Path(folder) / "points.yaml", Path(folder) / "results"
        seeds = range(max(1, points // DEPTHS))
        lists = {"depths": range(1, DEPTHS + 1), "seeds": seeds}
        config.write_text(
            CONFIG.format(**{name: ", ".join(map(str, some)) for name, some in lists.items()})
        )
        with timed("read the config"):
            sweep = load_sweep(config)
        with timed(f"plan {len(sweep.points):,} points"):
            plan = make_plan(sweep)
        with timed("choose what to train, nothing there"):
            assert len(Choice().of(plan, out)) == len(plan.runs)
        with timed("write sweep.yaml and points.json"):
            write_index(plan, plan.folder(out))
        fill(plan, out)
        with timed("choose what to train, all finished"):
            assert not Choice().of(plan, out)
        with timed("read every run folder and make runs.csv"):
            load(plan.folder(out))
        with timed("show again, runs.csv present"):
            load(plan.folder(out))


if __name__ == "__main__":
    main()
