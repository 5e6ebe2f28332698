"""What lab/probe.csv says of each cell: a figure's spread over seeds, step by step, and the laws.

A row is a mapping of ProbeRow's columns.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from lnexp.analysis.claimunits import runs_of
from lnexp.analysis.laws import Judged, by_cell, judge
from lnexp.analysis.reach import FORMATS
from lnexp.analysis.spread import Spread, spread

Row = Mapping[str, Any]
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
    found = []
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
        found.append(Profile(cell, len(members), blocks, fit, moments))
    return found


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
