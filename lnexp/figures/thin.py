"""Fewer readings for the screen, never for a verdict. A NaN, an Inf and an exact 0 always stay."""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np

CURVE = 150  # stretches of a curve; each leaves at most four points
ROWS = 160  # layers of a map
COLUMNS = 240  # steps of a map
CELLS = 450_000  # of all maps of a page: 1.2 MB as text

# Codes of a cell; every smaller one is a place between the map's lowest and highest logarithm.
NAN, INF, ZERO, ABSENT = 65535, 65534, 65533, 65532
LEVELS = ABSENT - 1


def cells_each(runs: int) -> int:
    """Cells for the map of one of so many runs."""
    return max(400, min(6000, CELLS // max(runs, 1)))


def stretches(count: int, most: int) -> list[tuple[int, int]]:
    """0 .. count cut into at most `most` ranges, each (first, beyond); both ends alone."""
    if count <= most:
        return [(i, i + 1) for i in range(count)]
    inner = np.linspace(1, count - 1, max(most, 3) - 1).round().astype(int)
    edges = [0, *inner.tolist(), count]
    return list(zip(edges[:-1], edges[1:], strict=True))


def curve(values: np.ndarray, most: int = CURVE) -> np.ndarray:
    """The places to draw: of each stretch the smallest, the largest, the first NaN and Inf."""
    if len(values) <= 2 * most:
        return np.arange(len(values))
    places = {0, len(values) - 1}
    for first, beyond in stretches(len(values), most):
        part = values[first:beyond]
        finite = np.flatnonzero(np.isfinite(part))
        if len(finite):
            places |= {first + int(finite[part[finite].argmin()])}
            places |= {first + int(finite[part[finite].argmax()])}
        for special in (np.isnan(part), np.isinf(part)):
            places |= {first + int(at) for at in np.flatnonzero(special)[:1]}
    return np.array(sorted(places))


@dataclass(frozen=True)
class Map:
    """values[layer, reading]; a layer or reading that stands for several is (first, last)."""

    layers: list[tuple[int, int]]
    steps: list[tuple[int, int]]
    values: np.ndarray
    measured: np.ndarray
    readings: int  # there were, before thinning
    rows: int

    @property
    def thinned(self) -> bool:
        return (self.rows, self.readings) != self.values.shape


def thin_map(
    layers: np.ndarray, steps: np.ndarray, values: np.ndarray, measured: np.ndarray, cells: int
) -> Map:
    """Each cell shows the largest of its readings; NaN, then Inf, then 0 before any other."""
    down = stretches(len(layers), ROWS)
    across = stretches(len(steps), max(8, min(COLUMNS, cells // max(len(down), 1))))

    def pooled(what: np.ndarray, by: Any) -> np.ndarray:
        rows = by.reduceat(what, [first for first, _ in down], axis=0)
        return by.reduceat(rows, [first for first, _ in across], axis=1)

    plain = np.where(measured & np.isfinite(values), values, 0.0)
    shown = pooled(plain, np.maximum)
    for special, value in (
        (values == 0, 0.0),
        (np.isinf(values), np.inf),
        (np.isnan(values), np.nan),
    ):
        shown = np.where(pooled(measured & special, np.logical_or), value, shown)
    return Map(
        [(int(layers[a]), int(layers[b - 1])) for a, b in down],
        [(int(steps[a]), int(steps[b - 1])) for a, b in across],
        shown,
        pooled(measured, np.logical_or),
        len(steps),
        len(layers),
    )


def encode(drawn: Map) -> dict[str, Any]:
    """Two bytes a cell, row by row: a logarithm between `low` and `high`, or a special code."""
    values = drawn.values
    usual = drawn.measured & np.isfinite(values) & (values > 0)
    logs = np.log10(values, out=np.zeros(values.shape), where=usual)
    low, high = (float(logs[usual].min()), float(logs[usual].max())) if usual.any() else (0.0, 0.0)
    above = np.where(usual, logs - low, 0.0)
    codes = np.round(above * (LEVELS / ((high - low) or 1.0))).astype("<u2")
    codes[np.isnan(values)], codes[np.isinf(values)], codes[values == 0] = NAN, INF, ZERO
    codes[~drawn.measured] = ABSENT
    return {
        "layers": drawn.layers,
        "steps": drawn.steps,
        "low": low,
        "high": high,
        "codes": base64.b64encode(codes.tobytes()).decode("ascii"),
    }
