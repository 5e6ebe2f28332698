"""points.json as it should not be: named in a line, never a traceback."""

import copy
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lnexp.messages import UserError
from lnexp.results.load import load
from lnexp.terminal.summary import as_csv, as_json, as_tex
from tests.results.folders import curve, step_rows, write_points, write_run


def shown(sweep) -> str:
    results = load(sweep)
    return as_json(results) + as_csv(results.runs) + as_tex(results)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("points") / "demo"
    write_points(folder, [("a", 0, {"model.depth": 2}), ("b", 1, {"model.depth": 4})])
    write_run(folder, "a", None, step_rows(*curve(np.full(30, -0.5))))
    return folder


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.floats(allow_nan=False)
    | st.text(max_size=4) | st.sampled_from(["model.depth", "../..", "a" * 300, "a/b", "."]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)  # fmt: skip


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items if isinstance(value, (dict, list)) else ():
        yield from (
            places(inner, (*path, key)) if isinstance(inner, (dict, list)) else [(*path, key)]
        )


@given(data=st.data())
@settings(deadline=None, max_examples=150)
def test_one_entry_of_any_type_is_read_or_refused_in_a_line(sweep, data):
    path = sweep / "points.json"
    whole = json.loads(path.read_text())
    broken = copy.deepcopy(whole)
    *above, last = data.draw(st.sampled_from([p for p in places(whole) if p]))
    inner = broken
    for step in above:
        inner = inner[step]
    inner[last] = data.draw(json_values)
    try:
        path.write_text(json.dumps(broken))
        assert shown(sweep)
    except UserError as error:
        (line,) = error.problems
        assert line.startswith(f"{path}: ") and "lnexp run" in line
    finally:
        path.write_text(json.dumps(whole))


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("question", None), ("question", 3), ("axes", "model.depth"), ("axes", [3]),
        ("runs", {}), ("runs", [7]), ("run", 7), ("run", "a/../../b"), ("settings", []),
        ("settings", {"model.depth": {"a": 1}}), ("seed_init", "0"), ("seed_data", 1e3),
        ("seed_init", 10**30), ("seed_init", True),
    ],
)  # fmt: skip
def test_an_entry_of_another_type_is_named(sweep, tmp_path, entry, value):
    whole = json.loads((sweep / "points.json").read_text())
    (whole if entry in whole else whole["runs"][0])[entry] = value
    (tmp_path / "points.json").write_text(json.dumps(whole))
    name = entry if entry in whole else "runs"
    with pytest.raises(UserError, match=f"points.json: {name} is not what a sweep holds there"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "3", "nul", '{"a": ' * 100_000, "", "\0"])
def test_what_is_no_object_is_refused_however_deep(tmp_path, text):
    (tmp_path / "points.json").write_text(text)
    with pytest.raises(UserError, match="not a list of points"):
        load(tmp_path)


def test_an_axis_of_a_later_version_is_left_out_with_a_note(tmp_path):
    points = [("a", 0, {"model.depth": 2, "model.mood": "calm"})]
    write_points(tmp_path / "s", points, axes=("model.mood", "model.depth"))
    for path in (tmp_path, tmp_path / "s"):
        results = load(path)
        assert results.axes == {"s": ["model.depth"]}
        assert "does not know: model.mood" in results.notes[0]
        assert shown(path)


@pytest.mark.parametrize("name", ["n" * 300, "n" * 5000])
def test_a_folder_whose_name_is_too_long_is_not_found(tmp_path, name):
    with pytest.raises(UserError, match="not found"):
        load(tmp_path / name)


@pytest.mark.parametrize("cell", ["x", "1e999999", "[" * 5000, str(10**30)])
def test_a_runs_csv_with_a_broken_cell_is_made_anew(sweep, cell):
    fresh = shown(sweep)
    path = sweep / "runs.csv"
    lines = path.read_text().splitlines(keepends=True)
    column = lines[0].split(",").index("seed_init")
    cells = lines[1].split(",")
    path.write_text(lines[0] + ",".join([*cells[:column], cell, *cells[column + 1 :]]) + lines[2])
    assert shown(sweep) == fresh
