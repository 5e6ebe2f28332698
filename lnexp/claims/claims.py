"""What a claim is made of: typed, frozen, strict. How it is judged is the reading half's work.

Free of torch and pandas, so that both halves may import it. parse.py reads claims from a config and
says in plain words what is wrong with them.
"""

import re
from collections.abc import Sequence
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from lnexp.config.rules import show
from lnexp.config.schema import KEYS
from lnexp.lab.schemas import TABLES
from lnexp.rows import LayerRow, Part, header

Op = Literal[">", ">=", "<", "<="]
Verdict = Literal[
    "nonfinite", "nothing_to_learn", "diverged", "lost", "spiked", "learned", "too_short",
    "stalled", "plateau",
]  # fmt: skip
CauseName = Literal[
    "vanishing", "zero_gradient", "rank_collapse", "frozen", "warming_up", "too_slow", "exploding",
    "adam_underflow", "precision", "nonfinite_origin",
]  # fmt: skip
RunColumn = Literal[
    "first_bad_step", "first_loss", "end_loss", "end_gap", "ln_v", "h1", "h2", "grad_ratio_step0",
    "grad_ratio_end", "update_ratio_end", "spike_score", "parameters", "steps_done", "seconds",
]  # fmt: skip
LAYER_COLUMNS = tuple(name for name in header(LayerRow) if name not in ("step", "layer", "part"))
ONE_LAYER = ("embed", "norm", "head")  # parts that stand outside the blocks, once
LAB = re.compile(r"(?:lab/)?([\w.-]+?)(?:\.csv)?:(\w[\w.-]*)")


class Spec(BaseModel):
    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", serialize_by_alias=True, allow_inf_nan=False
    )


class Bound(Spec):
    """'> 0.5'"""

    op: Op
    value: float

    def __str__(self) -> str:
        return f"{self.op} {self.value:g}"

    def met(self, value: float) -> bool:
        """A NaN meets no bound."""
        return {
            ">": value > self.value,
            ">=": value >= self.value,
            "<": value < self.value,
            "<=": value <= self.value,
        }[self.op]


class RunMetric(Spec):
    """A column of runs.csv."""

    column: RunColumn

    def __str__(self) -> str:
        return self.column


class LayerMetric(Spec):
    """A cell of layers.csv. A negative layer counts blocks from the end: -1 is the last block."""

    column: str
    part: Part
    layer: int | None = None  # not for embed, norm and head: each is one layer
    step: Literal["last"] | Annotated[int, Field(ge=0)] = "last"

    def __str__(self) -> str:
        where = self.part if self.layer is None else f"{self.part} of block {self.layer}"
        when = "last step" if self.step == "last" else f"step {self.step}"
        return f"{self.column} of {where}, {when}"

    @model_validator(mode="after")
    def one_cell(self) -> "LayerMetric":
        if self.column not in LAYER_COLUMNS:
            raise Misspelt(self.column, LAYER_COLUMNS, "column of layers.csv")
        if (self.layer is None) != (self.part in ONE_LAYER):
            instead = "leave layer out" if self.part in ONE_LAYER else "write layer: 0, -1, ..."
            raise ValueError(f"part {self.part}: {instead}")
        return self


class LabMetric(Spec):
    """A column of lab/<file>.csv, in the row of the run (and of the values under `at`)."""

    file: str
    column: str
    at: dict[str, Any] = Field(default_factory=dict)

    def __str__(self) -> str:
        at = "".join(f", {key} {value}" for key, value in self.at.items())
        return f"{self.column} of lab/{self.file}.csv{at}"

    @model_validator(mode="after")
    def known(self) -> "LabMetric":
        if self.file not in TABLES:
            raise Misspelt(self.file, tuple(TABLES), "table of lab/")
        columns = header(TABLES[self.file])
        for name in (self.column, *self.at):
            if name not in columns:
                raise Misspelt(name, columns[1:], f"column of lab/{self.file}.csv")
        return self


class Misspelt(ValueError):
    """A word that is none of those there are."""

    def __init__(self, word: str, words: Sequence[str], noun: str) -> None:
        super().__init__(word)
        self.word, self.words, self.noun = word, words, noun


def _metric(value: Any) -> Any:
    if isinstance(value, str):
        if parts := LAB.fullmatch(value):
            return LabMetric(file=parts[1], column=parts[2])
        if value not in get_args(RunColumn):
            raise Misspelt(value, get_args(RunColumn), "column of runs.csv")
        return RunMetric.model_validate({"column": value})
    if isinstance(value, dict):
        return (LabMetric if "file" in value else LayerMetric).model_validate(value)
    return value


def _bound(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    parts = re.fullmatch(r"\s*(>=|<=|>|<)\s*(\S+)\s*", value)
    try:
        bound = Bound(op=parts[1], value=float(parts[2]))  # type: ignore[index, arg-type]
    except (TypeError, ValueError):
        raise ValueError(f'{show(value)} is no share; write one such as "> 0.5"') from None
    if not 0 <= bound.value <= 1 or str(bound) in ("> 1", "< 0", ">= 0", "<= 1"):
        raise ValueError(f"{bound}: a share lies between 0 and 1, and some must not fit")
    return bound


def _several(value: Any) -> Any:
    """One word or a list of words, as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value) if type(value) is list else value


def _key(key: str) -> str:
    if key not in KEYS:
        raise Misspelt(key, tuple(KEYS), "setting")
    return key


def _finite(values: tuple[float, ...]) -> tuple[float, ...]:
    if not all(map(isfinite, values)) or not values[0] < values[1]:
        raise ValueError("write two numbers, the smaller one first: [-0.6, -0.4]")
    return values


AnyMetric = Annotated[RunMetric | LayerMetric | LabMetric, BeforeValidator(_metric)]
Key = Annotated[str, AfterValidator(_key)]
Several = BeforeValidator(_several)
OtherCells = Annotated[dict[Key, Any], Field(min_length=1)]  # by the settings that differ
Share = Annotated[Bound, BeforeValidator(_bound)]
Positive = Annotated[float, Field(gt=0)]


class Form(Spec):
    """What every form may add: a setting that each side may choose for itself."""

    leads: ClassVar[str]  # the key that tells the form
    best_over: Key | None = None  # chosen by the median end loss on tuning seeds, judged on others
    tune_seeds: Annotated[tuple[int, ...], Several] = ()  # empty: the first half of the seeds

    @model_validator(mode="after")
    def tunes(self) -> "Form":
        if self.tune_seeds and self.best_over is None:
            raise ValueError("tune_seeds goes with best_over: write the setting to choose")
        return self


class Counted(Form):
    """How many runs of a cell do so: a share, or every one of them."""

    share: Share = Bound(op=">", value=0.5)
    every: bool = False

    @model_validator(mode="after")
    def one_count(self) -> "Counted":
        if self.every and "share" in self.model_fields_set:
            raise ValueError("share and every exclude each other; keep one")
        return self


class VerdictShare(Counted):
    leads = "verdict"
    verdict: Annotated[tuple[Verdict, ...], Several, Field(min_length=1)]
    by: Annotated[int, Field(ge=1)] | None = None  # first_bad_step below it

    @model_validator(mode="after")
    def born(self) -> "VerdictShare":
        if self.by is not None and self.verdict != ("nonfinite",):
            raise ValueError("by asks when a non-finite value was born; write verdict: nonfinite")
        return self


class CauseShare(Counted):
    leads = "cause"
    cause: Annotated[tuple[CauseName, ...], Several, Field(min_length=1)]
    by: Annotated[int, Field(ge=1)] | None = None


class MetricShare(Counted):
    leads = "metric"
    metric: AnyMetric
    op: Op
    value: float


class Less(Form):
    """The metric is less than in the cells with the settings `than`."""

    leads = "less"
    less: AnyMetric
    than: OtherCells


class Difference(Form):
    """metric here - metric in the cells `from` is less than a number, or than the same difference
    in the cells with the settings `less_than`."""

    leads = "difference"
    difference: AnyMetric
    base: OtherCells = Field(alias="from")
    less_than: float | OtherCells


class Same(Form):
    """The metric is that of the cells `as`, within a margin."""

    leads = "same"
    same: AnyMetric
    other: OtherCells = Field(alias="as")
    within: Positive


class SlopeBetween(Form):
    """The log-log slope of the metric over a setting."""

    leads = "slope"
    slope: AnyMetric
    over: Key
    between: Annotated[tuple[float, float], BeforeValidator(_several), AfterValidator(_finite)]

    @model_validator(mode="after")
    def two_keys(self) -> "SlopeBetween":
        if self.over == self.best_over:
            raise ValueError("over and best_over are the same setting")
        return self


Expect = VerdictShare | CauseShare | MetricShare | Less | Difference | Same | SlopeBetween
FORMS: dict[str, type[Form]] = {form.leads: form for form in get_args(Expect)}


class Claim(Spec):
    """One expectation, stated in a config."""

    id: str
    says: str
    source: str = ""
    where: dict[Key, tuple[Any, ...]] = Field(default_factory=dict)  # each its possible values
    expect: Expect


def lab_tables(claims: Sequence[Claim]) -> list[str]:
    """The tables of lab/ that these claims read."""
    metrics = (getattr(claim.expect, claim.expect.leads) for claim in claims)
    return list(dict.fromkeys(m.file for m in metrics if isinstance(m, LabMetric)))
