"""Type a command as a user would."""

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from lnexp.cli import main


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


def lnexp(*words: object, cwd: Path | None = None, **env: str) -> Said:
    """`lnexp WORDS`: in this process (it has torch already), or in one of its own for an `env`."""
    return _apart(words, cwd, env) if env else _here(words, cwd)


def _apart(words: tuple[object, ...], cwd: Path | None, env: dict[str, str]) -> Said:
    done = subprocess.run(
        [sys.executable, "-m", "lnexp", *map(str, words)],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "100", **env},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    return Said(done.returncode, done.stdout, done.stderr)


def _here(words: tuple[object, ...], cwd: Path | None) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["lnexp", *map(str, words)]),
        mock.patch.dict(os.environ, {"COLUMNS": "100"}),
    ):
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return Said(code, out.getvalue(), err.getvalue())
