"""Row types are the CSV schemas: a header is the field names of its row, in order. Rows of a step's
layers are held by column: a step has hundreds, and a field comes for all of them at once.

Free of torch and pandas, so that both halves may import it. None means "not measured" and is
written as an empty cell; a non-finite number is written out as `nan`, `inf` or `-inf`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from math import ceil
from typing import Any, Literal, overload

Part = Literal["embed", "attn", "mlp", "norm", "head", "wq", "wk", "wv", "wo", "w1", "w2"]
Phase = Literal["forward", "loss", "backward", "optimizer"]

# The matrices of a block, written at level full; each is already part of attn or mlp.
MATRIX_PARTS = ("wq", "wk", "wv", "wo", "w1", "w2")
PARTS = ("embed", "attn", "mlp", "norm", "head", *MATRIX_PARTS)  # in the order of a layer's rows


@dataclass(frozen=True, slots=True)
class StepRow:
    """One training step. Norms are taken before clipping and after unscaling."""

    step: int
    tokens: int | None  # seen before and in this step; None: not known
    seconds: float  # wall time of training since the run began, without set-up
    lr: float
    loss: float  # cross entropy in nats, without z-loss, before update `step`
    # The same targets under the training text's letter frequencies; of a watched run its baseline,
    # None: there is none.
    unigram_loss: float | None
    val_loss: float | None = None  # after update `step`
    grad_norm: float | None = None
    update_norm: float | None = None  # of what update `step` did
    weight_norm: float | None = None  # before update `step`
    clip_factor: float | None = None
    loss_scale: float | None = None
    skipped: int | None = None  # 1: no update was made
    nonfinite_grads: int | None = None  # elements


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One part of one layer at one step. Layers count from 0; the embedding is -1, the head depth.

    The fields after zero_grad_fraction are read at level full only.
    """

    step: int
    layer: int
    part: Part
    grad_norm: float | None = None
    weight_norm: float | None = None
    update_norm: float | None = None
    zero_grad_fraction: float | None = None  # share of gradient elements that are exactly 0
    act_rms: float | None = None  # RMS of the residual stream after the part
    norm_input_rms: float | None = None  # of the norm that serves this sublayer
    norm_gain: float | None = None  # RMS of that norm's learned gain
    eps_floor_fraction: float | None = None  # share of tokens whose variance is below eps
    branch_to_stream: float | None = None  # RMS of F / RMS of the stream before the part
    stream_grad_rms: float | None = None  # gradient of the stream before the part
    act_absmax: float | None = None
    token_cosine: float | None = None  # mean off-diagonal cosine between positions
    attn_logit_max: float | None = None  # max |q k / sqrt(d_h)|
    attn_entropy: float | None = None  # mean of -sum p ln p / ln t over rows t > 1


@dataclass(frozen=True, slots=True)
class EventRow:
    """The first occurrence of something notable, per kind and module."""

    step: int
    phase: Phase
    kind: str  # nan, inf, norm_overflow, zero_gradient, scaler_skip, adam_underflow, ...
    role: str = ""  # origin, propagated; empty: not examined
    module: str = ""  # dotted module or parameter name
    op: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """Everything one step leaves behind."""

    step: StepRow
    layers: Sequence[LayerRow] = ()
    events: list[EventRow] = field(default_factory=list)
    autopsy: dict[str, Any] | None = None  # of the run's first failing step


def header(row_type: type) -> list[str]:
    return [f.name for f in fields(row_type)]


def cell(value: Any) -> str:
    """The text of one CSV cell; floats are written so that they read back to the bit."""
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value)  # nan, inf and -inf too
    text = str(value)
    if any(c in text for c in ',"\r\n'):
        return '"' + text.replace('"', '""').replace("\r", " ").replace("\n", " ") + '"'
    return text


def line(values: Iterable[Any]) -> str:
    # Most cells by far are floats or empty: they go without a call for each.
    cells = ["" if v is None else repr(v) if type(v) is float else cell(v) for v in values]
    return ",".join(cells) + "\n"


def end_window(count: int) -> int:
    """How many steps End, the loss of a run's end, is the median of: the last 10 %, at least 10, or
    what there is."""
    return min(count, max(10, ceil(count / 10)))


Place = tuple[int, Part]
Column = tuple[str, Sequence[Place], Sequence[float]]  # a field, where it was measured, its values
FIELDS = header(LayerRow)[3:]  # after step, layer and part


class Layout:
    """Where a place's row lies: by layer, then part. It is worked out when the places change."""

    def __init__(self) -> None:
        self._given: list[Sequence[Place]] = []  # of each column
        self._rows: tuple[list[Place], list[list[int]]] = [], []

    def rows(self, step: int, columns: Sequence[Column]) -> "LayerRows":
        given = [places for _, places, _ in columns]
        if given != self._given:
            places = sorted(set().union(*given), key=lambda p: (p[0], PARTS.index(p[1])))
            at = {place: row for row, place in enumerate(places)}
            self._given, self._rows = given, (places, [[at[p] for p in some] for some in given])
        places, rows = self._rows
        cells: dict[str, list[float | None]] = {}
        for (name, _, values), positions in zip(columns, rows, strict=True):
            column = cells.setdefault(name, [None] * len(places))
            for row, value in zip(positions, values, strict=True):
                column[row] = value
        return LayerRows(step, places, cells)


class LayerRows(Sequence[LayerRow]):
    def __init__(
        self, step: int, places: Sequence[Place], columns: dict[str, list[float | None]]
    ) -> None:
        self.step, self.places, self.columns = step, places, columns

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> LayerRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[LayerRow]: ...
    def __getitem__(self, index: int | slice) -> LayerRow | list[LayerRow]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        fields = {field: values[index] for field, values in self.columns.items()}
        return LayerRow(self.step, *self.places[index], **fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))

    def lines(self) -> Iterator[str]:
        """As `rows.line` writes a row."""
        empty = [""] * len(self)
        texts = [
            ["" if value is None else repr(value) for value in self.columns[field]]
            if field in self.columns
            else empty
            for field in FIELDS
        ]
        for (layer, part), *cells in zip(self.places, *texts, strict=True):
            yield f"{self.step},{layer},{part},{','.join(cells)}\n"
