"""A loss spike made by one step with 30 times the learning rate, and which changes prevent it.

    python scripts/spike.py [FOLDER]

Trains in this process, so that the rate can be changed from outside: the run, then its rescue.
"""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lnexp.commands.rescue import rescue
from lnexp.commands.run import Choice, run
from lnexp.runs.local import Crew, work
from lnexp.runs.plan import PlannedRun
from lnexp.runs.worker import train_run
from lnexp.train import loop

CONFIG = """
data: {source: markov, length: 20000}
model: {depth: 4, width: 32, heads: 2, context: 32, placement: pre, init: xavier}
train: {steps: 120, batch_size: 16, lr: 3e-3}
seeds: [0]
"""
STEP, TIMES = 60, 30
TRIES = ("train.lr=3e-4", "train.clip=0.1")


@contextmanager
def here(folder: Path, todo: Sequence[PlannedRun]) -> Iterator[Crew]:
    """One run after the other, in this process."""
    futures: dict[Future, PlannedRun] = {}
    for planned in todo:
        future: Future = Future()
        future.set_result(train_run(*work(planned, folder)))
        futures[future] = planned
    yield Crew(futures, stop=lambda: None)


def main() -> None:
    lr_at = loop.lr_at
    loop.lr_at = lambda step, train: lr_at(step, train) * (TIMES if step == STEP else 1)
    with TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "spike.yaml").write_text(CONFIG)
        out = folder / "results"
        run([str(folder / "spike.yaml")], out, [], 1, Choice(), False, False, False, here)
        (trained,) = (out / "spike" / "runs").iterdir()
        rescue(trained, TRIES, None, 1, False, here)


if __name__ == "__main__":
    main()
