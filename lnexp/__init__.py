"""lnexp: a laboratory for the training stability of deep transformers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lnexp.attach.watching import autopsy, watch
    from lnexp.results.load import Frames

__all__ = ["autopsy", "load", "watch"]

__version__ = "0.1.0"


def load(path: "str | Path") -> "Frames":
    """The tables .runs, .steps, .layers, .events of results/, a sweep folder or a run folder."""
    from lnexp.results.load import frames  # brings pandas along

    return frames(path)


def __getattr__(name: str) -> Any:
    """`watch` and `autopsy` bring torch along, so they are looked up when they are asked for."""
    if name not in ("watch", "autopsy"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lnexp.attach import watching

    return getattr(watching, name)
