"""YAML in and out: YAML 1.2 numbers, marks, one plain line for everything that cannot be read."""

import json
import math
import re

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lnexp.config.document import dump, parse, parse_value, plain, read
from lnexp.messages import UserError

unhurried = settings(deadline=None)  # other work may share the cores


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(UserError) as caught:
        parse(text, "f.yaml")
    return caught.value.problems


def same(a, b) -> bool:
    """Equal in type and value; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-5", 1e-5), ("1.0e-5", 1e-5), ("1e-12", 1e-12), ("3e-4", 3e-4), ("5E-4", 5e-4),
        ("1.0e5", 1e5), (".5", 0.5), ("6.0", 6.0), ("-2", -2), ("+3", 3), ("0", 0), ("-0.0", 0.0),
        ("1e3", 1000), ("1E+3", 1000), ("100e-2", 1), ("1e300", 1e300),
        (".inf", math.inf), ("-.inf", -math.inf), (".nan", math.nan), (".NaN", math.nan),
        ("on", True), ("off", False), ("yes", True), ("no", False), ("No", False), ("TRUE", True),
        ("~", None), ("null", None), ("", None),
        ('"false"', "false"), ("'4'", "4"),
    ],
)  # fmt: skip
def test_plain_scalars_mean_what_yaml_1_2_says(written, value):
    assert same(parse(f"key: {written}", "f").value["key"], value)


@pytest.mark.parametrize(
    "written", ["010", "08", "1:30", "1_000", "0x10", "0o10", "inf", "nan", "None", "none", "y",
                "2024-01-01", "1.2.3", "--1", "1e", "e5", "."]
)  # fmt: skip
def test_what_yaml_1_1_would_guess_at_stays_text(written):
    assert parse(f"key: {written}", "f").value["key"] == written


JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)


@unhurried
@given(st.from_regex(JSON_NUMBER, fullmatch=True) | st.text("0123456789+-.eE_:x", max_size=8))
@example("1e-5")
@example("-0")
@example("1e400")
def test_every_json_number_is_that_number_and_nothing_else_in_json_shape_is_text(text):
    try:
        value = plain(text)
    except OverflowError:
        assert float(text) in (0.0, math.inf, -math.inf) or abs(int(text)) >= 2**63
        return
    if JSON_NUMBER.fullmatch(text):
        assert value == json.loads(text)
        assert not isinstance(value, str | bool)
    elif isinstance(value, str):
        assert value == text
    elif value is not None:  # YAML also takes +1, 1. and .5
        padded = re.sub(r"^\+", "", re.sub(r"(^|[+-])\.", r"\g<1>0.", text))
        assert JSON_NUMBER.fullmatch(re.sub(r"\.(?!\d)", ".0", padded))


@unhurried
@given(st.text())
@example("a: *x")
@example("\ufeff")
@example("? [a]\n: b")
@example('a: "\\UFFFFFFFF"')
@example("%YAML 1." + "9" * 5000 + "\n---\na: 1")
@example("a: " + "[" * 100_000)
@example("- " * 1000)
@example("a: 1e999999999999")
@example("a: " + "9" * 5000)
def test_any_text_is_a_mapping_or_lines_of_complaint(text):
    try:
        assert isinstance(parse(text, "f").value, dict)
    except UserError as error:
        assert error.problems
        assert all(line.startswith("f") and "\n" not in line for line in error.problems)


yaml_ish = st.lists(
    st.sampled_from(
        ["a", "b: ", ": ", "- ", "\n", "\n  ", "\t", "[", "]", "{", "}", ",", "&x ", "*x", "!t ",
         "!!int ", "'", '"', "|\n", ">\n", "---\n", "...\n", "<<: ", "#", "? ", "%", "1e999", "~"]
    ),
    max_size=30,
).map("".join)  # fmt: skip


@unhurried
@given(yaml_ish)
def test_no_arrangement_of_yaml_signs_gets_past_as_a_traceback(text):
    try:
        assert isinstance(parse(text, "f").value, dict)
    except UserError as error:
        assert all(line.startswith("f") and "\n" not in line for line in error.problems)


scalars = (
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats() | st.text()
    | st.sampled_from(["no", "1e3", "1e-5", "010", "1:30", "0x10", "~", "", ".inf", "<<", "=", "-"])
)  # fmt: skip
keys = st.text(max_size=12) | st.sampled_from(["no", "1e3", "model.depth", "010", "<<", "~", "1"])
documents = st.dictionaries(
    keys,
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=10,
    ),
    min_size=1,
    max_size=4,
)


def without_negative_zero(data):
    if isinstance(data, dict):
        return {key: without_negative_zero(value) for key, value in data.items()}
    if isinstance(data, list):
        return [without_negative_zero(value) for value in data]
    return 0.0 if isinstance(data, float) and data == 0 else data


def holds_nul(data) -> bool:
    if isinstance(data, dict):
        return any(map(holds_nul, data)) or any(map(holds_nul, data.values()))
    return any(map(holds_nul, data)) if isinstance(data, list) else "\0" in str(data)


@unhurried
@given(documents.filter(lambda data: not holds_nul(data)))
@example({"eps": 1e-05, "big": 1e16, "clip": math.inf, "no": "no", "list": [1e-5, "1e-5", "1e3"]})
@example({"twice": [shared := [0.9, 0.95], shared]})
def test_a_dumped_document_reads_back_equal_here_and_in_plain_pyyaml(data):
    text = dump(data)
    assert same(parse(text, "f").value, without_negative_zero(data))
    assert same(yaml.safe_load(text), data)


def test_a_mark_gives_line_column_and_the_scalar_as_written():
    text = "model:\n  depth: 010  # ten\n  eps: [1e-5, '2']\nseeds:\n- 1\n- 0x2\n"
    document = parse(text, "f")
    mark = document.mark(("model", "depth"))
    assert (mark.line, mark.column, mark.text) == (2, 3, "010")
    assert document.mark(("model", "eps", 1)).text == "'2'"
    assert document.mark(("seeds", 1)).line == 6
    assert document.mark(("seeds", 7)).line == 4  # what is not there: the nearest around it
    assert document.mark(("model", "nothing", "here")).line == 1


def test_a_duplicate_key_names_both_lines_at_every_depth():
    lines = problems("model:\n  eps: 1\n  eps: 2\nseeds: [0]\nseeds: [1]\n")
    assert lines == (
        "f.yaml:3: model.eps: is written twice, first in line 2; keep one",
        "f.yaml:5: seeds: is written twice, first in line 4; keep one",
    )
    assert "\n" not in problems('"a\\nb": 1\n"a\\nb": 2')[0]
    assert "first in line 1" in problems('a: 1\n"a": 2')[0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("model:\n\tdepth: 4", "f.yaml:2:1: a tab; indent with spaces"),
        ("a: b: c", "f.yaml:1:5: a ':' too many; put text that holds ': ' in quotes"),
        ("a: [1, 2\nb: 3", "f.yaml:2:2: a bracket that is not closed, or a missing comma (what "
         "began in line 1)"),
        ("a: 'x", "f.yaml:1:6: a quote that is not closed"),
        ("a: 1\n---\nb: 2", "f.yaml:2:1: a second document (---); one file holds one experiment "
         "(what began in line 1)"),
        ("a: *x", "f.yaml:1:4: an alias (*) without its anchor (&); put text with * in quotes"),
        ("a: &x [*x]", "f.yaml:1: a: this anchor (&) holds itself"),
        ("a: !!python/name:os.system x", "f.yaml:1:4: tags such as !!python/name:os.system are not "
         "read here; write the plain value"),
        ("<<: {a: 1}", "f.yaml:1: merge keys (<<) are not read here; write the keys"),
        ("a: 1e999", "f.yaml:1: a: 1e999 is too large for a number; write .inf for no limit"),
        ("a: 1e-999", "f.yaml:1: a: 1e-999 is too small for a number: it would read as 0"),
        ("- 1", "f.yaml:1: is a list; write `key: value` lines"),
        ("depth", "f.yaml:1: is a single value; write `key: value` lines"),
        ("", "f.yaml: is empty; write `key: value` lines"),
        ("# only a comment\n", "f.yaml: is empty; write `key: value` lines"),
        ("a: \x01", "f.yaml:1:4: a character (U+0001) that no text file holds; save the file as "
         "plain UTF-8 text"),
        ('a: "\\ud800"', "f.yaml:1: a: holds a character (NUL, half a pair) that no text holds"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_plain_line(text, line):
    assert problems(text) == (line,)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("model:\n  width: 32\n   context: 64\n", "f.yaml:3: line 3 is indented deeper than line "
         "2; write context: in the same column as width:"),
        ("model:\n  width: 32 # a\n\n  # b\n     context: 64\n", "f.yaml:5: line 5 is indented "
         "deeper than line 2; write context: in the same column as width:"),
        ("model:\n    width: 32\n  context: 64\n", "f.yaml:3: line 3 is indented less than line 2; "
         "write context: in the same column as width:"),
        ("cases:\n  - a: 1\n     b: 2\n", "f.yaml:3: line 3 is indented deeper than line 2; write "
         "b: in the same column as a:"),
        ("model:\n  width:32\n  context: 64\n", "f.yaml:2: a space is missing after 'width:'"),
        ("model:\r\n  context: 64\r\n  width:32\r\n", "f.yaml:3: a space is missing after "
         "'width:'"),
    ],
)  # fmt: skip
def test_a_wrong_column_and_a_missing_space_are_named_with_their_line(text, line):
    assert problems(text) == (line,)


def test_a_5000_digit_integer_and_bottomless_nesting_are_lines_too():
    assert "is too large" in problems("a: " + "9" * 5000)[0]
    assert len(problems("a: " + "9" * 5000)[0]) < 150
    assert "nested too deep" in problems("a: " + "[" * 5000)[0]


def test_aliases_that_multiply_are_stopped():
    levels = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "holds more than" in problems("\n".join(levels))[0]


def test_an_anchor_used_twice_is_fine():
    assert parse("a: &x [1, 2]\nb: *x", "f").value == {"a": [1, 2], "b": [1, 2]}


def test_keys_are_text_as_written():
    assert list(parse("on: 1\n010: 2\n1e3: 3\n~: 4", "f").value) == ["on", "010", "1e3", "~"]


def test_a_value_alone_may_be_a_list():
    assert parse_value("[2, 4e0, no]", "-s").value == [2, 4, False]


def test_files_are_utf8_with_or_without_a_byte_order_mark(tmp_path):
    file = tmp_path / "größe.yaml"
    file.write_bytes(b"\xef\xbb\xbfquestion: caf\xc3\xa9\r\nseeds: [1]\r\n")
    document = read(file)
    assert document.value == {"question": "café", "seeds": [1]}
    assert document.mark(("seeds",)).line == 2


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("question: café".encode("cp1252"), "is not UTF-8 (byte 0xe9 at offset 13)"),
        ("a: 1".encode("utf-16"), "is not UTF-8 (byte 0xff at offset 0)"),
        (b"", "is empty"),
    ],
)
def test_files_in_other_encodings_or_empty_say_so(tmp_path, raw, says):
    file = tmp_path / "x.yaml"
    file.write_bytes(raw)
    with pytest.raises(UserError, match=re.escape(f"{file}: {says}")):
        read(file)


def test_a_missing_file_and_a_folder_say_so(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="is a folder"):
        read(tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path / ("n" * 5000))
