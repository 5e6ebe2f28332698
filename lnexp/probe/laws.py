"""What theory predicts for a placement at initialisation, and what runs say to it.

Stated for Xavier, embeddings of std 1, biases 0, LayerNorm and no further change; elsewhere no
prediction is made. N is the number of blocks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from lnexp.claims.tests import Finding, between, log_slope
from lnexp.claims.units import Run, by_seed, cells
from lnexp.model.catalog import INITS

DEPTH = "model.depth"
Figures = Mapping[str, Any]  # columns of lab/probe.csv
OUTCOMES = {"holds": "met", "refuted": "not met", "undecided": "undecided"}


@dataclass(frozen=True)
class Law:
    """A figure of lab/probe.csv at step 0: its mean over seeds lies between low and high."""

    what: str
    column: str
    low: float
    high: float
    expected: str
    source: str
    over_depth: bool = False  # of each seed the slope of ln figure over ln N
    exponent: float | None = None  # drawn beside the measured profile
    from_depth: int = 1
    fit: str = "N"
    inits: tuple[str, ...] = ("xavier",)
    residual: bool = True


W2 = "gradient norm of the last block's W2: slope over N"
BLOCKS = "blocks 1 .. N"
LEMMA, THEOREM = "Xiong 2020, lemma 2", "Xiong 2020, theorem 1"
SHRINKS = "one line of algebra"
LAWS: dict[str, tuple[Law, ...]] = {
    "pre": (
        Law(W2, "w2_last", -0.6, -0.4, "-0.5", THEOREM, over_depth=True, exponent=-0.5),
        Law("stream variance above its start: exponent over blocks", "variance_exponent",
            0.85, 1.15, "1", LEMMA, exponent=1.0, fit=BLOCKS),
        Law("variance added a block", "variance_per_block", 0.5, 1.5, "0.5 .. 1.5", LEMMA,
            fit=BLOCKS),
    ),
    "post": (
        Law(W2, "w2_last", -0.12, 0.12, "0", THEOREM, over_depth=True, exponent=0.0),
        Law("stream RMS after each norm: smallest", "rms_min", 0.999, 1.001, "1", LEMMA),
        Law("stream RMS after each norm: largest", "rms_max", 0.999, 1.001, "1", LEMMA),
        Law("RMS of what its norms read: mean", "norm_input_mean", 1.0, 1.45, "1 .. 1.45", LEMMA),
        Law("token cosine of the last block", "token_cosine_last", 0.99, inf, "toward 1",
            "Noci 2022 (rank collapse)", from_depth=24),
    ),
    "deepnorm": (
        Law(W2, "w2_last", -0.6, -0.4, "-0.5", "Wang 2022 (DeepNet)", over_depth=True,
            exponent=-0.5),
        Law("gradient of the first block / the last", "grad_ratio", 0.5, 2.0, "0.5 .. 2",
            "Wang 2022 (DeepNet)"),
        Law("token cosine of the last block", "token_cosine_last", -inf, 0.1, "apart",
            "pilot measurement"),
    ),
    "lns": (
        Law("stream RMS: exponent over blocks", "rms_exponent", -inf, 0.15, "nearly flat",
            "Sun 2025 (LayerNorm scaling)", exponent=0.0, fit=BLOCKS, inits=("xavier", "gpt2")),
    ),
    "none": (
        Law("stream RMS a sublayer", "stream_rms_per_sublayer", 0.58, 0.68, "0.58 .. 0.68",
            SHRINKS, residual=False),
        Law("stream gradient a sublayer", "stream_grad_per_sublayer", 0.58, 0.68,
            "0.58 .. 0.68", SHRINKS, residual=False),
    ),
}  # fmt: skip

# What every setting must be for a law to be stated.
PRESET: dict[str, Callable[[Any], bool]] = {
    "model.init_scale": lambda scale: scale == 1,
    "model.norm": lambda norm: norm == "layernorm",
    "model.eps": lambda eps: eps <= 1e-5,
    "model.activation": lambda activation: activation in ("gelu", "relu"),
    "model.dropout": lambda rate: rate == 0,
    "model.tie_embeddings": lambda tied: not tied,
    "model.qk_norm": lambda on: not on,
    "train.precision": lambda precision: precision in ("fp32", "fp64"),
}


def laws_for(settings: Mapping[str, Any]) -> tuple[Law, ...]:
    """Those that are stated for a run of these settings, by dotted name."""
    if not all(holds(settings[key]) for key, holds in PRESET.items()):
        return ()
    init, std = settings["model.init"], settings["model.embed_std"]
    if std not in ("auto", INITS[init].embed_std):
        return ()
    return tuple(
        law
        for law in LAWS.get(settings["model.placement"], ())
        if init in law.inits
        and settings["model.residual"] == law.residual
        and settings[DEPTH] >= law.from_depth
    )


@dataclass(frozen=True)
class Judged:
    """A law against the runs of one cell, or of the cells that differ in depth alone."""

    law: Law
    cell: dict[str, Any]
    fit: str
    finding: Finding
    of: int  # runs or, of a slope, seeds; those with a figure are finding.of

    @property
    def outcome(self) -> str:
        return OUTCOMES[self.finding.outcome]

    def plain(self) -> dict[str, Any]:
        law, finding = self.law, self.finding
        several = finding.of > 1
        return {
            "what": law.what,
            "cell": self.cell,
            "column": law.column,
            "expected": law.expected,
            "tolerance": [law.low, law.high],
            "measured": finding.estimate,
            "low": finding.low if several else None,
            "high": finding.high if several else None,
            "n": finding.of,
            "of": self.of,
            "fit": self.fit,
            "outcome": self.outcome,
            "source": law.source,
        }


def judge(runs: Sequence[Run], axes: Sequence[str], figures: Mapping[str, Figures]) -> list[Judged]:
    """`figures`: run -> its row at step 0."""
    judged: list[Judged] = []

    def add(law: Law, cell: dict[str, Any], fit: str, values: Sequence[float | None]) -> None:
        known = [value for value in values if value is not None]
        judged.append(Judged(law, cell, fit, between(known, law.low, law.high), len(values)))

    for cell, members in by_cell(runs, axes):
        depth = members[0].settings[DEPTH]
        for law in laws_for(members[0].settings):
            if not law.over_depth:
                fit = law.fit.replace("N", f"{'N = ' * (law.fit == 'N')}{depth}")
                add(law, cell, fit, [_figure(figures, run, law.column) for run in members])
    for cell, members in by_cell(runs, [axis for axis in axes if axis != DEPTH]):
        depths = sorted({run.settings[DEPTH] for run in members})
        for law in laws_for(members[0].settings):
            if law.over_depth and len(depths) > 2:
                slopes = slopes_of(members, lambda run, law=law: _figure(figures, run, law.column))
                add(law, cell, f"N {depths[0]} .. {depths[-1]}", slopes)
    return judged


def slopes_of(runs: Sequence[Run], figure: Callable[[Run], float | None]) -> list[float | None]:
    """Of each seed the slope of ln figure over ln N; None: a depth lacks one."""
    slopes: list[float | None] = []
    for members in by_seed(runs).values():
        values = [figure(run) for run in members]
        known = [value for value in values if value is not None]
        x = [float(run.settings[DEPTH]) for run in members]
        slopes.append(log_slope(x, known) if len(known) == len(values) else None)
    return slopes


def _figure(figures: Mapping[str, Figures], run: Run, column: str) -> float | None:
    return figures.get(run.name, {}).get(column)


def by_cell(runs: Sequence[Run], axes: Sequence[str]) -> list[tuple[dict[str, Any], list[Run]]]:
    """Runs that agree on these axes, in grid order, and on what they agree."""
    return [
        ({axis: group[0].settings[axis] for axis in axes}, group) for group in cells(runs, axes)
    ]
