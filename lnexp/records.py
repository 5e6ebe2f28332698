"""The JSON files of a run folder, each schema once: status.json, autopsy.json, and the numbers of
env.json that are read again. A later version's keys are left out.

Free of torch and pandas.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import isfinite, isnan, prod
from pathlib import Path
from typing import Any, Literal, Self

from lnexp.rows import EventRow, Phase

LARGEST = 2**63 - 1  # what a column of integers holds

# autopsy.json's nature: of the same step in fp64.
NUMERICAL = "numerical"  # finite there: the number format failed
OVERFLOW = "overflow"  # beyond fp64, too
MATHEMATICAL = "mathematical"  # not finite in any format
NOT_KNOWN = "not known"  # it could not be computed in fp64
NOT_REPRODUCED = "not reproduced"

# The phase and the kind of a birth, in words.
PHASES = {
    "forward": "in the forward pass",
    "loss": "in the loss",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer's update",
}
KINDS = {"inf": "Inf", "nan": "NaN"}


class BrokenRecord(Exception):
    """A file of a run folder that cannot be used; says which and why in one line."""


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise BrokenRecord(f"{path}: {problem.strerror}") from None
    except (ValueError, RecursionError):
        raise BrokenRecord(f"{path}: not JSON") from None
    if not isinstance(value, dict):
        raise BrokenRecord(f"{path}: not a JSON object")
    return value


def read_numbers(path: Path, values: Mapping[str, Any], kinds: Mapping[str, type]) -> dict:
    """The named entries as int or float; None where there is none."""
    try:
        numbers = {
            name: None if values.get(name) is None else kind(values[name])
            for name, kind in kinds.items()
        }
        if any(isinstance(number, int) and abs(number) > LARGEST for number in numbers.values()):
            raise ValueError
        return numbers
    except (TypeError, ValueError, OverflowError):
        raise BrokenRecord(f"{path}: {', '.join(kinds)} must be numbers") from None


ENVIRONMENT = {"ln_v": float, "h1": float, "h2": float, "parameters": int}


@dataclass(frozen=True)
class Status:
    """What happened to the process. What happened to the training is a verdict, made on reading."""

    # running and pending are said of a folder that has no status.json, never written.
    status: Literal["finished", "failed", "interrupted", "running", "pending"]
    steps_done: int = 0
    seconds: float = 0.0
    first_bad_step: int | None = None
    stopped: bool = False  # a non-finite value ended the run before its steps were done
    unmoved: tuple[str, ...] = ()  # tensors bit-identical to their start
    skipped: int = 0  # steps without an update
    adam_underflowed: float | None = None  # share of elements with v = 0 and m != 0 at the end
    adam_below_eps: float | None = None  # share with sqrt(v_hat) < eps at the end
    error: str | None = None
    schema: int = 1

    FILE = "status.json"

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """None where there is none. Raises BrokenRecord."""
        path = folder / cls.FILE
        if not path.exists():
            return None
        values = read_json(path)
        status, error = values.get("status"), values.get("error")
        unmoved = values.get("unmoved") or []
        known = status in ("finished", "failed", "interrupted")
        names = isinstance(unmoved, list) and all(isinstance(name, str) for name in unmoved)
        if not (known and names and isinstance(error, str | None)):
            raise BrokenRecord(f"{path}: not the status of a run")
        numbers = read_numbers(path, values, STATUS_NUMBERS)
        return cls(
            status=status,
            stopped=bool(values.get("stopped")),
            unmoved=tuple(unmoved),
            error=error,
            **{name: n for name, n in numbers.items() if n is not None},
        )


STATUS_NUMBERS = {
    "first_bad_step": int, "steps_done": int, "seconds": float, "skipped": int,
    "adam_below_eps": float, "adam_underflowed": float,
}  # fmt: skip


@dataclass(frozen=True)
class TensorFigures:
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

    phase: Phase
    kind: Literal["nan", "inf"]
    module: str
    op: str
    module_kind: str = ""
    inputs: Sequence[TensorFigures] = ()
    outputs: Sequence[TensorFigures] = ()
    norm: dict[str, float] | None = None  # eps, eps_held, smallest_variance
    attention: dict[str, float] | None = None  # largest_score
    note: str = ""

    @property
    def detail(self) -> str:
        """What went in and what came out, in a few words."""

        def words(figures: TensorFigures) -> str:
            absmax, shape = figures.absmax, "x".join(map(str, figures.shape)) or "scalar"
            largest = "no finite element" if absmax is None else f"absmax {absmax:.4g}"
            return f"{figures.dtype} {shape} {largest}"

        out = self.outputs[0]
        came = f"{out.nan} NaN and {out.inf} Inf of {prod(out.shape)} elements"
        if self.note:
            return f"{came}, {self.note}"
        return f"{came} out of {'; '.join(map(words, self.inputs)) or 'no tensor'}"


@dataclass(frozen=True)
class UpdateFigures:
    """The first element of a weight that an update made non-finite. None: not an Adam."""

    parameter: str
    element: Sequence[int] = ()
    weight_before: float | None = None
    weight_after: float | None = None
    gradient: float | None = None
    kernel: str = ""
    dtype: str = ""
    nonfinite: int = 0
    elements: int = 0
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
    origin: Birth | None = None


@dataclass(frozen=True)
class Autopsy:
    """What the replay of a failing step showed."""

    step: int
    reproduced: bool
    nature: str
    origin: Birth | None = None
    propagated: Birth | None = None  # the first bad gradient
    loss: float | None = None
    grad_norm: float | None = None
    optimizer: UpdateFigures | None = None
    shadow: dict[str, Replay] = field(default_factory=dict)  # by type: float64, float32
    seconds: float = 0.0  # that the replay took: written, and not read again
    schema: int = 1

    FILE = "autopsy.json"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """None where there is none. Raises BrokenRecord."""
        path = folder / cls.FILE
        if not path.exists():
            return None
        try:
            return cls.of(read_json(path))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BrokenRecord(f"{path}: not the autopsy of a run") from None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """KeyError, TypeError, ValueError or AttributeError where it is not what is written."""
        update, shadow = values["optimizer"], values["shadow"] or {}
        return cls(
            step=int(values["step"]),
            reproduced=bool(values["reproduced"]),
            nature=str(values["nature"]),
            origin=_birth(values["origin"]),
            propagated=_birth(values["propagated"]),
            loss=_real(values["loss"]),
            grad_norm=_real(values["grad_norm"]),
            optimizer=None if update is None else UpdateFigures(**_known(UpdateFigures, update)),
            shadow={
                dtype: Replay(**_known(Replay, replay), origin=_birth(replay.get("origin")))
                for dtype, replay in shadow.items()
            },
        )

    @property
    def in_fp64(self) -> str:
        """'finite in fp64: loss 3.2, gradient norm 1'; '' where it is not."""
        replay = self.shadow.get("float64")
        if self.nature != NUMERICAL or replay is None:
            return ""
        figures = {"loss": replay.loss, "gradient norm": replay.grad_norm}
        words = ", ".join(f"{name} {v:.3g}" for name, v in figures.items() if v is not None)
        return "finite in fp64" + (f": {words}" if words else "")

    def events(self) -> list[EventRow]:
        """The origin's row, then one each for a bad loss and the first bad gradient it led to."""
        loss = self.loss
        if self.origin is None:
            detail = f"not reproduced: loss {loss}, gradient norm {self.grad_norm}"
            return [EventRow(self.step, "backward", "not_reproduced", detail=detail)]
        rows = [self._row(self.origin, "origin", self.origin.detail)]
        if self.origin.phase == "forward" and loss is not None and not isfinite(loss):
            kind = "nan" if isnan(loss) else "inf"
            rows.append(EventRow(self.step, "loss", kind, role="propagated", module="loss"))
        if self.propagated is not None and self.propagated != self.origin:
            rows.append(self._row(self.propagated, "propagated"))
        return rows

    def _row(self, birth: Birth, role: str, detail: str = "") -> EventRow:
        return EventRow(
            step=self.step,
            phase=birth.phase,
            kind=birth.kind,
            role=role,
            module=birth.module,
            op=birth.op,
            detail=detail,
        )


# Fields that are words, counts or lists; every other one is a number or "nan", "inf", "-inf".
TEXTS = (
    "phase", "kind", "module", "module_kind", "op", "note", "dtype", "parameter", "kernel",
    "shape", "element", "nan", "inf", "nonfinite", "elements", "finite",
)  # fmt: skip


def _birth(values: dict[str, Any] | None) -> Birth | None:
    if values is None:
        return None
    known: dict[str, Any] = {name: values[name] for name in ("phase", "kind", "module", "op")}
    known |= {name: values.get(name) or "" for name in ("module_kind", "note")}
    for name in ("inputs", "outputs"):
        tensors = values.get(name) or []
        known[name] = [TensorFigures(**_known(TensorFigures, tensor)) for tensor in tensors]
    for name in ("norm", "attention"):
        facts = values.get(name)
        known[name] = facts and {key: float(value) for key, value in facts.items()}
    return Birth(**known)


def _known(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    names = [f.name for f in fields(kind) if f.name in values and f.name != "origin"]
    return {name: values[name] if name in TEXTS else _real(values[name]) for name in names}


def _real(value: Any) -> float | None:
    return None if value is None else float(value)
