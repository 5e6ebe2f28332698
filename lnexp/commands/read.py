"""lnexp show, plot and explain: from the CSVs alone, without torch."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

from lnexp.commands.jobs import INTERRUPTED
from lnexp.messages import UserError, one_line
from lnexp.results.load import Results, find_run, load
from lnexp.results.runs_csv import is_locked
from lnexp.terminal import summary
from lnexp.terminal.live import ASCII_BARS, BARS, live
from lnexp.terminal.sheet import display

if TYPE_CHECKING:
    from lnexp.claims.judge import ClaimResult

SECONDS = 1.0  # between two looks
SHARE = 5  # reading takes at most one part in so many of the time


def show(path: Path, formats: list[str], claims: bool, watch: bool) -> int:
    """Exit code: 0 done, 130 interrupted while watching."""
    asked = [*formats, *["claims"] * claims, *["watch"] * watch]
    if len(formats) > 1 or (watch and len(asked) > 1):
        raise UserError(f"--{' --'.join(asked)}: write one of them")
    if watch:
        return follow(path)
    results = load(path)
    if claims:
        _show_claims(results, formats)
        return 0
    match formats:
        case ["json"]:
            print(summary.as_json(results), end="")
        case ["csv"]:
            print(summary.as_csv(results.runs), end="")
        case ["tex"]:
            print(summary.as_tex(results), end="")
        case _:
            print_tables(results)
    return 0


def _show_claims(results: Results, formats: list[str]) -> None:
    from lnexp.claims.judge import judged
    from lnexp.claims.show import claims_json

    if formats not in ([], ["json"]):
        raise UserError(f"--claims --{formats[0]}: claims are printed as a table or with --json")
    claims = judged(results)
    if formats:
        print(claims_json(claims), end="")
    elif claims:
        print_claims(claims)
    else:
        print("no sweep here states a claim")


def print_tables(results: Results) -> None:
    display(summary.tables(results))


def print_claims(results: "dict[str, list[ClaimResult]]") -> None:
    if results:
        from lnexp.claims.show import claims_table

        display(claims_table(results))


def follow(path: Path) -> int:
    """lnexp show --watch: until no sweep there is in training any more; then the ordinary tables.

    Exit code: 0 the training ended, 130 interrupted.
    """
    if not sys.stdout.isatty():
        raise UserError("--watch redraws a terminal, which standard output is not; leave it out")
    console = Console(highlight=False)
    bars = BARS if can_print(BARS, console.encoding) else ASCII_BARS
    results, running = load(path), True
    try:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as screen:
            while running:
                running = in_training(results)
                began = time.monotonic()
                results = load(path)  # after the look at the lock: what it ended with is there
                screen.update(live(results, console.size.height, bars), refresh=True)
                if running:
                    time.sleep(max(SECONDS, SHARE * (time.monotonic() - began)))
            screen.update("", refresh=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    print_tables(results)
    return 0


def in_training(results: Results) -> bool:
    """Whether a process works on one of the sweeps."""
    firsts = results.runs.drop_duplicates("sweep")["folder"]
    return any(is_locked(Path(folder).parent.parent) for folder in firsts)


def can_print(letters: str, encoding: str) -> bool:
    try:
        letters.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def plot(
    path: Path,
    by: str | None,
    style: str | None,
    format_: str,
    steps: str | None,
    *,
    kind: str | None = None,
    facet: str | None = None,
    size: str = "paper",
) -> int:
    """Exit code: 0 done, 1 a picture could not be made."""
    os.environ["MPLBACKEND"] = "Agg"  # matplotlib fails at import where it names no backend
    from lnexp.figures.plots import plot_sweep

    formats = _words(format_)
    kinds = None if kind is None else _words(kind)
    at_steps = step_numbers(steps) if steps is not None else None
    results = load(path)
    written: list[Path] = []
    failed: list[str] = []
    frames = results.steps(), results.layers()
    for sweep, axes in results.axes.items():
        runs, step_rows, layer_rows = (
            frame.loc[frame["sweep"] == sweep].reset_index(drop=True)
            for frame in (results.runs, *frames)
        )
        written += plot_sweep(
            runs,
            step_rows,
            layer_rows,
            axes,
            _folder(path, sweep),
            name=sweep,
            by=by,
            style=style,
            facet=facet,
            kinds=kinds,
            formats=formats,
            at_steps=at_steps,
            size=size,
            note=results.notes.append,
            warn=failed.append,
        )
    for text in [f"note: {note}" for note in results.notes] + failed:
        print(one_line(text), file=sys.stderr)
    for file in written:
        print(file)
    return 1 if failed else 0


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _folder(path: Path, sweep: str) -> Path:
    """A sweep's pictures stand beside its runs; those of one run in the run's own folder."""
    whole = (path / "points.json").is_file() or (path / "config.yaml").is_file()
    return (path if whole else path / sweep) / "plots"


def step_numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) <= 18 for word in words):
        raise UserError(f"--steps {text}: write step numbers with commas: 0,5,20")
    return [int(word) for word in words]


def explain(path: Path, json: bool) -> None:
    from lnexp.explain.explain import explain
    from lnexp.explain.show import as_json, in_words

    explanation = explain(find_run(path))
    if json:
        print(as_json(explanation), end="")
    else:
        display(in_words(explanation))
