"""The command line: parse, delegate, print. Heavy imports stay inside the commands."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from lnexp import __version__
from lnexp.commands.jobs import named_executor, workers
from lnexp.messages import UserError, one_line, say

Out = Annotated[Path, typer.Option("-o", "--out", help="Folder that results go to.")]
Set = Annotated[
    list[str] | None,
    typer.Option("-s", "--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]
Jobs = Annotated[
    str, typer.Option("-j", "--jobs", metavar="N|auto", help="Runs at a time (auto: cores).")
]
Results = Annotated[Path, typer.Argument(help="results/, one sweep folder or one run folder.")]
Config = Annotated[str, typer.Argument(help="A config file or the name of an experiment.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

app = typer.Typer(
    name="lnexp",
    help="A laboratory for the training stability of deep transformers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def command(name: str | None = None, **options: Any) -> Callable[..., Callable[..., None]]:
    """A command; what its function returns is the exit code, None for 0. Its reader may go away
    (`| head`), and its disk may be full."""

    def register(function: Callable[..., int | None]) -> Callable[..., None]:
        @app.command(name, **options)
        @wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> None:
            try:
                code = function(*args, **kwargs)
                sys.stdout.flush()
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(0) from None
            except OSError as error:
                if os.environ.get("LNEXP_DEBUG") == "1":
                    raise
                say(f"lnexp: {error}")
                raise typer.Exit(1) from None
            raise typer.Exit(code or 0)

        return guarded

    return register


@command()
def run(
    config: Annotated[
        list[str], typer.Argument(help="Files, folders or names of shipped experiments.")
    ],
    out: Out = Path("results"),
    set_: Set = None,
    jobs: Jobs = "auto",
    force: Annotated[bool, typer.Option("--force", help="Train again what is finished.")] = False,
    retry: Annotated[
        str,
        typer.Option(
            metavar="failed|interrupted|all",
            help="Of what is not finished, train the runs that failed, those that were "
            "interrupted, or all, also those that never began.",
        ),
    ] = "all",
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="End the sweep when the first run fails.")
    ] = False,
    extend: Annotated[
        str,
        typer.Option(
            metavar="VERDICTS",
            help="Go on with the finished runs of these verdicts alone: too_short,plateau.",
        ),
    ] = "",
    steps: Annotated[
        str,
        typer.Option(metavar="2x|N", help="With --extend: times the steps done, or steps in all."),
    ] = "",
    executor: Annotated[
        str, typer.Option(metavar="local|ray", help="This machine, or a Ray cluster.")
    ] = "local",
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The cluster's head (ray); none: this machine.")
    ] = "",
    gpus_per_run: Annotated[
        float, typer.Option("--gpus-per-run", help="Of each run on the cluster, such as 0.25.")
    ] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would train.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 if a claim is refuted.")] = False,
) -> int:
    """Train every point of a sweep; what is finished is skipped."""
    from lnexp.commands.run import Choice, run

    choice = Choice(force, retry, extend, steps)
    where = named_executor(executor, address, gpus_per_run, jobs)
    how = (workers(jobs), choice, dry_run, check, fail_fast, where)
    return run(config, out, set_ or [], *how)


@command()
def plan(config: list[str], set_: Set = None, json: AsJson = False) -> None:
    """Show what would run: the grid, parameters, FLOPs, memory, eps, init; no training."""
    from lnexp.commands.plan import plan

    plan(config, set_ or [], json)


@command()
def plot(
    results: Results,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND,...", help="loss,lr,...; default: all there can be.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Sweep key that colours the curves.")] = None,
    style: Annotated[str | None, typer.Option(help="Sweep key that styles the lines.")] = None,
    facet: Annotated[str | None, typer.Option(help="Sweep key that gets a panel a value.")] = None,
    format_: Annotated[str, typer.Option("--format", help="png, svg, pdf; several: png,svg.")] = (
        "png,svg"
    ),
    steps: Annotated[
        str | None, typer.Option(help="Steps of the profiles by layer: 0,5,20,60.")
    ] = None,
    size: Annotated[
        str, typer.Option(metavar="paper|slide", help="slide: letters for a projector.")
    ] = "paper",
) -> int:
    """Draw comparison plots into the sweep's plots/ folder."""
    from lnexp.commands.read import plot

    return plot(results, by, style, format_, steps, kind=kind, facet=facet, size=size)


@command()
def show(
    results: Results,
    json: AsJson = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    tex: Annotated[bool, typer.Option("--tex", help="Print a LaTeX table of the cells.")] = False,
    claims: Annotated[bool, typer.Option("--claims", help="Print the claims, judged.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Redraw while the sweep trains.")] = False,
) -> int:
    """Print the table of runs and cells."""
    from lnexp.commands.read import show

    forms = [name for name, on in (("json", json), ("csv", csv), ("tex", tex)) if on]
    return show(results, forms, claims, watch)


@command()
def explain(run_folder: RunFolder, json: AsJson = False) -> None:
    """Say in words what happened to a run, where a bad value was born, and what to try."""
    from lnexp.commands.read import explain

    explain(run_folder, json)


@command()
def report(
    results: Results,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: RESULTS/report.html.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve the page here, made anew as results change.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="With --watch; 0: any that is free.")
    ] = None,
) -> int:
    """Write one HTML file that shows every run, readable offline."""
    from lnexp.commands.report import report

    return report(results, html, watch, port)


@command()
def probe(
    config: Config,
    steps: Annotated[str, typer.Option(help="Steps to look at; the last one ends it.")] = "0,5,20",
    out: Out = Path("results"),
    set_: Set = None,
    jobs: Jobs = "auto",
    json: AsJson = False,
) -> int:
    """Measure how readings change over depth, at initialisation and after a few steps."""
    from lnexp.commands.probe import probe

    return probe(config, steps, out, set_ or [], workers(jobs), json)


@command()
def boundary(
    config: Config,
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
) -> int:
    """Find the largest stable value of a knob, cell by cell."""
    from lnexp.commands import boundary

    how = (out, set_ or [], workers(jobs), json)
    if ramp:
        return boundary.ramp(config, knob, low, high, *how)
    return boundary.boundary(config, knob, low, high, points, resolution, *how)


@command()
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
) -> int:
    """Train a failed run again from before its failure, with one change each."""
    from lnexp.commands.rescue import rescue

    return rescue(run_folder, try_ or [], out, workers(jobs), json)


@command(context_settings={"ignore_unknown_options": True})  # -1 is a number
def norm(
    numbers: Annotated[list[str], typer.Argument(help="2 4 1 3, or '3 5 2 6; 2 4 1 3'.")],
    norm_: Annotated[str, typer.Option("--norm", help="One or more, with commas.")] = "layernorm",
    eps: Annotated[float | None, typer.Option(help="Default: the norm's own.")] = None,
    gain: Annotated[str, typer.Option(help="One number, or one a feature, with commas.")] = "",
    bias: Annotated[str, typer.Option(help="One number, or one a feature, with commas.")] = "",
    dtype: Annotated[str, typer.Option(help="fp64, fp32, bf16, fp16.")] = "fp64",
    json: AsJson = False,
) -> None:
    """Normalise a few numbers, step by step."""
    from lnexp.commands.norm import norm

    norm(numbers, norm_, eps, gain, bias, dtype, json)


@command()
def sample(
    run_folder: RunFolder,
    prompt: Annotated[str, typer.Option(help="Text to go on from.")] = "",
    length: Annotated[int, typer.Option(min=1, help="Letters to draw.")] = 300,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the draws.")] = 0,
) -> None:
    """Print text drawn from a finished run."""
    from lnexp.sample import load_sampler

    print(load_sampler(run_folder).generate(prompt, length, temperature, seed))


@command()
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
    from lnexp.commands.inspect import inspect

    inspect(model, checkpoint, json)


@command("import")
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
    from lnexp.commands.exchange import import_

    import_(log, out, name, map_ or [], baseline, force)


@command()
def export(
    results: Results,
    to: Annotated[str, typer.Option(metavar="tensorboard|wandb|parquet|json")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="DIR", help="Folder (RESULTS/export/FORMAT)."),
    ] = None,
) -> None:
    """Write results for other tools: TensorBoard, Weights & Biases, Parquet, JSON."""
    from lnexp.commands.exchange import export

    export(results, to, out)


@command()
def configs(
    name: Annotated[str | None, typer.Argument(help="Copy this experiment here.")] = None,
) -> None:
    """List the shipped experiments, or copy one into this folder."""
    from lnexp.commands.configs import configs

    configs(name)


@command()
def schema() -> None:
    """Print the JSON Schema of a config file, for editors."""
    from lnexp.commands.configs import schema

    print(schema())


@command()
def doctor(json: AsJson = False) -> None:
    """Show versions, device, threads and the precisions that work here."""
    from lnexp.commands.doctor import doctor

    doctor(json)


def version(show: bool) -> None:
    if show:
        print(f"lnexp {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> Any:
    """Errors of the user are one or two lines on standard error and exit code 2."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as a daemon's are
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):  # an ASCII console gets escapes, never a failure
            stream.reconfigure(errors="backslashreplace")
    try:
        return app()
    except UserError as error:
        if os.environ.get("LNEXP_DEBUG") == "1":
            raise
        for problem in error.problems:
            say(one_line(problem))
        sys.exit(2)
