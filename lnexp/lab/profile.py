"""How a run's readings change over depth, read off its layers.csv: fits and ratios, a row a step.

RMS_l is the stream's after block l, counted from 1; RMS_0 the embedding's.
"""

import csv
from collections.abc import Iterator, Sequence
from math import isfinite, prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lnexp.lab.schemas import ProfileRow
from lnexp.lab.subject import HALVES, Subject, ratio
from lnexp.measure.nonfinite import total
from lnexp.messages import UserError
from lnexp.model.catalog import PLACEMENTS, Seat

__all__ = ["Reading", "figures", "power", "profile", "readings", "root"]

Reading = dict[tuple[int, str], dict[str, float | None]]  # (layer, part) -> columns


def profile(subject: Subject) -> Iterator[ProfileRow]:
    """Of the first and of the last step that was read."""
    steps = readings(subject.folder)
    if not steps:
        raise UserError(f"{subject.folder / 'layers.csv'} holds no reading")
    times: tuple[tuple[Literal["first", "last"], int], ...] = (
        ("first", min(steps)),
        ("last", max(steps)),
    )
    for when, step in times:
        yield ProfileRow(
            run=subject.run,
            steps_done=subject.steps_done,
            when=when,
            step=step,
            **figures(steps[step], subject.config.model.depth, _after_every_sum(subject)),
        )


def readings(run: Path) -> dict[int, Reading]:
    """Step -> what layers.csv says of it."""
    steps: dict[int, Reading] = {}
    with (run / "layers.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            step, layer, part = int(row.pop("step")), int(row.pop("layer")), row.pop("part")
            cells = {name: float(text) if text else None for name, text in row.items()}
            steps.setdefault(step, {})[layer, part] = cells
    return steps


def _after_every_sum(subject: Subject) -> bool:
    """Whether a norm follows each h + F(h), with nothing else in the sum and h not scaled: the one
    case in which RMS(h) / RMS(h + F) is what the path by the skips is multiplied by."""
    model = subject.config.model
    placement = PLACEMENTS[model.placement]
    terms = placement.at(Seat(model.depth - 1, "mlp", model.depth))
    alone = placement.block == "plain" and terms.skip == 1
    return model.residual and alone and terms.after and not terms.before


def figures(reading: Reading, depth: int, sums: bool) -> dict[str, Any]:
    """The columns of one step; None: not measured."""

    def column(name: str, places: Sequence[tuple[int, str]]) -> list[float | None]:
        return [reading.get(place, {}).get(name) for place in places]

    sublayers = [(layer, part) for layer in range(depth) for part in HALVES]
    start = reading.get((-1, "embed"), {}).get("act_rms")
    blocks = column("act_rms", [(layer, "mlp") for layer in range(depth)])
    stream = column("act_rms", sublayers)
    inputs = column("norm_input_rms", sublayers)
    flow = column("stream_grad_rms", sublayers)
    above = [None if rms is None or start is None else rms**2 - start**2 for rms in blocks]
    at = [float(block) for block in range(1, depth + 1)]
    variance_exponent, variance_r2 = power(at, above)
    rms_exponent, rms_r2 = power(at, blocks)
    growth = ratio(blocks[-1], start)
    gradients = [
        _total(column("grad_norm", [(layer, part) for part in (*HALVES, "norm")]))
        for layer in (0, depth - 1)
    ]
    matrix = {
        part: ratio(*column("grad_norm", [(0, part), (depth - 1, part)])) for part in ("wq", "w2")
    }
    flowed = ratio(flow[0], flow[-1])
    return {
        "fit_from": 1,
        "fit_to": depth,
        "variance_exponent": variance_exponent,
        "variance_r2": variance_r2,
        "variance_per_block": None if above[-1] is None else above[-1] / depth,
        "rms_exponent": rms_exponent,
        "rms_r2": rms_r2,
        "growth_per_block": root(growth, depth),
        "stream_rms_per_sublayer": root(growth, 2 * depth),
        "rms_min": _only(min, stream),
        "rms_max": _only(max, stream),
        "norm_input_min": _only(min, inputs),
        "norm_input_max": _only(max, inputs),
        "grad_ratio": ratio(*gradients),
        "wq_ratio": matrix["wq"],
        "w2_ratio": matrix["w2"],
        "stream_grad_ratio": flowed,
        "stream_grad_per_sublayer": root(flowed, 2 * depth - 1),
        "identity_path": _path([start, *stream[:-1]], inputs) if sums else None,
        "token_cosine_last": column("token_cosine", sublayers)[-1],
    }


def power(x: Sequence[float], y: Sequence[float | None]) -> tuple[float | None, float | None]:
    """p and R2 of y ~ x^p, least squares in logarithms over all points; None: not all positive."""
    if len(x) < 3 or not all(v is not None and isfinite(v) and v > 0 for v in y):
        return None, None
    u, v = np.log(x), np.log(np.array(y, dtype=float))
    slope, intercept = np.polyfit(u, v, 1)
    spread = float(((v - v.mean()) ** 2).sum())
    left = float(((v - slope * u - intercept) ** 2).sum())
    return float(slope), 1 - left / spread if spread > 0 else None


def root(value: float | None, degree: int) -> float | None:
    return None if value is None or value < 0 else value ** (1 / degree)


def _total(norms: Sequence[float | None]) -> float | None:
    """Of those measured."""
    measured = [norm for norm in norms if norm is not None]
    return total(measured) if measured else None


def _only(choose: Any, values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return float(choose(np.array(measured))) if measured else None


def _path(before: Sequence[float | None], sums: Sequence[float | None]) -> float | None:
    factors = [ratio(h, after) for h, after in zip(before, sums, strict=True)]
    return None if None in factors else prod(f for f in factors if f is not None)
