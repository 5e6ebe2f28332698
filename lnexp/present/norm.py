"""A worked example in the terminal."""

from collections.abc import Sequence

from rich.console import Console

from .sheet import Column, Sheet

Values = list[list[float]]  # rows x features; a single column: one value a row


def print_steps(
    console: Console,
    norm: str,
    equation: str,
    below: Sequence[str],
    steps: Sequence[tuple[str, Values]],
) -> None:
    """One line a step and row."""
    lines = [
        (name if row == 0 else "", str(row + 1), *(f"{v:.6g}" for v in values[row]))
        for name, values in steps
        for row in range(len(values))
    ]
    width = max(len(line) for line in lines)
    filled = [line + ("",) * (width - len(line)) for line in lines]
    names, rows, *features = (list(column) for column in zip(*filled, strict=True))
    columns = [Column("step", names)]
    if any(row != "1" for row in rows):
        columns.append(Column("row", rows, number=True))
    columns += [Column(str(i + 1), cells, number=True) for i, cells in enumerate(features)]
    console.print(Sheet(f"{norm}: {equation}", columns, list(below), whole="a wider terminal"))


def print_side_by_side(console: Console, results: Sequence[tuple[str, Values]]) -> None:
    """The last line of each norm on the same numbers."""
    several = max(len(values) for _, values in results) > 1
    lines = [
        (norm if row == 0 else "", str(row + 1), *(f"{v:.4f}" for v in values[row]))
        for norm, values in results
        for row in range(len(values))
    ]
    names, rows, *features = (list(column) for column in zip(*lines, strict=True))
    columns = [Column("norm", names)]
    if several:
        columns.append(Column("row", rows, number=True))
    columns += [Column(str(i + 1), cells, number=True) for i, cells in enumerate(features)]
    console.print(Sheet("Side by side", columns, whole="a wider terminal"))


def print_eps(
    console: Console, rms: dict[str, dict[float, float]], used: dict[str, float], dtype: str
) -> None:
    """What eps does: the RMS of the output for each eps, and which norm took which above."""
    eps = list(next(iter(rms.values())))
    columns = [Column("eps", [f"{e:g}" for e in eps], number=True)]
    columns += [
        Column(norm, [f"{values[e]:.6g}" for e in eps], number=True) for norm, values in rms.items()
    ]
    marks = [", ".join(norm for norm in used if used[norm] == e) for e in eps]
    several = len(set(used.values())) > 1
    columns.append(
        Column("", [f"<- used{f' by {mark}' if several else ''}" if mark else "" for mark in marks])
    )
    below = ["RMS of the output."]
    if "layernorm" in rms:
        below[0] += " LayerNorm's is sigma / sqrt(sigma^2 + eps): eps bites above the variance."
    console.print(Sheet(f"What eps does ({dtype})", columns, below))
