"""What a terminal shows: one line a problem, no letter that acts, no flood."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lnexp.messages import MOST, amount, one_line, refusal, short

ACTING = {"RLE", "LRE", "PDF", "RLO", "LRO", "LRI", "RLI", "FSI", "PDI"}


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_no_text_moves_the_cursor_or_turns_the_reading_around(text):
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    for letter in line:
        assert unicodedata.category(letter) != "Cc", repr(line)
        assert unicodedata.bidirectional(letter) not in ACTING and letter not in "\u200e\u200f"


def test_escapes_name_the_letters_that_were_there():
    assert one_line("a\x1b[31m\u202eb\x9b") == r"a\x1b[31m\u202eb\x9b"
    assert one_line("naïve café, 日本語, עברית") == "naïve café, 日本語, עברית"


@pytest.mark.parametrize("count", [1, MOST, MOST + 1, 500])
def test_from_the_twentieth_problem_on_they_are_counted(count):
    lines = refusal([f"f.yaml:{i}: wrong" for i in range(count)], "f.yaml").problems
    rest = count - MOST
    assert len(lines) == min(count, MOST) + (rest > 0)
    assert lines[-1] == (f"f.yaml: and {rest} more" if rest > 0 else f"f.yaml:{count - 1}: wrong")


def test_one_is_not_plural():
    assert [amount(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]


@given(st.text(), st.integers(4, 80))
def test_a_quoted_text_is_cut(text, longest):
    assert len(short(text, longest)) <= longest
