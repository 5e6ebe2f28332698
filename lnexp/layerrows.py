"""One reading's rows of layers.csv, held by column: a step has hundreds, and a field comes for
all of them at once. Free of torch and pandas.
"""

from collections.abc import Iterator, Sequence
from typing import overload

from .rows import PARTS, LayerRow, Part, header

Place = tuple[int, Part]
Column = tuple[str, Sequence[Place], Sequence[float]]  # a field, where it was measured, its values
FIELDS = header(LayerRow)[3:]  # after step, layer and part


class Layout:
    """Where a place's row lies: by layer, then part. It is found anew when the places change."""

    def __init__(self) -> None:
        self._given: list[Sequence[Place]] = []
        self._found: tuple[list[Place], list[list[int]]] = [], []

    def rows(self, step: int, columns: Sequence[Column]) -> "LayerRows":
        given = [places for _, places, _ in columns]
        if given != self._given:
            places = sorted(set().union(*given), key=lambda p: (p[0], PARTS.index(p[1])))
            at = {place: row for row, place in enumerate(places)}
            self._given, self._found = given, (places, [[at[p] for p in some] for some in given])
        places, rows = self._found
        cells: dict[str, list[float | None]] = {}
        for (field, _, values), positions in zip(columns, rows, strict=True):
            column = cells.setdefault(field, [None] * len(places))
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
