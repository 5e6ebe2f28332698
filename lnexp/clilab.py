"""The commands that train sweeps of their own to answer one question."""

from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, Jobs, Out, Set


def probe(
    config: Annotated[str, typer.Argument(help="A config file or the name of an experiment.")],
    steps: Annotated[str, typer.Option(help="Steps to look at; the last one ends it.")] = "0,5,20",
    out: Out = Path("results"),
    set_: Set = None,
    jobs: Jobs = "auto",
    json: AsJson = False,
) -> None:
    """Measure how readings change over depth, at initialisation and after a few steps."""
    from .commands import probe as command
    from .commands.jobs import executor as place
    from .commands.jobs import workers

    where = place("local", "", 0.0, jobs)
    code = command.probe(config, steps, out, set_ or [], workers(jobs), where, json)
    raise typer.Exit(code)


def boundary(
    config: Annotated[str, typer.Argument(help="A config file or the name of an experiment.")],
    knob: Annotated[str, typer.Option(help="The setting to turn, such as train.lr.")],
    high: Annotated[float, typer.Option(help="Where the scan ends.")],
    low: Annotated[float | None, typer.Option(help="Where it begins.")] = None,
    points: Annotated[int, typer.Option(help="Values of the first, coarse scan.")] = 6,
    resolution: Annotated[
        float, typer.Option(help="The edge is bracketed within this factor.")
    ] = 1.25,
    ramp: Annotated[
        bool, typer.Option("--ramp", help="Instead: let train.lr grow to HIGH within each run.")
    ] = False,
    out: Out = Path("results"),
    set_: Set = None,
    jobs: Jobs = "auto",
    json: AsJson = False,
) -> None:
    """Find the largest stable value of a knob, cell by cell."""
    from .commands import boundary as command
    from .commands.jobs import executor as place
    from .commands.jobs import workers

    place_ = (out, set_ or [], workers(jobs), place("local", "", 0.0, jobs), json)
    if ramp:
        raise typer.Exit(command.ramp(config, knob, low, high, *place_))
    raise typer.Exit(command.boundary(config, knob, low, high, points, resolution, *place_))


def rescue(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a failed run.")],
    try_: Annotated[
        list[str] | None,
        typer.Option("--try", metavar="KEY=VALUE", help="One more change to try (repeatable)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="DIR", help="Where results go (beside the sweep)."),
    ] = None,
    jobs: Jobs = "auto",
    json: AsJson = False,
) -> None:
    """Train a failed run again from before its failure, with one change each."""
    from .commands import rescue as command
    from .commands.jobs import executor as place
    from .commands.jobs import workers

    where = place("local", "", 0.0, jobs)
    code = command.rescue(run_folder, try_ or [], out, workers(jobs), where, json)
    raise typer.Exit(code)
