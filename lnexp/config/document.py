"""YAML files with the line of every value, YAML 1.2 numbers, an error in plain words instead of a
guess; and plain data as YAML text.

Free of torch and pandas, so that both halves may import it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isinf, nan
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from lnexp.files import Unreadable, read_bytes
from lnexp.messages import UserError, one_line, refusal

BOOLS = {
    spelling: truth
    for word, truth in {"true": 1, "yes": 1, "on": 1, "false": 0, "no": 0, "off": 0}.items()
    for spelling in (word, word.capitalize(), word.upper())
}
NULLS = ("", "~", "null", "Null", "NULL")
INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
FLOAT = re.compile(r"([-+]?)(?:(0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)(?:[eE]([-+]?[0-9]+))?")
INFINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)")
NANS = (".nan", ".NaN", ".NAN")
LARGEST = 2**63 - 1
EXACT = 10**15  # up to here `1e3` is an integer; above, a float says the same and stays short

DEEPEST = 32
MOST_NODES = 500_000  # aliases of aliases may stand for more values than memory holds

KeyPath = Sequence[str | int]


@dataclass(frozen=True)
class Mark:
    """Where a value stands (lines and columns count from 1) and how it was written."""

    line: int
    column: int
    text: str
    begins: int  # the line of the value itself, which may stand below its key


@dataclass(frozen=True)
class Document:
    """Plain dicts, lists and scalars, and the place of each."""

    value: Any
    source: str
    text: str
    root: Node

    def mark(self, path: KeyPath) -> Mark:
        """The mark of the value at ('sweep', 'model.depth', 0), or of the nearest around it."""
        node, at = self.root, self.root
        for step in path:
            if isinstance(node, MappingNode):
                pair = next((p for p in node.value if p[0].value == step), None)
                if pair is None:
                    break
                at, node = pair
            elif isinstance(node, SequenceNode) and isinstance(step, int):
                if step >= len(node.value):
                    break
                at = node = node.value[step]
            else:
                break
        written = self.text[node.start_mark.index : node.end_mark.index]
        place = at.start_mark
        return Mark(place.line + 1, place.column + 1, written.strip(), node.start_mark.line + 1)


def read(path: Path) -> Document:
    try:
        raw = read_bytes(Path(path))
    except Unreadable as problem:
        raise UserError(f"{path}: {problem}; name a YAML file") from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{raw[error.start]:02x} at offset {error.start}"
        raise UserError(f"{path}: is not UTF-8 ({byte}); save it as UTF-8") from None
    return parse(text, str(path))


def parse(text: str, source: str) -> Document:
    """A whole file: its top level is a mapping."""
    document = parse_value(text, source)
    if document.value is None:
        raise UserError(f"{source}: is empty; write `key: value` lines")
    if not isinstance(document.value, dict):
        kind = "a list" if isinstance(document.value, list) else "a single value"
        raise UserError(f"{source}:{document.mark(()).line}: is {kind}; write `key: value` lines")
    return document


def parse_value(text: str, source: str) -> Document:
    """Any YAML value, such as the right side of `-s model.depth=[2, 4]`."""
    text = text.removeprefix("\ufeff")
    root = _compose(text, source)
    reader = _Reader(source)
    value = reader.value(root, ())
    if reader.problems:
        raise refusal(reader.problems, source)
    return Document(value, source, text, root)


def plain(text: str) -> None | bool | int | float | str:
    """What an unquoted scalar means. OverflowError: a number that no float or integer holds."""
    if text in NULLS:
        return None
    if text in BOOLS:
        return bool(BOOLS[text])
    if INTEGER.fullmatch(text):
        if len(text) > 20 or abs(int(text)) > LARGEST:
            raise OverflowError(f"is too large; the largest integer is {LARGEST}")
        return int(text)
    if infinite := INFINITE.fullmatch(text):
        return -inf if infinite[1] == "-" else inf
    if text in NANS:
        return nan
    if number := FLOAT.fullmatch(text):
        return _number(text, whole=number[2] is not None and number[3] is None)
    return text


def _number(text: str, whole: bool) -> int | float:
    number = float(text) + 0.0  # -0.0 and 0.0 are one value
    if isinf(number):
        raise OverflowError("is too large for a number; write .inf for no limit")
    if number == 0 and re.search(r"[1-9]", re.split("[eE]", text)[0]):
        raise OverflowError("is too small for a number: it would read as 0")
    return int(number) if whole and number.is_integer() and abs(number) <= EXACT else number


def dotted(path: KeyPath) -> str:
    """The key that a path leads to, as a config's author knows it: no place in a list."""
    keys = [step for step in path if isinstance(step, str)]
    return keys[-1] if keys[:1] in (["sweep"], ["cases"]) and len(keys) > 1 else ".".join(keys)


class _Reader:
    """Nodes -> plain data, gathering every problem on the way."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[str] = []
        self.nodes = 0
        self.around: set[int] = set()

    def complain(self, node: Node, path: KeyPath, problem: str) -> None:
        key = dotted(path)
        where = f"{self.source}:{node.start_mark.line + 1}"
        self.problems.append(f"{where}: {key}: {problem}" if key else f"{where}: {problem}")

    def value(self, node: Node, path: tuple[str | int, ...]) -> Any:
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise UserError(f"{self.source}: holds more than {MOST_NODES} values")
        if isinstance(node, ScalarNode):
            return self.scalar(node, path)
        if id(node) in self.around:
            self.complain(node, path, "this anchor (&) holds itself")
            return None
        self.around.add(id(node))
        if isinstance(node, MappingNode):
            plain_data = self.mapping(node, path)
        else:
            plain_data = [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        self.around.remove(id(node))
        return plain_data

    def mapping(self, node: MappingNode, path: tuple[str | int, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        first_line: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key_node, ScalarNode):
                self.complain(key_node, path, "a list or mapping cannot be a key")
            elif key == "<<" and key_node.style is None:
                self.complain(key_node, path, "merge keys (<<) are not read here; write the keys")
            elif key in values:
                again = f"is written twice, first in line {first_line[key]}; keep one"
                self.complain(key_node, (*path, key), again)
            else:
                first_line[key] = key_node.start_mark.line + 1
                values[key] = self.value(value_node, (*path, key))
        return values

    def scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        if node.style is None:
            try:
                return plain(node.value)
            except OverflowError as error:
                shown = node.value if len(node.value) <= 40 else node.value[:37] + "..."
                self.complain(node, path, f"{one_line(shown)} {error}")
        elif re.search("[\0\ud800-\udfff]", node.value):
            self.complain(node, path, "holds a character (NUL, half a pair) that no text holds")
        return node.value


class _Loader(yaml.SafeLoader):
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Node | None:
        event = self.peek_event()
        if getattr(event, "tag", None) is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            problem = f"tags such as {tag} are not read here; write the plain value"
            raise ComposerError(None, None, problem, event.start_mark)
        if self.depth > DEEPEST:
            raise ComposerError(None, None, "nested too deep for a config", event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _compose(text: str, source: str) -> Node:
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        where = f"{source}:{line}:{column}"
        raise UserError(
            f"{where}: a character (U+{error.character:04X}) that no text file "
            "holds; save the file as plain UTF-8 text"
        ) from None
    except yaml.MarkedYAMLError as error:
        raise UserError(f"{source}:{explain(error, text)}") from None
    except RecursionError:
        raise UserError(f"{source}: nested too deep for a config") from None
    except (ValueError, OverflowError):  # PyYAML on "\UFFFFFFFF" and on %YAML with long numbers
        line = loader.get_mark().line + 1 if loader else 1
        raise UserError(f"{source}:{line}: an escape or number that YAML cannot read") from None
    return node or _compose("~", source)


# What PyYAML says of a text it cannot read, in the words of the person who wrote it.

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
        if key := SPACELESS.fullmatch(line):
            return i, f"a space is missing after '{key[1]}:'"
    return None


def explain(error: yaml.MarkedYAMLError, text: str) -> str:
    """'LINE:COLUMN: problem' in plain words."""
    problem = error.problem or "not readable as YAML"
    mark, began = error.problem_mark or error.context_mark, error.context_mark
    if mark and any(words in problem for words in LAYOUT) and (slip := _layout(text, mark.line)):
        return slip
    words = next((ours for theirs, ours in PLAIN_WORDS.items() if theirs in problem), problem)
    where = f"{mark.line + 1}:{mark.column + 1}: " if mark else " "
    since = ""
    if mark and began and began.line != mark.line:
        since = f" (what began in line {began.line + 1})"
    return f"{where}{words}{since}"


def _layout(text: str, at: int) -> str:
    """A missing space or a wrong column, in line `at` (from 0) or the one above it; or ''."""
    lines = [
        (number, line.rstrip())
        for number, line in enumerate(re.split("\r\n|[\r\n]", text)[: at + 1], start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    for number, line in lines[-2:]:
        if slip := spaceless(line):
            return f"{number}: {slip[1]}"
    if len(lines) < 2 or lines[-1][0] != at + 1:
        return ""
    (above, upper_line), (below, lower_line) = lines[-2:]
    upper, lower = KEY.fullmatch(upper_line), KEY.fullmatch(lower_line)
    if not upper or not lower or not (upper[3] or "").split("#")[0].strip():
        return ""
    columns = len(upper[1]), len(lower[1])
    if columns[0] == columns[1]:
        return ""
    how = "deeper" if columns[1] > columns[0] else "less"
    return (
        f"{below}: line {below} is indented {how} than line {above}; "
        f"write {lower[2]}: in the same column as {upper[2]}:"
    )


# Plain data as YAML text.


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Line breaks are escaped: PyYAML writes a U+0085 in single quotes, and reads a space back."""
    quote = '"' if re.search("[\r\n\x85\u2028\u2029]", text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=quote)


_Dumper.add_representer(str, _text)
# Text such as 1e3, which is a number to us and text to YAML 1.1, is quoted for both.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


def dump(data: Any) -> str:
    """YAML text that `parse` and every YAML 1.1 reader read back to the same values."""
    return yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=100,
    )
