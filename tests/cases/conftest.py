"""A config typed into a file, and what the command says to it."""

import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.cli import Said, lnexp
from tests.runs.small import write_config


class NoPool:
    """The pool's face without its processes, where a case is not about them."""

    def __init__(self, **_: Any) -> None: ...

    def __enter__(self) -> "NoPool":
        return self

    def __exit__(self, *_: object) -> None: ...

    def stop(self) -> None: ...

    def schedule(self, work: Callable[..., Any], args: list[Any]) -> Future:
        future: Future = Future()
        try:
            future.set_result(work(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run_here(*words: object, cwd: Path) -> Said:
    """`lnexp run WORDS`, trained in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lnexp.runs.local.ProcessPool", NoPool)
        return lnexp("run", *words, cwd=cwd)


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., list[str]]:
    """The lines that refuse a config: exit code 2, no traceback, nothing trained or written."""

    def refused(text: str, *words: object) -> list[str]:
        write_config(tmp_path, text)
        before = set(tmp_path.rglob("*"))
        said = lnexp("run", "small.yaml", *words, cwd=tmp_path)
        assert (said.code, said.out) == (2, ""), said.err
        assert "Traceback" not in said.err and set(tmp_path.rglob("*")) == before
        return said.err.splitlines()

    return refused


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., dict]:
    """`lnexp plan --json` of a config that is fine."""

    def planned(text: str, *words: object) -> dict:
        write_config(tmp_path, text)
        said = lnexp("plan", "small.yaml", "--json", *words, cwd=tmp_path)
        assert said.code == 0, said.err
        return json.loads(said.out)[0]

    return planned


@pytest.fixture
def names(tmp_path: Path) -> Callable[..., list[str]]:
    """The run folders that a config stands for."""

    def names(text: str, *words: object) -> list[str]:
        write_config(tmp_path, text)
        said = lnexp("run", "small.yaml", "--dry-run", *words, cwd=tmp_path)
        assert said.code == 0, said.err
        return said.out.split()

    return names
