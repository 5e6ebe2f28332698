"""What the readings of a probe say: how a quantity changes from block to block, and at which depth
it would leave a number format; and of each cell the spread of its figures over the seeds.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, floor, inf, isfinite, log
from typing import Any, Literal

import numpy as np
import pandas as pd

from lnexp.claims.tests import Spread, spread
from lnexp.claims.units import runs_of
from lnexp.probe.laws import Judged, by_cell, judge

# unclear: neither law fits; "": too few positive readings.
Form = Literal["exponential", "power", "flat", "unclear", ""]

# Format -> its largest number, and the smallest that is not flushed to 0: fp16's subnormals are
# kept, those of the others are not (train.flush_denormal).
FORMATS: dict[str, tuple[float, float]] = {
    "fp16": (65504.0, 2.0**-24),
    "bf16": (3.3895313892515355e38, 2.0**-126),
    "fp32": (3.4028234663852886e38, 2.0**-126),
}
ROUNDING = 1e-9  # of a block, in where a fit reaches a format's end
DEEPEST = 10**6  # no depth above is predicted
# Least change over all blocks, and least R2, of a law.
LEAST_CHANGE: dict[Form, float] = {"exponential": log(10), "power": log(1.5)}
LEAST_R2: dict[Form, float] = {"exponential": 0.9, "power": 0.8}
BETTER = 0.5  # exponential: its squared residuals are below this share of the power law's


# Along the blocks. values[k - 1] is the k-th in the direction of travel: forward block k is block
# l = k, backward it is l = N + 1 - k, with N blocks in all.


@dataclass(frozen=True)
class Trend:
    """exponential: y = a g^k; power: y = a l^p; least squares in logarithms over all blocks."""

    law: Form
    rate: float | None = None  # g, or p
    r2: float | None = None
    start: float = 0.0  # ln a
    last: int = 0  # backward: N, the block at which the travel begins

    @property
    def grows(self) -> bool:
        """In the direction of travel."""
        assert self.rate is not None
        return self.rate > 1 if self.law == "exponential" else (self.rate > 0) != bool(self.last)

    def reaches(self, limit: float) -> float:
        """The depth at which the end of the travel is at the limit. Exponential: k with a g^k =
        limit. Power forward: l with a l^p = limit; backward the first block's value, while the
        last one's stays: M with (a N^p) M^(-p) = limit."""
        assert self.rate is not None
        if self.law == "exponential":
            return (log(limit) - self.start) / log(self.rate)
        if self.last:
            power = (self.start + self.rate * log(self.last) - log(limit)) / self.rate
        else:
            power = (log(limit) - self.start) / self.rate
        return exp(power) if power < 700 else inf


def trend(values: Sequence[float | None], backward: bool = False) -> Trend:
    """The law of the positive, finite values from k = 1 on: a power law, unless an exponential
    leaves less than half of its squared residuals, has R2 0.9 and a tenfold change."""
    y = np.log(_leading(values))
    if len(y) < 3:
        return Trend("")
    k = np.arange(1, len(y) + 1, dtype=float)
    last = len(values) if backward else 0
    exponential = _fit("exponential", k, y, last)
    power = _fit("power", np.log(last + 1 - k if backward else k), y, last)
    if exponential[1] is not None and exponential[0] < BETTER * power[0]:
        return exponential[1]
    if power[1] is not None:
        return power[1]
    moved = float(np.ptp(y)) >= LEAST_CHANGE["power"]
    return Trend("unclear" if moved else "flat")


def _fit(law: Form, x: np.ndarray, y: np.ndarray, last: int) -> tuple[float, Trend | None]:
    """Its squared residuals, and the trend, where the law is one of the data."""
    slope, start = (float(part) for part in np.polyfit(x, y, 1))
    left = float(((y - slope * x - start) ** 2).sum())
    total = float(((y - y.mean()) ** 2).sum())
    r2 = 1 - left / total if total > 0 else 0.0
    if r2 < LEAST_R2[law] or abs(slope) * float(np.ptp(x)) < LEAST_CHANGE[law]:
        return left, None
    return left, Trend(law, exp(slope) if law == "exponential" else slope, r2, start, last)


def depths(values: Sequence[float | None], fit: Trend) -> dict[str, int | None]:
    """Format -> the k of the first value beyond the format's largest number or below its smallest:
    measured, or else by the fit. None: below 10^6 there is none, or nothing tells."""
    return {name: _depth(values, fit, *limits) for name, limits in FORMATS.items()}


def _depth(
    values: Sequence[float | None], fit: Trend, largest: float, smallest: float
) -> int | None:
    for block, value in enumerate(values, 1):
        if value is not None and not smallest <= value <= largest:  # a NaN is no number of it
            return block
    if fit.rate is None:
        return None
    at = fit.reaches(largest if fit.grows else smallest)
    if not isfinite(at) or at > DEEPEST:
        return None
    # A format's end may lie on a block to the bit, and its logarithm a rounding beside it.
    return max(len(values) + 1, floor(at + ROUNDING) + 1)


def _leading(values: Sequence[float | None]) -> list[float]:
    """Those from block 1 to the first that is not a positive, finite number."""
    leading: list[float] = []
    for value in values:
        if value is None or not isfinite(value) or value <= 0:
            break
        leading.append(value)
    return leading


# Over the seeds of a cell.

Row = Mapping[str, Any]  # a row of lab/probe.csv by ProbeRow's columns
TRAVELS = ("forward", "backward")

# Columns that are averaged over seeds; of factors in logarithms.
PLAIN = (
    "rms_exponent", "rms_r2", "variance_exponent", "variance_r2", "variance_per_block", "rms_min",
    "rms_max", "norm_input_min", "norm_input_mean", "norm_input_max", "branch_first", "branch_last",
    "token_cosine_last", "attn_logit_max", "eps_floor_fraction", "effective_depth",
)  # fmt: skip
FACTORS = (
    "growth_per_block", "stream_rms_per_sublayer", "grad_ratio", "grad_per_sublayer", "wq_ratio",
    "wv_ratio", "wo_ratio", "w1_ratio", "w2_ratio", "w2_last", "stream_grad_ratio",
    "stream_grad_per_sublayer",
)  # fmt: skip


@dataclass(frozen=True)
class Reach:
    """How a cell's runs grow or shrink, and at which depths they leave a format."""

    laws: dict[str, int]  # law -> runs
    rate: Spread  # of the runs with the commonest law
    r2: Spread
    depths: dict[str, list[int | None]]  # format -> of each run; None: not below 10^6

    @property
    def law(self) -> str:
        """The commonest."""
        return max(self.laws, key=lambda law: self.laws[law], default="")

    @property
    def agree(self) -> bool:
        """More than half of the runs have it; else no depth is predicted from it."""
        return 2 * self.laws.get(self.law, 0) > sum(self.laws.values())


@dataclass(frozen=True)
class Moment:
    """One cell at one step."""

    step: int
    runs: int  # that came to it
    spreads: dict[str, Spread]
    reach: dict[str, Reach]  # forward, backward
    skipped: int | None  # blocks looked at for the effective depth


@dataclass(frozen=True)
class Profile:
    """One cell, at each step that a run of it came to."""

    cell: dict[str, Any]
    runs: int
    blocks: int
    fit: tuple[int, int] | None
    moments: list[Moment]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def profiles(
    runs: pd.DataFrame, sweep: str, axes: Sequence[str], rows: Sequence[Row], steps: Sequence[int]
) -> list[Profile]:
    """A cell without any reading has no moment."""
    of_cells = []
    for cell, members in by_cell(runs_of(runs, sweep), axes):
        names = {run.name for run in members}
        here = [row for row in rows if row["run"] in names]
        moments = [
            _moment(step, len(members), some)
            for step in steps
            if (some := [row for row in here if row["step"] == step])
        ]
        fit = (here[0]["fit_from"], here[0]["fit_to"]) if here else None
        blocks = int(members[0].settings["model.depth"])
        of_cells.append(Profile(cell, len(members), blocks, fit, moments))
    return of_cells


def _moment(step: int, members: int, rows: Sequence[Row]) -> Moment:
    lacking = [None] * (members - len(rows))

    def of(column: str) -> list[Any]:
        return [*(row[column] for row in rows), *lacking]

    spreads = {name: spread(of(name)) for name in PLAIN}
    spreads |= {name: spread(of(name), ratios=True) for name in FACTORS}
    skipped = next((row["blocks_skipped"] for row in rows if row["blocks_skipped"]), None)
    return Moment(step, len(rows), spreads, {t: _reach(t, rows) for t in TRAVELS}, skipped)


def _reach(travel: str, rows: Sequence[Row]) -> Reach:
    laws = Counter(row[f"{travel}_law"] for row in rows)
    common = laws.most_common(1)[0][0]
    alike = [row for row in rows if row[f"{travel}_law"] == common]
    return Reach(
        dict(laws),
        spread([row[f"{travel}_rate"] for row in alike]),
        spread([row[f"{travel}_r2"] for row in alike]),
        {kind: [row[f"{travel}_{kind}"] for row in rows] for kind in FORMATS},
    )


def judged(
    runs: pd.DataFrame, sweep: str, axes: Sequence[str], rows: Sequence[Row]
) -> list[Judged]:
    """The laws that are stated for these settings, against the readings of step 0."""
    figures = {row["run"]: row for row in rows if row["step"] == 0}
    return judge(runs_of(runs, sweep), axes, figures) if figures else []
