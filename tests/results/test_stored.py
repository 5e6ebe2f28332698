import os
import subprocess
import sys
from math import inf, nan
from random import Random

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lnexp.results import tables
from lnexp.results.load import load
from lnexp.results.tables import (
    BrokenTable,
    beside,
    empty_table,
    many_tables,
    read_table,
    stored_table,
)
from lnexp.rows import LayerRow, StepRow, header
from tests.results.folders import csv_text, write_points, write_run

needs_pyarrow = pytest.mark.skipif(not tables.PYARROW, reason="needs the extra parquet")

cell = st.none() | st.floats()
whole = st.integers(-(2**31), 2**31)
layer_rows = st.lists(
    st.builds(
        LayerRow, whole, whole, st.sampled_from(["embed", "attn", "mlp", "wq", "head"]),
        grad_norm=cell, weight_norm=cell, act_rms=cell, attn_entropy=cell,
    ),
    max_size=8,
)  # fmt: skip
step_rows = st.lists(
    st.builds(
        StepRow, step=whole, tokens=st.none() | st.integers(0, 2**53), seconds=st.floats(),
        lr=st.floats(), loss=st.floats(), unigram_loss=cell, val_loss=cell, skipped=st.none(),
    ),
    max_size=8,
)  # fmt: skip
ROWS = [
    LayerRow(i, -1, "embed", x) for i, x in enumerate([0.5, nan, None, inf, -inf, -0.0, 5e-324])
]


@pytest.fixture(autouse=True)
def keeps_all(monkeypatch):
    """However short a file is, and however new."""
    monkeypatch.setattr(tables, "LEAST", 1)
    monkeypatch.setattr(tables, "SETTLED", -1.0)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "status.json").write_text("{}")
    (tmp_path / "layers.csv").write_text(csv_text(LayerRow, ROWS))
    return tmp_path / "layers.csv"


def assert_same(one, other):
    """To the bit, and which cells are empty."""
    pd.testing.assert_frame_equal(one, other, check_exact=True)
    for name in one:
        if one[name].dtype == "Float64":
            a, b = (f[name].to_numpy(float, na_value=nan).view("int64") for f in (one, other))
            assert a.tolist() == b.tolist()


def assert_right(path, columns=None):
    """Twice: what is read, and then what was kept of it."""
    for _ in range(2):
        found, notes = stored_table(path, LayerRow, columns)
        expected, told = read_table(path, LayerRow, columns)
        assert_same(found, expected)
        assert notes == told


@needs_pyarrow
@settings(max_examples=60, deadline=None)
@given(layer_rows | step_rows, st.data())
def test_what_is_kept_of_a_table_is_the_table_to_the_bit(tmp_path_factory, rows, data):
    row_type = type(rows[0]) if rows else LayerRow
    folder = tmp_path_factory.mktemp("t")
    path = folder / "table.csv"
    path.write_text(csv_text(row_type, rows))
    (folder / "status.json").write_text("{}")
    stored_table(path, row_type)
    assert beside(path).exists()
    columns = data.draw(st.none() | st.lists(st.sampled_from(header(row_type)), unique=True))
    assert_same(stored_table(path, row_type, columns)[0], read_table(path, row_type, columns)[0])


@needs_pyarrow
def test_the_second_reading_opens_no_csv(path, monkeypatch):
    stored_table(path, LayerRow, ["step"])
    monkeypatch.setattr(tables, "read_text", None)
    found, _ = stored_table(path, LayerRow)
    assert len(found) == len(ROWS) and pd.isna(found["grad_norm"][2])


def append(path):
    with path.open("a") as file:
        file.write("7,0,attn,1" + "," * 13 + "\n")


def truncate(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def cut_in_a_row(path):
    os.truncate(path, path.stat().st_size - 3)


def change_in_place(path):
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.7"))


def replace_under_the_same_times(path):
    """As a copying tool does that sets size and time of what it copied."""
    found = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes().replace(b"0.5", b"0.7"))
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    os.replace(other, path)
    assert path.stat().st_mtime_ns == found.st_mtime_ns and path.stat().st_size == found.st_size


def lose_columns(path):
    path.write_text("step,layer,part,grad_norm\n0,-1,embed,0.25\n")


@needs_pyarrow
@pytest.mark.parametrize(
    "change",
    [
        append, truncate, cut_in_a_row, change_in_place, replace_under_the_same_times, lose_columns,
    ],
    ids=lambda change: change.__name__,
)  # fmt: skip
def test_a_csv_that_changed_is_read_anew(path, change):
    assert_right(path)
    change(path)
    assert_right(path)


@needs_pyarrow
def test_a_csv_that_became_unreadable_says_so_whatever_is_kept(path):
    assert_right(path)
    path.write_text("step,layer,part\n1,2\n")
    for _ in range(2):
        with pytest.raises(BrokenTable, match="more or fewer cells"):
            stored_table(path, LayerRow)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        stored_table(path, LayerRow)


@needs_pyarrow
def test_nothing_is_kept_of_a_run_that_goes_on_or_of_half_a_line_or_of_a_short_file(
    path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(tables, "SETTLED", 60.0)  # written less than a minute ago
        assert_right(path)
    with monkeypatch.context() as patch:
        patch.setattr(tables, "LEAST", 10_000)
        assert_right(path)
    status = path.with_name("status.json")
    status.unlink()
    assert_right(path)
    status.write_text("{}")
    cut_in_a_row(path)
    assert_right(path)
    assert sorted(p.name for p in path.parent.iterdir()) == ["layers.csv", "status.json"]


@needs_pyarrow
@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (tables, "__version__", "0.0.1"), (tables, "FORMAT", 0), (tables.pd, "__version__", "2.0"),
        (tables, "header", lambda row_type: header(row_type)[:-1]),
    ],
    ids=["lnexp", "format", "pandas", "columns"],
)  # fmt: skip
def test_what_another_version_kept_is_not_believed(path, monkeypatch, where, name, value):
    with monkeypatch.context() as patch:
        patch.setattr(where, name, value)
        stored_table(path, LayerRow)
        old = beside(path).read_bytes()
    assert_right(path)
    assert beside(path).read_bytes() != old


@needs_pyarrow
@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_cache_gives_the_numbers_of_the_csv(path, seed):
    stored_table(path, LayerRow)
    kept, chance = bytearray(beside(path).read_bytes()), Random(seed)
    match seed % 3:
        case 0:  # one bit
            kept[chance.randrange(len(kept))] ^= 1 << chance.randrange(8)
        case 1:
            del kept[chance.randrange(len(kept)) :]
        case _:
            at = chance.randrange(len(kept))
            kept[at : at + 50] = chance.randbytes(50)
    beside(path).write_bytes(kept)
    assert_right(path)


@needs_pyarrow
def test_a_folder_that_cannot_be_written_is_read_without_a_word(path, monkeypatch):
    import pyarrow.parquet

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pyarrow.parquet, "write_table", refuse)
    assert_right(path)
    monkeypatch.undo()
    monkeypatch.setattr(tables.os, "replace", refuse)
    assert_right(path)
    assert sorted(p.name for p in path.parent.iterdir()) == ["layers.csv", "status.json"]


@needs_pyarrow
def test_two_readers_at_once_both_read_right(path):
    path.write_text(csv_text(LayerRow, ROWS * 5000))
    code = (
        "import sys; from pathlib import Path; from lnexp.results import tables\n"
        "from lnexp.rows import LayerRow\n"
        "tables.SETTLED = -1.0\n"
        "for _ in range(5):\n"
        "    found, _ = tables.stored_table(Path(sys.argv[1]), LayerRow)\n"
        "    print(len(found), found['grad_norm'].isna().sum(), found['step'].sum())\n"
        "    tables.beside(Path(sys.argv[1])).unlink(missing_ok=True)\n"
    )
    at_once = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = {line for one in at_once for line in one.communicate()[0].splitlines()}
    assert said == {"35000 5000 105000"} and not any(one.returncode for one in at_once)


def test_without_pyarrow_nothing_is_kept(path, monkeypatch):
    monkeypatch.setattr(tables, "PYARROW", False)
    assert_right(path)
    assert not beside(path).exists()


def one_by_one(paths, row_type, columns):
    frames, lengths, notes = [empty_table(row_type, columns)], [], []
    for path in paths:
        try:
            frame, more = read_table(path, row_type, columns)
        except (BrokenTable, OSError) as problem:
            frame = empty_table(row_type, columns)
            more = [str(problem)] if isinstance(problem, BrokenTable) else []
        frames.append(frame)
        lengths.append(len(frame))
        notes += more
    return pd.concat(frames, ignore_index=True), lengths, notes


HEAD = b"step,layer,part\n"
ODD = [
    b"", b"step,lo", HEAD, HEAD + b"1,2\n", b"step,layer,part,act\n", HEAD + b"1,2,mlp\n3,",
    b"step,layer,part\r\n1,2,mlp\r\n", HEAD + b"1,2,m\rp\n", HEAD + b'1,2,"mlp\n', b"\xff\n",
    HEAD + b"1,2,mlp\nx,2,mlp\n", HEAD + b"1,2,mlp,4\n1,2\n", b"part,layer,step\nmlp,2,1\n",
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.lists(layer_rows | st.sampled_from([*ODD, None]), max_size=6),
    st.none() | st.lists(st.sampled_from(header(LayerRow)), min_size=1, unique=True),
    st.sampled_from([1, 300, 10**6]),
    st.sampled_from([1, 200, 10**6]),
)
def test_many_tables_are_what_each_is_alone(tmp_path_factory, files, columns, together, least):
    """None: a run that has no such file yet. Half-written, damaged and odd ones among them."""
    folder = tmp_path_factory.mktemp("t")
    paths = [folder / str(i) / "layers.csv" for i in range(len(files))]
    for path, file in zip(paths, files, strict=True):
        path.parent.mkdir()
        if file is not None:
            text = file if isinstance(file, bytes) else csv_text(LayerRow, file).encode()
            path.write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "TOGETHER", together)
        patch.setattr(tables, "LEAST", least)
        found, lengths, notes = many_tables(paths, LayerRow, columns)
    expected, counts, told = one_by_one(paths, LayerRow, columns)
    assert_same(found, expected)
    assert (lengths, notes) == (counts, told)


def test_a_long_table_of_a_sweep_is_the_same_kept_or_not(tmp_path, monkeypatch):
    sweep = tmp_path / "demo"
    write_points(sweep, [(f"r{i}", i, {"model.depth": 4}) for i in range(3)])
    for i in range(3):
        rows = [LayerRow(s, s % 3, "mlp", [nan, None, 0.1 * i][s % 3]) for s in range(i * 50)]
        write_run(sweep, f"r{i}", layers=rows)
    results = load(sweep)
    first, second = results.layers(), results.layers()
    monkeypatch.setattr(tables, "PYARROW", False)
    assert_same(first, results.layers())
    assert_same(second, results.layers())
    assert second.groupby("run", observed=False).size().tolist() == [0, 50, 100]
