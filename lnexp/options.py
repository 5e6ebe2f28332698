"""What commands have in common: options, and a reader that may go away."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from .console import say

Out = Annotated[Path, typer.Option("-o", "--out", help="Folder that results go to.")]
Set = Annotated[
    list[str] | None,
    typer.Option("-s", "--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]
Results = Annotated[Path, typer.Argument(help="results/, one sweep folder or one run folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Jobs = Annotated[
    str, typer.Option("-j", "--jobs", metavar="N|auto", help="Runs at a time (auto: cores).")
]


def guarded(function: Callable[..., None]) -> Callable[..., None]:
    """For a command whose reader may go away (`| head`) and whose disk may be full."""

    @wraps(function)
    def guard(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as error:
            if os.environ.get("LNEXP_DEBUG") == "1":
                raise
            say(f"lnexp: {error}")
            raise typer.Exit(1) from None

    return guard
