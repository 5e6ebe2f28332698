"""What PyYAML says of a text it cannot read, in the words of the person who wrote it.

Free of torch and pandas.
"""

import re
from dataclasses import dataclass

import yaml

PLAIN_WORDS = {  # what PyYAML says -> what it means to the person who wrote the line
    r"'\t' that cannot start": "a tab; indent with spaces",
    "cannot start any token": "a character that starts no value; put the text in quotes",
    "mapping values are not allowed": "a ':' too many; put text that holds ': ' in quotes",
    "could not find expected ':'": "a key without ':' after it",
    "expected <block end>": "does not fit the lines above; check indentation and brackets",
    "expected ',' or": "a bracket that is not closed, or a missing comma",
    "found unexpected end of stream": "a quote that is not closed",
    "found another document": "a second document (---); one file holds one experiment",
    "sequence entries are not allowed": "a list item (-) cannot start here",
    "found undefined alias": "an alias (*) without its anchor (&); put text with * in quotes",
    "expected the node content": "a value is missing here",
    "expected alphabetic or numeric": "a bare & or *; put the text in quotes",
}

# A key at the start of a line, after list dashes, with the value behind it.
KEY = re.compile(r"((?: |- )*)([A-Za-z_][\w.-]*):(?:$|\s+(.*))")
SPACELESS = re.compile(r"(?: |- )*([A-Za-z_][\w.-]*):[^\s:/].*")
LAYOUT = ("mapping values are not allowed", "could not find expected ':'", "expected <block end>")


def spaceless(written: str) -> tuple[int, str] | None:
    """(line of the text from 0, complaint) where a line is `width:32`."""
    for i, line in enumerate(written.splitlines()):
        if found := SPACELESS.fullmatch(line):
            return i, f"a space is missing after '{found[1]}:'"
    return None


def explain(error: yaml.MarkedYAMLError, text: str) -> str:
    """'LINE:COLUMN: problem' in plain words."""
    problem = error.problem or "not readable as YAML"
    mark, began = error.problem_mark or error.context_mark, error.context_mark
    if mark and any(words in problem for words in LAYOUT) and (said := _layout(text, mark.line)):
        return said
    words = next(
        (words for yaml_words, words in PLAIN_WORDS.items() if yaml_words in problem), None
    )
    where = f"{mark.line + 1}:{mark.column + 1}: " if mark else " "
    since = ""
    if mark and began and began.line != mark.line:
        since = f" (what began in line {began.line + 1})"
    return f"{where}{words or problem}{since}"


@dataclass(frozen=True)
class _Line:
    number: int
    text: str


def _layout(text: str, at: int) -> str:
    """A missing space or a wrong column, in line `at` (from 0) or the one above it; or ''."""
    lines = [
        _Line(i + 1, line.rstrip())
        for i, line in enumerate(re.split("\r\n|[\r\n]", text)[: at + 1])
        if line.strip() and not line.lstrip().startswith("#")
    ]
    for line in lines[-2:]:
        if found := spaceless(line.text):
            return f"{line.number}: {found[1]}"
    if len(lines) < 2 or lines[-1].number != at + 1:
        return ""
    above, below = lines[-2:]
    upper, lower = KEY.fullmatch(above.text), KEY.fullmatch(below.text)
    if not upper or not lower or not (upper[3] or "").split("#")[0].strip():
        return ""
    columns = len(upper[1]), len(lower[1])
    if columns[0] == columns[1]:
        return ""
    how = "deeper" if columns[1] > columns[0] else "less"
    return (
        f"{below.number}: line {below.number} is indented {how} than line {above.number}; "
        f"write {lower[2]}: in the same column as {upper[2]}:"
    )
