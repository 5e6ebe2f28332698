"""lnexp: a laboratory for the training stability of deep transformers."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .analysis.tidy import Frames

__version__ = "0.1.0"


def load(path: "str | Path") -> "Frames":
    """The tables .runs, .steps, .layers, .events of results/, a sweep folder or a run folder."""
    from .analysis.tidy import frames  # pandas, when it is asked for

    return frames(path)
