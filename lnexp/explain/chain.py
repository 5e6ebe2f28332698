"""Which reading left its usual range first: the events that led to what a run became.

Usual is what the run itself showed before: a reading leaves when it is above 10 times, or below a
hundredth of, the median of its own earlier readings (at least 3). Down needs the wider margin,
since gradients fall tenfold in the first steps of a healthy training. Norms rise as a whole, with
the part of a layer named that carries most of it: a part that wakes up is no event. Limits that
mean something by themselves: the first/last block gradient ratio (1e-2), the cosine between tokens
(0.99), and for attention scores 88, where exp(score) leaves fp32.

One reading alone is luck of a batch: the next one must be out as well, where there is one; and a
reading that came back for 10 in a row has not left.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from math import inf, nan

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view

from lnexp.results.causes import RANK_COLLAPSE, VANISHING
from lnexp.results.readings import block_norms
from lnexp.results.tables import column, numbers
from lnexp.rows import MATRIX_PARTS

FEWEST_READINGS = 3  # that make a usual range
ABOVE, BELOW = 10.0, 0.01  # times the median of the earlier readings
BACK = 10  # readings in a row inside the range: it came back
LARGE_SCORE = 88.0  # exp of it overflows fp32
SKIPS = 3  # in a row at the end; fewer are dynamic scaling finding its level

COLUMNS = ["step", "series", "layer", "part", "places", "value", "usual"]
NORMS = ("weight_norm", "grad_norm", "update_norm")
RISES = ("norm_input_rms", "act_absmax", "attn_logit_max", "token_cosine")
# Order within a step: row s holds the weights before update s, then its forward and backward.
ORDER = (
    "weight_norm", *RISES, "grad_norm", "gradient_ratio", "skips", "adam_underflow", "update_norm",
)  # fmt: skip


@dataclass(frozen=True)
class Departure:
    """Where a series left its usual range, and stayed out."""

    at: int  # position among the readings
    value: float
    usual: float  # the median of the readings before, or the limit


Rule = Callable[[str, np.ndarray], Departure | None]


def departure(
    values: np.ndarray, below: float = BELOW, above: float = ABOVE, floor: float = 0.0
) -> Departure | None:
    """Out of `below` .. `above` times the median of its own earlier readings.

    Above the range it counts only where it is above `floor` too.
    """
    usual = _median_before(values)
    usual[~(usual > 0)] = nan  # of a series at 0 no multiple can be told
    return _leaves(values, below * usual, np.maximum(above * usual, floor), usual)


def beyond(values: np.ndarray, low: float = -inf, high: float = inf) -> Departure | None:
    """Out of fixed limits."""
    limits = np.full(len(values), low), np.full(len(values), high)
    return _leaves(values, *limits, np.where(values < low, low, high))


def _leaves(
    values: np.ndarray, low: np.ndarray, high: np.ndarray, usual: np.ndarray
) -> Departure | None:
    after = np.append(values[1:], values[-1:])  # the last reading stands alone
    out = ((values < low) & (after < low)) | ((values > high) & (after > high))
    back = -1
    for at in np.flatnonzero(out).tolist():
        if at > back:
            back = at + _came_back(values[at + 1 :], low[at], high[at])
            if back == at:
                return Departure(at, float(values[at]), float(usual[at]))
    return None


def _came_back(later: np.ndarray, low: float, high: float) -> int:
    """How many readings it took until BACK in a row were inside; 0: that never was."""
    look = 8 * BACK  # most are back soon: a long series is not searched to its end each time
    while True:
        near = later[:look]
        if len(near) < BACK:
            return 0
        whole = sliding_window_view((low <= near) & (near <= high), BACK).all(axis=1)
        if whole.any():
            return int(whole.argmax()) + BACK
        if look >= len(later):
            return 0
        look *= 4


def _median_before(values: np.ndarray) -> np.ndarray:
    """Of the readings before each one; NaN where they are too few."""
    if len(values) <= FEWEST_READINGS or not _spread(values):
        return np.full(len(values), nan)
    medians = pd.Series(values).expanding(FEWEST_READINGS).median().to_numpy()
    return np.concatenate([[nan], medians[:-1]])


def _spread(values: np.ndarray) -> bool:
    """Whether any reading can be out at all: no median lies outside of what it is made from."""
    low, high = np.minimum.accumulate(values), np.maximum.accumulate(values)
    return bool(np.any(values > ABOVE * low) or np.any(values < BELOW * high))


def chain(
    steps: pd.DataFrame, layers: pd.DataFrame, events: pd.DataFrame, depth: int, until: int
) -> pd.DataFrame:
    """COLUMNS, one row a series that left its usual range by step `until`, in order of time.

    `layer` and `part`: of a reading by layer the first that left, of a norm of the whole model the
    one that carries it (empty: not measured). `places` counts the parts of layers that left.
    """
    steps, layers, events = (
        frame.loc[(column(frame, "step") <= until).to_numpy()] for frame in (steps, layers, events)
    )
    parts = layers.loc[~column(layers, "part").isin(MATRIX_PARTS).to_numpy()]
    lr = pd.Series(numbers(column(steps, "lr")), index=column(steps, "step").to_numpy())
    rows = [row for name in NORMS for row in _norm(name, steps, parts, lr)]
    rows += [row for name in RISES for row in _first_place(name, _by_place(name, parts), _rises)]
    rows += [*_ratio(layers, depth), *_underflow(events), *_skips(steps)]
    rows.sort(key=lambda row: (row["step"], ORDER.index(row["series"])))
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(step: int, series: str, left: Departure, layer=None, part="", places=0) -> dict:
    return {
        "step": int(step), "series": series, "layer": layer, "part": part, "places": places,
        "value": left.value, "usual": left.usual,
    }  # fmt: skip


def _norm(name: str, steps: pd.DataFrame, parts: pd.DataFrame, lr: pd.Series) -> list[dict]:
    """The norm of the whole model, and before it the first layer whose own norm fell.

    An update is told per unit of learning rate: a schedule moves it too, and is no event.
    """
    table, values = _by_place(name, parts), numbers(column(steps, name))
    if name == "update_norm":
        values = _per_lr(values, lr.to_numpy())
        of_step = lr.reindex(column(table, "step")).to_numpy()
        table["value"] = _per_lr(column(table, "value").to_numpy(), of_step)
    table = table.loc[np.isfinite(column(table, "value").to_numpy())]
    use = np.isfinite(values)
    left = departure(values[use])
    fallen = _first_place(name, _by_layer(table), _falls)
    if left is None:
        return fallen
    row = _row(column(steps, "step").to_numpy()[use][left.at], name, left)
    now = table.loc[(table["step"] == row["step"]).to_numpy()]
    if left.value > left.usual and len(now):
        most = now.iloc[int(column(now, "value").to_numpy().argmax())]
        row |= {"layer": int(most["layer"]), "part": most["part"]}
    return [*(f for f in fallen if f["step"] < row["step"]), row]


def _falls(_: str, values: np.ndarray) -> Departure | None:
    return departure(values, above=inf)


def _per_lr(values: np.ndarray, lr: np.ndarray) -> np.ndarray:
    return np.divide(values, lr, out=np.full(len(values), nan), where=lr > 0)


def _by_place(name: str, parts: pd.DataFrame) -> pd.DataFrame:
    """step, layer, part and the finite values of one reading."""
    values = numbers(column(parts, name))
    table = {key: column(parts, key).to_numpy() for key in ("step", "layer", "part")}
    return pd.DataFrame(table | {"value": values}).loc[np.isfinite(values)]


def _by_layer(table: pd.DataFrame) -> pd.DataFrame:
    """Root of the summed squares over the parts of each layer."""
    at, first = _places(table, ["step", "layer"])
    norms = np.zeros(len(first))
    np.hypot.at(norms, at, column(table, "value").to_numpy())
    return table.iloc[first].assign(part="", value=norms)


def _places(table: pd.DataFrame, keys: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Of each row the number of its group, in order of appearance, and each group's first row."""
    at = table.groupby(keys, sort=False).ngroup().to_numpy()
    return at, np.unique(at, return_index=True)[1]


def _first_place(name: str, table: pd.DataFrame, leaves: Rule) -> list[dict]:
    """The part of a layer that left first; at a tie the one that went farthest."""
    if not len(table):
        return []
    at, first = _places(table, ["layer", "part"])
    order = np.argsort(at, kind="stable")
    steps, values = (column(table, key).to_numpy()[order] for key in ("step", "value"))
    starts = np.searchsorted(at[order], np.arange(len(first)))
    departures = []
    for place, start, readings in zip(first, starts, np.split(values, starts[1:]), strict=True):
        left = leaves(name, readings)
        if left is not None:
            departures.append((int(steps[start + left.at]), -_distance(left), int(place), left))
    if not departures:
        return []
    step, _, place, left = min(departures, key=lambda departure: departure[:2])
    row = table.iloc[place]
    return [_row(step, name, left, int(row["layer"]), row["part"], len(departures))]


def _rises(name: str, values: np.ndarray) -> Departure | None:
    """By the rule of a forward reading, of which a smaller one is no harm."""
    if name == "token_cosine":
        return beyond(values, high=RANK_COLLAPSE)
    return departure(values, below=-inf, floor=LARGE_SCORE if name == "attn_logit_max" else 0.0)


def _distance(left: Departure) -> float:
    with np.errstate(divide="ignore"):
        return float(abs(np.log(left.value / left.usual)))


def _ratio(layers: pd.DataFrame, depth: int) -> list[dict]:
    steps, norms = block_norms(layers, "grad_norm", depth)
    if norms.shape[1] < 2 or not len(norms):
        return []
    first, last = norms[:, 0], norms[:, -1]
    use = np.isfinite(first) & np.isfinite(last) & (last > 0)
    left = beyond(first[use] / last[use], low=VANISHING)
    return [] if left is None else [_row(steps[use][left.at], "gradient_ratio", left)]


def _underflow(events: pd.DataFrame) -> list[dict]:
    """The first step at which a block's second moments were 0 under gradients that are not."""
    use = (column(events, "kind") == "adam_underflow").to_numpy()
    if not use.any():
        return []
    step = column(events, "step").to_numpy()[use].min()
    return [_row(step, "adam_underflow", Departure(0, nan, nan), places=int(use.sum()))]


def _skips(steps: pd.DataFrame) -> list[dict]:
    """Skipped steps in a row that lasted to the end."""
    skipped = column(steps, "skipped")
    known = skipped.notna().to_numpy()
    runs = [(on, len(list(group))) for on, group in groupby(numbers(skipped)[known] == 1)]
    if not runs or not runs[-1][0] or runs[-1][1] < SKIPS:
        return []
    count = runs[-1][1]
    step = column(steps, "step").to_numpy()[known][-count]
    return [_row(step, "skips", Departure(0, float(count), nan))]
