"""Writes run folders of made-up numbers, as the writing half would."""

import json
from pathlib import Path

import yaml

from lnexp.config.schema import RunConfig
from lnexp.rows import EventRow, LayerRow, StepRow, header, line

ENV = {"ln_v": 4.36, "h1": 3.25, "h2": 2.48, "floor": 2.48, "parameters": 1000, "tensors": 10}


def step_rows(loss, unigram, **more):
    for step, (a, b) in enumerate(zip(loss, unigram, strict=True)):
        extra = {name: values[step] for name, values in more.items()}
        yield StepRow(step, 8 * step, 0.1 * step, 1e-3, float(a), float(b), **extra)


def csv_text(row_type, rows):
    names = header(row_type)
    return line(names) + "".join(line(getattr(row, name) for name in names) for row in rows)


def write_run(
    sweep: Path, run: str, config: RunConfig | None = None, steps=(), layers=(), events=(), **status
) -> Path:
    """One run folder; `status=None` leaves status.json out."""
    folder = sweep / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    nested = (config or RunConfig()).model_dump()
    (folder / "config.yaml").write_text(yaml.safe_dump(nested))
    (folder / "env.json").write_text(json.dumps(ENV))
    steps = list(steps)
    (folder / "steps.csv").write_text(csv_text(StepRow, steps))
    (folder / "layers.csv").write_text(csv_text(LayerRow, layers))
    (folder / "events.csv").write_text(csv_text(EventRow, events))
    said = {
        "schema": 1, "status": "finished", "first_bad_step": None, "steps_done": len(steps),
        "seconds": 1.5, "unmoved": [], "error": None, **status,
    }  # fmt: skip
    if said["status"] is not None:
        (folder / "status.json").write_text(json.dumps(said))
    return folder


def write_points(sweep: Path, points, axes=("model.depth",), question="") -> None:
    """`points`: (run, seed, settings of the axes)."""
    sweep.mkdir(parents=True, exist_ok=True)
    runs = [
        {"run": run, "seed_init": seed, "seed_data": seed, "settings": settings}
        for run, seed, settings in points
    ]
    value = {"schema": 1, "name": sweep.name, "question": question, "axes": list(axes)}
    (sweep / "points.json").write_text(json.dumps(value | {"runs": runs}))


def curve(gap, seed=0, batch_noise=0.1, gap_noise=0.012, h1=3.25):
    """Loss and unigram loss: the batch's luck moves both, the gap has noise of its own."""
    import numpy as np

    rng = np.random.default_rng(seed)
    unigram = h1 + batch_noise * rng.normal(size=len(gap))
    return unigram + np.asarray(gap) + gap_noise * rng.normal(size=len(gap)), unigram
