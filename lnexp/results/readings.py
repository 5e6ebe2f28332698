"""What gradients, weights and updates of a run come to, in a few numbers."""

from dataclasses import dataclass
from math import ceil, inf, nan

import numpy as np
import pandas as pd

from lnexp.results.statistics import median
from lnexp.results.tables import column, numbers

# Readings that End speaks of for gradients and updates.
LAST_READINGS = 0.2
BLOCK_PARTS = ("attn", "mlp", "norm")


def last_readings(values: np.ndarray) -> np.ndarray:
    """The last 20 % along the first axis, at least one."""
    return values[len(values) - ceil(LAST_READINGS * len(values)) :]


def block_norms(layers: pd.DataFrame, name: str, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and norms[reading, block] = root of the sum of the squares over the block's parts.

    A block without a reading in a step is NaN there; steps without any are left out.
    """
    values = column(layers, name)
    part, layer = column(layers, "part"), column(layers, "layer").to_numpy()
    use = part.isin(BLOCK_PARTS).to_numpy() & values.notna().to_numpy()
    use &= (layer >= 0) & (layer < depth)
    steps, reading = np.unique(column(layers, "step").to_numpy()[use], return_inverse=True)
    norms = np.full((len(steps), depth), nan)
    at = (reading, layer[use])
    norms[at] = 0.0
    np.hypot.at(norms, at, numbers(values)[use])  # hypot: squares of 1e-200 must not become 0
    return steps, norms


def ratios(norms: np.ndarray) -> np.ndarray:
    """First over last block; NaN where one is non-finite, 0/0 left out, x/0 is inf."""
    if norms.shape[1] < 2 or not len(norms):
        return np.empty(0)
    first, last = norms[:, 0], norms[:, -1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(np.isfinite(first) & np.isfinite(last), first / last, nan)
    return ratio[~((first == 0) & (last == 0))]


@dataclass(frozen=True)
class Gradients:
    """What layers.csv says about the blocks of one run. None: not measured."""

    ratio_step0: float | None = None
    ratio_end: float | None = None
    update_ratio_end: float | None = None
    zero_blocks: int = 0  # blocks whose last gradients are exactly 0
    token_cosine: float | None = None  # of the last block

    @classmethod
    def of(cls, layers: pd.DataFrame, depth: int) -> "Gradients":
        steps, grads = block_norms(layers, "grad_norm", depth)
        _, updates = block_norms(layers, "update_norm", depth)
        zero = np.median(last_readings(grads), axis=0) == 0 if len(grads) else np.zeros(0)
        cosine = numbers(column(layers, "token_cosine"))
        mine = (column(layers, "part") == "mlp") & (column(layers, "layer") == depth - 1)
        cosine = cosine[mine.to_numpy() & column(layers, "token_cosine").notna().to_numpy()]
        return cls(
            ratio_step0=median(ratios(grads[steps == 0])),
            ratio_end=median(ratios(last_readings(grads))),
            update_ratio_end=median(ratios(last_readings(updates))),
            zero_blocks=int(zero.sum()),
            token_cosine=median(last_readings(cosine)),
        )


def growth(grad_norm: np.ndarray) -> float | None:
    """Largest finite gradient norm among the last 20 % of readings over the first reading."""
    finite = grad_norm[np.isfinite(grad_norm)]
    if len(finite) < 2 or finite[0] == 0:
        return None
    return float(last_readings(finite).max() / finite[0])


@dataclass(frozen=True)
class Movement:
    """How far all updates together can have moved the weights."""

    updates: int
    share: float  # of the norm of the weights: sum of the update norms over it
    every: bool  # each update was read; else the readings stand for all

    @classmethod
    def of(cls, steps: pd.DataFrame) -> "Movement | None":
        """None: not measured."""
        weights = numbers(column(steps, "weight_norm"))
        updates = numbers(column(steps, "update_norm"))
        read = int((~np.isnan(weights)).sum())
        if not read or np.isnan(updates).all():
            return None
        done = int(steps["step"].iloc[-1] - steps["step"].iloc[0]) + 1  # a log may leave some out
        whole = float(np.nansum(updates)) * done / read
        start = float(weights[~np.isnan(weights)][0])
        return cls(done, whole / start if start else inf, read == done)


@dataclass(frozen=True)
class Underflow:
    """Adam's second moments of 0 under gradients that are not."""

    share: float | None = None  # of all elements, at the end; None: not measured
    below_eps: float | None = None  # share of elements with sqrt(v) < eps
    first: str = ""  # "from step 3 on in blocks.3 (v = 0 and m != 0 in 41 % of ...)"

    @classmethod
    def of(cls, events: pd.DataFrame, share: float | None, below_eps: float | None) -> "Underflow":
        rows = [e for e in events.to_dict("records") if e["kind"] == "adam_underflow"]
        if not rows:
            return cls(share, below_eps)
        event = min(rows, key=lambda e: e["step"])
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        return cls(
            share,
            below_eps,
            f"from step {event['step']} on in {event['module']}{more}: {event['detail']}",
        )
