"""autopsy.json: what the replay of a failing step found."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

NUMERICAL = "numerical"  # finite in fp64
OVERFLOW = "overflow"  # beyond fp64, too
NOT_KNOWN = "not known"  # it could not be computed in fp64


@dataclass(frozen=True)
class Tensor:
    """A tensor in a few numbers; the range is of its finite elements (None: there are none)."""

    shape: Sequence[int]
    dtype: str
    min: float | None
    max: float | None
    absmax: float | None
    nan: int
    inf: int


@dataclass(frozen=True)
class Birth:
    """Where a non-finite value appeared."""

    phase: str
    kind: str  # inf, nan
    module: str
    op: str
    module_kind: str = ""
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    norm: dict[str, float] | None = None  # eps, eps_held, smallest_variance
    attention: dict[str, float] | None = None  # largest_score
    note: str = ""


@dataclass(frozen=True)
class Update:
    """The first element of a weight that an update made non-finite. None: not an Adam."""

    parameter: str
    dtype: str
    kernel: str
    nonfinite: int
    elements: int
    element: Sequence[int] = ()
    weight_before: float | None = None
    weight_after: float | None = None
    gradient: float | None = None
    exp_avg: float | None = None
    exp_avg_sq: float | None = None
    eps: float | None = None
    eps_held: float | None = None
    underflowed: float | None = None
    below_eps: float | None = None


@dataclass(frozen=True)
class Replay:
    """The same step in a wider type. None: of an optimizer's failure only the update was redone."""

    finite: bool
    loss: float | None = None
    grad_norm: float | None = None


@dataclass(frozen=True)
class Autopsy:
    step: int
    reproduced: bool
    nature: str  # numerical, overflow, mathematical, not reproduced
    origin: Birth | None = None
    propagated: Birth | None = None  # the first bad gradient
    loss: float | None = None
    grad_norm: float | None = None
    optimizer: Update | None = None
    shadow: dict[str, Replay] = field(default_factory=dict)  # by type: float64, float32

    @property
    def in_fp64(self) -> str:
        """'finite in fp64: loss 3.2, gradient norm 1'; '' where it is not."""
        replay = self.shadow.get("float64")
        if self.nature != NUMERICAL or replay is None:
            return ""
        figures = {"loss": replay.loss, "gradient norm": replay.grad_norm}
        told = ", ".join(f"{name} {v:.3g}" for name, v in figures.items() if v is not None)
        return "finite in fp64" + (f": {told}" if told else "")


def parse(said: dict[str, Any]) -> Autopsy:
    """KeyError, TypeError or ValueError where it is not what this version writes."""
    update, shadow = said["optimizer"], said["shadow"] or {}
    return Autopsy(
        step=int(said["step"]),
        reproduced=bool(said["reproduced"]),
        nature=str(said["nature"]),
        origin=_birth(said["origin"]),
        propagated=_birth(said["propagated"]),
        loss=_real(said["loss"]),
        grad_norm=_real(said["grad_norm"]),
        optimizer=None if update is None else Update(**_known(Update, update)),
        shadow={dtype: Replay(**_known(Replay, replay)) for dtype, replay in shadow.items()},
    )


# Fields that are words, counts or lists; every other one is a number or "nan", "inf", "-inf".
TEXTS = (
    "phase", "kind", "module", "module_kind", "op", "note", "dtype", "parameter", "kernel",
    "shape", "element", "nan", "inf", "nonfinite", "elements", "finite",
)  # fmt: skip


def _birth(said: dict[str, Any] | None) -> Birth | None:
    if said is None:
        return None
    known: dict[str, Any] = {name: said[name] for name in ("phase", "kind", "module", "op")}
    known |= {name: said.get(name) or "" for name in ("module_kind", "note")}
    for name in ("inputs", "outputs"):
        known[name] = [Tensor(**_known(Tensor, tensor)) for tensor in said.get(name) or []]
    for name in ("norm", "attention"):
        facts = said.get(name)
        known[name] = facts and {key: float(value) for key, value in facts.items()}
    return Birth(**known)


def _known(kind: type, said: dict[str, Any]) -> dict[str, Any]:
    names = [f.name for f in fields(kind) if f.name in said]
    return {name: said[name] if name in TEXTS else _real(said[name]) for name in names}


def _real(value: Any) -> float | None:
    return None if value is None else float(value)
