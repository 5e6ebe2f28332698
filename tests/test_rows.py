"""Rows held by column are the rows that are written one by one."""

from hypothesis import given
from hypothesis import strategies as st

from lnexp.rows import FIELDS, PARTS, LayerRow, Layout, line

places = st.tuples(st.integers(-1, 12), st.sampled_from(PARTS))


@st.composite
def column(draw):
    where = draw(st.lists(places, max_size=12, unique=True))
    values = draw(st.lists(st.floats(), min_size=len(where), max_size=len(where)))
    return draw(st.sampled_from(FIELDS)), where, values


def written_out(step: int, columns) -> list[LayerRow]:
    fields: dict = {}
    for field, where, values in columns:
        for place, value in zip(where, values, strict=True):
            fields.setdefault(place, {})[field] = value
    order = sorted(fields, key=lambda place: (place[0], PARTS.index(place[1])))
    return [LayerRow(step=step, layer=i, part=part, **fields[i, part]) for i, part in order]


@given(st.lists(st.tuples(st.integers(0, 10**6), st.lists(column(), max_size=6)), max_size=4))
def test_rows_by_column_are_those_made_one_by_one(readings):
    layout = Layout()
    for step, columns in readings:
        rows, expected = layout.rows(step, columns), written_out(step, columns)
        assert repr(list(rows)) == repr(expected)  # nan, too
        values = (
            [getattr(row, name) for name in ("step", "layer", "part", *FIELDS)] for row in expected
        )
        assert "".join(rows.lines()) == "".join(map(line, values))


def test_a_row_is_looked_up_as_in_a_list():
    columns = [("grad_norm", [(1, "mlp"), (0, "attn"), (-1, "embed")], [3.0, 2.0, 1.0])]
    rows = Layout().rows(7, columns)
    expected = [
        LayerRow(7, -1, "embed", 1.0),
        LayerRow(7, 0, "attn", 2.0),
        LayerRow(7, 1, "mlp", 3.0),
    ]
    assert rows == expected and rows[-1] == expected[-1] and rows[:2] == expected[:2]
