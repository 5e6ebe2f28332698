"""Which pictures a sweep gets, and writing them: one that fails never stops the others."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lnexp.errors import UserError
from lnexp.present import over_grid, over_time, survival
from lnexp.present.grid import find_axis
from lnexp.present.page import UNDATED, house_style, save
from lnexp.present.subject import Sweep

# File stem -> picture. A new kind of picture is one line.
PICTURES: dict[str, Callable[[Sweep], Figure]] = {
    "loss": over_time.loss,
    "gradient_by_layer": over_time.gradient_by_layer,
    "gradient_over_steps": over_time.gradient_over_steps,
    "gradient_ratio": over_grid.gradient_ratio,
    "end_gap": over_grid.end_gap,
    "verdicts": over_grid.verdicts,
    "survival": survival.picture,
}


def plot_sweep(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    layers: pd.DataFrame,
    axes: Sequence[str],
    folder: Path,
    *,
    name: str,
    by: str | None = None,
    style: str | None = None,
    formats: Sequence[str] = ("png", "svg"),
    at_steps: Sequence[int] | None = None,
    warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> list[Path]:
    """Write the sweep's pictures into `folder`; what could not be drawn is told to `warn`."""
    by = by and find_axis(by, axes, "--by")
    style = style and find_axis(style, axes, "--style")
    unknown = [kind for kind in formats if kind not in UNDATED]
    if unknown or not formats:
        raise UserError(f"--format {' '.join(unknown)}: no format; write {', '.join(UNDATED)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UserError(f"{folder}: the folder of pictures cannot be made: {why}") from None
    sweep = Sweep(runs, steps, layers, axes, name, by, style, at_steps)
    written = []
    with house_style():
        for stem, picture in PICTURES.items():
            try:
                figure = picture(sweep)
                written += save(figure, folder, stem, formats)
                figure.clear()  # frees its artists now; a figure refers to itself
            except Exception as error:  # a picture is never worth a result
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                warn(f"{folder / stem}: this plot failed, the others go on: {reason}")
    return written
