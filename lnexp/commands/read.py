"""lnexp show and lnexp plot: from the CSVs alone, without torch."""

import os
import sys
from pathlib import Path

from rich.console import Console

from ..analysis.claims import ClaimResult
from ..analysis.load import Results, load
from ..errors import UserError
from ..lines import one_line

Judged = dict[str, list[ClaimResult]]


def print_tables(results: Results) -> None:
    from ..present.tables import tables

    Console(highlight=False).print(tables(results))


def print_claims(results: Judged) -> None:
    if results:
        from ..present.claims import claims_table

        Console(highlight=False).print(claims_table(results))


def show(path: Path, formats: list[str], claims: bool, watch: bool) -> int:
    """Exit code: 0 done, 130 interrupted while watching."""
    from ..present import tables

    asked = [*formats, *["claims"] * claims, *["watch"] * watch]
    if len(formats) > 1 or (watch and len(asked) > 1):
        raise UserError(f"--{' --'.join(asked)}: write one of them")
    if watch:
        from .watch import watch as follow

        return follow(path)
    results = load(path)
    if claims:
        _show_claims(results, formats)
        return 0
    match formats:
        case ["json"]:
            print(tables.as_json(results), end="")
        case ["csv"]:
            print(tables.as_csv(results.runs), end="")
        case ["tex"]:
            print(tables.as_tex(results), end="")
        case _:
            print_tables(results)
    return 0


def _show_claims(results: Results, formats: list[str]) -> None:
    from ..present.claims import claims_json
    from .claims import judged

    if formats not in ([], ["json"]):
        raise UserError(f"--claims --{formats[0]}: claims are printed as a table or with --json")
    found = judged(results)
    if formats:
        print(claims_json(found), end="")
    elif found:
        print_claims(found)
    else:
        print("no sweep here states a claim")


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
    from ..present.plots import plot_sweep

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
