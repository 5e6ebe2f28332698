"""The commands that meet other tools: their logs, their formats, their models."""

from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, Out, Results


def export(
    results: Results,
    to: Annotated[str, typer.Option(metavar="tensorboard|wandb|parquet|json")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="DIR", help="Folder (RESULTS/export/FORMAT)."),
    ] = None,
) -> None:
    """Write results for other tools: TensorBoard, Weights & Biases, Parquet, JSON."""
    from .commands.export import export as command

    command(results, to, out)


def import_(
    log: Annotated[
        Path,
        typer.Argument(help="A text log of nanoGPT's kind, trainer_state.json, CSV, JSON lines."),
    ],
    map_: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="OURS=THEIRS", help="loss=train/loss; may be repeated."),
    ] = None,
    baseline: Annotated[
        float | None,
        typer.Option(metavar="NATS", help="Loss of guessing by frequency, to judge against."),
    ] = None,
    name: Annotated[str, typer.Option(help="Of the run (default: the file's).")] = "",
    out: Out = Path("results"),
    force: Annotated[bool, typer.Option("--force", help="Replace a run of that name.")] = False,
) -> None:
    """Make a run folder of another tool's training log, for verdicts and plots."""
    from .commands.import_ import import_ as command

    command(log, out, name, map_ or [], baseline, force)


def inspect(
    model: Annotated[
        str, typer.Argument(help="module:callable that returns a model, or a run folder.")
    ],
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its weights: .pt or .safetensors.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Look at norms, eps, placement, weights and Adam's moments of anybody's model."""
    from .commands.inspect import inspect as command

    command(model, checkpoint, json)
