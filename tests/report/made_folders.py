"""Made-up sweeps as folders on disk, as the writing half would leave them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lnexp.config.rules import DEFAULTS, build
from lnexp.config.schema import RunConfig
from lnexp.rows import LayerRow, StepRow
from tests.figures.plot_frames import H1, Made
from tests.results.folders import write_points, write_run

AXIS = {"model.depth": 4}


def config(seed: int = 0, **settings) -> RunConfig:
    return build(DEFAULTS | settings, {"init": seed, "data": seed})


def write_made(made: Made, sweep: Path, question: str = "Which fate?") -> Path:
    """Every run of the frames as a folder; a pending one leaves none."""
    points = []
    for row in made.rows:
        run, depth, seed = row["run"], row["model.depth"], row["seed_init"]
        points.append((run, seed, {"model.depth": depth}))
        if row["status"] == "pending":
            continue
        steps = [
            StepRow(s, 8 * s, 0.1 * s, 1e-3, float(loss), H1, grad_norm=total)
            for name, s, loss, _, total in made.steps
            if name == run
        ]
        layers = [
            LayerRow(s, layer, part, float(norm))
            for name, s, layer, part, norm, *_ in made.layers
            if name == run
        ]
        bad, settings = row["first_bad_step"], {"model.depth": depth}
        status = {"status": row["status"], "first_bad_step": bad}
        write_run(sweep, run, config(seed, **settings), steps, layers, **status)
    return _whole(sweep, points, question)


def write_noise(
    sweep: Path, depth: int, steps: int, seeds: Sequence[int], question: str = "How large?"
) -> Path:
    """Runs with readings of every layer at every step, no two alike."""
    points = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        run = f"noise-d{depth}-s{seed}"
        points.append((run, seed, {"model.depth": depth}))
        loss = rng.uniform(3, 5, steps)
        rows = (
            StepRow(s, 8 * s, 0.1 * s, 1e-3, float(loss[s]), H1, grad_norm=1.0)
            for s in range(steps)
        )
        norms = np.exp(rng.normal(0, 5, (steps, depth)))
        layers = (
            LayerRow(s, layer, "mlp", float(norms[s, layer]))
            for s in range(steps)
            for layer in range(depth)
        )
        write_run(sweep, run, config(seed, **{"model.depth": depth}), rows, layers)
    return _whole(sweep, points, question)


def _whole(sweep: Path, points: list, question: str) -> Path:
    write_points(sweep, points, question=question)
    (sweep / "sweep.yaml").write_text(f"name: {sweep.name}\nquestion: {question}\n")
    return sweep
