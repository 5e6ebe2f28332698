"""Which pictures a sweep gets, and writing them: one that fails never stops the others."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lnexp.figures import heat, knobs, over_grid, over_layers, over_time, phase, slopes
from lnexp.figures.canvas import UNDATED, house_style, save
from lnexp.figures.drawing import SweepFrames
from lnexp.figures.style import SIZES
from lnexp.messages import UserError
from lnexp.results.axes import find_axis

# File stem -> picture. A new kind of picture is one line.
PICTURES: dict[str, Callable[[SweepFrames], Figure]] = {
    "loss": over_time.loss,
    "gradient_by_layer": over_layers.gradient_by_layer,
    "gradient_heat": heat.picture,
    "gradient_over_steps": over_time.gradient_over_steps,
    "gradient_ratio": over_grid.gradient_ratio,
    "update_ratio": over_layers.update_ratio,
    "stream_by_layer": over_layers.stream_by_layer,
    "matrix_by_layer": over_layers.matrix_by_layer,
    "branch_by_layer": over_layers.branch_by_layer,
    "laws": slopes.picture,
    "end_gap": over_grid.end_gap,
    "lr": knobs.lr,
    "eps": knobs.eps,
    "phase": phase.picture,
    "verdicts": over_grid.verdicts,
    "survival": over_time.still_finite_over_steps,
}
# Kinds that not every sweep has: why this one has not, or "". Drawn nevertheless if asked for.
LACKS: dict[str, Callable[[SweepFrames], str]] = {
    "gradient_by_layer": over_layers.lacks_gradients,
    "gradient_heat": over_layers.lacks_gradients,
    "gradient_over_steps": over_layers.lacks_gradients,
    "update_ratio": over_layers.lacks_updates,
    "stream_by_layer": over_layers.lacks_stream,
    "matrix_by_layer": over_layers.lacks_sublayers,
    "branch_by_layer": over_layers.lacks_sublayers,
    "laws": slopes.lacks_laws,
    "lr": knobs.lacks_lr,
    "eps": knobs.lacks_eps,
    "phase": phase.lacks_plane,
}


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


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
    facet: str | None = None,
    kinds: Sequence[str] | None = None,
    formats: Sequence[str] = ("png", "svg"),
    at_steps: Sequence[int] | None = None,
    size: str = "paper",
    note: Callable[[str], None] = _to_stderr,
    warn: Callable[[str], None] = _to_stderr,
) -> list[Path]:
    """Write the sweep's pictures into `folder`: those it can have, or the kinds asked for.

    Kinds that it cannot have are told to `note`, what could not be drawn to `warn`.
    """
    by = by and find_axis(by, axes, "--by")
    style = style and find_axis(style, axes, "--style")
    facet = facet and find_axis(facet, axes, "--facet")
    if facet and facet in (by, style):
        raise UserError(f"--facet {facet}: it is also asked to be colour or line style; write one")
    if size not in SIZES:
        raise UserError(f"--size {size}: write {' or '.join(SIZES)}")
    if unknown := [kind for kind in kinds or () if kind not in PICTURES]:
        raise UserError(f"--kind {' '.join(unknown)}: no kind of plot; there are {_list()}")
    if kinds is not None and not kinds:
        raise UserError(f"--kind: none was named; there are {_list()}")
    unknown = [kind for kind in formats if kind not in UNDATED]
    if unknown or not formats:
        raise UserError(f"--format {' '.join(unknown)}: no format; write {', '.join(UNDATED)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UserError(f"{folder}: the folder of pictures cannot be made: {why}") from None
    sweep = SweepFrames(runs, steps, layers, axes, name, by, style, facet, at_steps)
    written, lacking = [], []
    with house_style(size):
        for stem in PICTURES if kinds is None else [kind for kind in PICTURES if kind in kinds]:
            try:
                if kinds is None and stem in LACKS and LACKS[stem](sweep):
                    lacking.append(stem)
                    continue
                figure = PICTURES[stem](sweep)
                written += save(figure, folder, stem, formats)
                figure.clear()  # frees its artists now; a figure refers to itself
            except Exception as error:  # a picture is never worth a result
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                warn(f"{folder / stem}: this plot failed, the others go on: {reason}")
    if lacking:
        note(f"{name} has no {', '.join(lacking)}; --kind with one of them says why")
    return written


def _list() -> str:
    return ", ".join(PICTURES)
