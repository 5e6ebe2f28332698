"""`-s KEY=VALUE`: a document with its overrides, and the place of every value in both.

Free of torch and pandas.
"""

import copy
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lnexp.config.document import Document, dotted, parse_value
from lnexp.config.hints import TOP, unknown
from lnexp.config.rules import is_list
from lnexp.config.schema import KEYS
from lnexp.messages import UserError, refusal, short

TEXT_KEYS = ("name", "question", *(key for key, field in KEYS.items() if field.annotation is str))
ALONE = ("name", "question", "seeds")  # top-level keys that -s may set
OFF = "measure.level"  # the key whose `off` is a word, although YAML reads it as false


class PlacedConfig:
    """A config document with -s applied: plain data, and where each value was written."""

    def __init__(self, document: Document, path: Path, overrides: Sequence[str]) -> None:
        self.data: dict[str, Any] = copy.deepcopy(document.value)
        self._document = document
        self._set: dict[tuple[str | int, ...], tuple[str, Document | None]] = {}
        _absolute_paths(self.data, path.absolute().parent)
        problems = [p for text in overrides for p in self._apply(text)]
        if problems:
            raise refusal(problems, "-s")
        self.data = self._words(self.data)

    def place(self, *path: str | int) -> str:
        """'file.yaml:4', or '-s model.depth=4' where an override wrote it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._set:
                return self._set[path[:length]][0]
        return f"{self._document.source}:{self._document.mark(path).line}"

    def at(self, *path: str | int) -> str:
        """The place and the dotted key, to open a line of complaint; -s names its key itself."""
        place = self.place(*path)
        return place if place.startswith("-s ") else f"{place}: {dotted(path)}"

    def written(self, *path: str | int) -> str:
        """A scalar as its author wrote it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._set:
                place, value = self._set[path[:length]]
                if value is None:
                    return place.partition("=")[2]
                return value.mark(path[length:]).text
        return self._document.mark(path).text

    def value_place(self, line: int, *path: str | int) -> str:
        """The place of a line (from 0) of a value, which may stand below its key."""
        place = self.place(*path)
        if place.startswith("-s "):
            return place
        return f"{self._document.source}:{self._document.mark(path).begins + line}"

    def _apply(self, override: str) -> list[str]:
        place = f"-s {short(override)}"
        key, equals, text = override.partition("=")
        key = key.strip()
        if re.search("[\ud800-\udfff]", text):
            return [f"-s {short(key)}: the value is not UTF-8 text"]
        if not equals:
            return [f"{place}: write KEY=VALUE, such as model.depth=4"]
        if key not in KEYS and key not in ALONE:
            if key in TOP:
                return [f"{place}: write a dotted key, such as model.depth=4"]
            return [f"{place}: {unknown(key, '')}"]
        parsed = None
        if key in TEXT_KEYS and text[:1] not in ("[", '"', "'"):
            value: Any = text
        else:
            try:
                parsed = parse_value(text, place)
            except UserError as error:
                return [
                    re.sub(r"^(:\d+)*: ", f"{place}: ", p.removeprefix(place))
                    for p in error.problems
                ]
            value = parsed.value
        if key == "data.path":
            value = _absolute(value, Path.cwd())
        self._put(key, value, (place, parsed))
        return []

    def _put(self, key: str, value: Any, origin: tuple[str, Document | None]) -> None:
        if key in ALONE:
            self.data[key] = value
            self._set[(key,)] = origin
            return
        self._leave_cases(key)
        several = isinstance(value, list) and (
            not is_list(key) or any(isinstance(item, list) for item in value)
        )
        sweep = self.data.setdefault("sweep", {})
        if several or (isinstance(sweep, dict) and key in sweep):
            if isinstance(sweep, dict):
                sweep[key] = value if several else [value]
            self._set[("sweep", key)] = origin
            if not several:
                self._set[("sweep", key, 0)] = origin
            return
        section, _, leaf = key.partition(".")
        group = self.data.setdefault(section, {})
        if isinstance(group, dict):
            group[leaf] = value
        self._set[(section, leaf)] = origin

    def _words(self, value: Any, *path: str | int) -> Any:
        """The data with `off` as written where it is a level."""
        if isinstance(value, dict):
            return {key: self._words(item, *path, key) for key, item in value.items()}
        if isinstance(value, list):
            return [self._words(item, *path, i) for i, item in enumerate(value)]
        if value is False and self.written(*path).lower() == "off":
            key = ".".join(step for step in path if isinstance(step, str))
            return "off" if key.removeprefix("sweep.").removeprefix("cases.") == OFF else False
        return value

    def _leave_cases(self, key: str) -> None:
        """An overridden key holds for every case."""
        cases = self.data.get("cases")
        for case in cases if isinstance(cases, list) else []:
            if isinstance(case, dict):
                case.pop(key, None)


def _absolute_paths(data: dict[str, Any], folder: Path) -> None:
    """Make every data.path of a file absolute: it is relative to the file's own folder."""
    cases = data.get("cases")
    spots = [(data.get("data"), "path"), (data.get("sweep"), "data.path")]
    spots += [(case, "data.path") for case in cases] if isinstance(cases, list) else []
    for group, key in spots:
        if isinstance(group, dict) and key in group:
            group[key] = _absolute(group[key], folder)


def _absolute(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_absolute(item, folder) for item in value]
    if isinstance(value, str) and value:
        return str(folder / os.path.expanduser(value))
    return value
