from math import copysign, inf, isnan, nan

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lnexp.results.tables import BrokenTable, absent, column, nullable, numbers, read_table
from lnexp.rows import EventRow, LayerRow, StepRow, header
from tests.results.folders import csv_text

number = st.floats(allow_nan=True, allow_infinity=True)
maybe = st.none() | number
step_rows = st.lists(
    st.builds(
        StepRow, step=st.integers(0, 10**9), tokens=st.integers(0, 2**53), seconds=number,
        lr=number, loss=number, unigram_loss=number, val_loss=maybe, grad_norm=maybe,
    ),
    max_size=6,
)  # fmt: skip


def same(a, b):
    """Equal to the bit, where None is an empty cell and any NaN is a NaN."""
    if a is None or b is None:
        return a is b
    return (isnan(a) and isnan(b)) or (a == b and copysign(1, a) == copysign(1, b))


def cells(frame, name):
    return [None if value is pd.NA else value for value in frame[name]]


@settings(max_examples=60, deadline=None)
@given(step_rows)
def test_every_number_reads_back_to_the_bit(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("t") / "steps.csv"
    path.write_text(csv_text(StepRow, rows))
    frame, notes = read_table(path, StepRow)
    assert notes == [] and list(frame) == header(StepRow)
    for name in header(StepRow):
        told = [getattr(row, name) for row in rows]
        assert all(map(same, cells(frame, name), told)) and len(frame) == len(rows)


@settings(max_examples=40, deadline=None)
@given(step_rows, st.data())
def test_a_table_cut_at_any_byte_never_gives_a_wrong_number(tmp_path_factory, rows, data):
    text = csv_text(StepRow, rows).encode()
    cut = data.draw(st.integers(0, len(text)))
    path = tmp_path_factory.mktemp("t") / "steps.csv"
    path.write_bytes(text[:cut])
    frame, notes = read_table(path, StepRow)
    whole = max(0, text[:cut].count(b"\n") - 1)
    assert len(frame) == whole
    assert bool(notes) == (cut > 0 and text[cut - 1 : cut] != b"\n")
    for name in header(StepRow):
        told = [getattr(row, name) for row in rows[:whole]]
        assert all(map(same, cells(frame, name), told))


def test_nan_and_not_measured_stay_apart_through_concat_and_slices():
    one = nullable(np.array([1.0, nan, nan, inf]), np.array([False, False, True, False]))
    both = pd.concat([one, one[1:3], absent("loss", 1)], ignore_index=True)
    assert both.isna().tolist() == [False, False, True, False, False, True, True]
    assert np.isnan(numbers(both)).tolist() == [False, True, True, False, True, True, True]
    assert both[1] is not pd.NA and isnan(both[1])


def test_an_empty_file_and_a_header_alone_have_no_rows(tmp_path):
    for name, text in {"empty": "", "header": csv_text(LayerRow, [])}.items():
        (tmp_path / name).write_text(text)
        frame, notes = read_table(tmp_path / name, LayerRow)
        assert (len(frame), notes) == (0, [])
        assert list(frame) == header(LayerRow)


def test_only_the_asked_columns_are_there(tmp_path):
    path = tmp_path / "layers.csv"
    path.write_text(csv_text(LayerRow, [LayerRow(0, -1, "embed", 0.5), LayerRow(0, 0, "attn")]))
    frame, _ = read_table(path, LayerRow, ["grad_norm", "part"])
    assert list(frame) == ["part", "grad_norm"]
    assert cells(frame, "grad_norm") == [0.5, None]


def test_a_table_of_an_older_or_newer_version_is_read_by_name(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("step,loss,lr\n0,3.5,0.1\n")
    frame, _ = read_table(path, StepRow)
    assert (frame["loss"][0], frame["lr"][0], frame["grad_norm"][0]) == (3.5, 0.1, pd.NA)
    path.write_text("new," + ",".join(header(StepRow)) + "\n7," + "1," * 13 + "2\n")
    frame, _ = read_table(path, StepRow)
    assert frame["nonfinite_grads"][0] == 2 and "new" not in frame


@pytest.mark.parametrize("head", ["step,los,lr", "step,loss,loss", "loss,lr", "0,3.5,0.1"])
def test_any_other_header_is_refused_and_both_are_named(tmp_path, head):
    path = tmp_path / "steps.csv"
    path.write_text(head + "\n0,3.5,0.1\n")
    with pytest.raises(BrokenTable, match=f"header is {head}; expected step,tokens"):
        read_table(path, StepRow)


@pytest.mark.parametrize("row", ["0,1", "0,1,2,3", "0,x,1", ",1,1", "0,1,None", "0,NaN,1"])
def test_a_row_that_cannot_be_right_is_refused(tmp_path, row):
    path = tmp_path / "steps.csv"
    path.write_text(f"step,loss,lr\n{row}\n")
    with pytest.raises(BrokenTable):
        read_table(path, StepRow)


def test_events_keep_commas_and_quotes(tmp_path):
    event = EventRow(3, "forward", "inf", "origin", "blocks.2.mlp", "aten.mul", 'shape (2, 3) "x"')
    path = tmp_path / "events.csv"
    path.write_text(csv_text(EventRow, [event]))
    frame, _ = read_table(path, EventRow)
    assert EventRow(**frame.iloc[0].to_dict()) == event


def test_a_column_that_a_frame_lacks_is_not_measured():
    frame = pd.DataFrame({"step": [0, 1]})
    assert column(frame, "loss").isna().tolist() == [True, True]
