"""Reading what a user named: a regular file, or one clause that says what it is instead.

Free of torch and pandas.
"""

from pathlib import Path
from stat import S_ISDIR, S_ISREG


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
