"""Files: what a user named is read or said why not; what is written is whole; JSON is strict.

Free of torch and pandas.
"""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any


class Unreadable(Exception):
    """Why there is nothing to read, as in 'PATH: <why>'."""


def read_bytes(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if S_ISDIR(mode):
            raise Unreadable("is a folder")
        if not S_ISREG(mode):  # a pipe would be waited for, a device read for ever
            raise Unreadable("is no regular file")
        return path.read_bytes()
    except FileNotFoundError:
        raise Unreadable("no such file") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise Unreadable(f"cannot be read: {why.lower()}") from None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A failing write says where: the error of an open file knows no path."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


@contextmanager
def draft_of(path: Path, *, one_writer: bool = True) -> Iterator[Path]:
    """A name to write to, which becomes `path` at the end: a reader sees the whole file or the one
    before it. After an error, such as a full disk, no draft is left; the one of a killed writer is
    written over by the next, where there is one writer at a time."""
    own = "" if one_writer else f".{os.getpid()}-{threading.get_ident()}"
    draft = path.with_name(f"{path.name}{own}.tmp")
    try:
        yield draft
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes | memoryview) -> None:
    with naming(path), draft_of(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def plain(value: Any) -> Any:
    """What JSON has: numpy's numbers unwrapped, pandas' <NA> as null, a number that is not finite
    as its word."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if type(value).__module__ == "numpy":
        value = value.item()
    if type(value).__name__ == "NAType":
        return None
    if isinstance(value, float) and not isfinite(value):
        return str(value)  # nan, inf or -inf
    return value


def strict_json(value: Any, **layout: Any) -> str:
    """JSON that a strict parser reads, indented unless `layout` says otherwise."""
    layout = layout or {"indent": 1}
    return json.dumps(plain(value), allow_nan=False, ensure_ascii=False, **layout) + "\n"
