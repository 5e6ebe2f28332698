"""A worked example in the terminal."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite, isnan
from typing import Any

from rich.console import Console

from lnexp.messages import UserError
from lnexp.model.catalog import EXAMPLES, NORMS
from lnexp.terminal.sheet import Column, Sheet

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


# Why a step of a worked norm is Inf or NaN.


LARGEST = {"fp64": 1.7976931348623157e308, "fp32": 3.4028234663852886e38,
           "bf16": 3.3895313892515355e38, "fp16": 65504.0}  # fmt: skip
SQUARED = ("variance", "variance (unbiased)", "mean square", "norm of x")
RATIOS = ("normalised", "direction")


def why_nonfinite(steps: Sequence[tuple[str, Values]], dtype: str) -> list[str]:
    """A line for each step that is not finite for a reason of its own."""
    found, before = [], dict[str, Values]()
    for name, values in steps:
        if not all(isfinite(v) for row in values for v in row):
            reason = _reason(name, values, before, dtype)
            if reason:
                found.append(f"{name}: {reason}.")
        before[name] = values
    return found


def _reason(name: str, values: Values, before: dict[str, Values], dtype: str) -> str:
    end = f"{LARGEST[dtype]:.6g}, the largest number in {dtype}"
    if name == "x":
        return f"a number that is none, or is beyond {end}"
    if name == "mean" and _finite(before["x"]):
        return f"the sum of the numbers is beyond {end}"
    if name in SQUARED:
        base = before.get("minus mean", before["x"])
        return _squares(_largest(base), end, LARGEST[dtype]) if _finite(base) else ""
    if name not in RATIOS:
        return ""
    top = before.get("minus mean", before["x"])
    below = next(before[key] for key in (*BELOW, *before) if key in before)
    return _quotient(values, top, below, dtype)


BELOW = ("root", "deviation + eps", "max(norm, eps)")


def _squares(largest: float, end: str, limit: float) -> str:
    if largest > limit**0.5:
        return f"{largest:g}^2 > {end}; what is divided by it comes out 0"
    return f"the sum of squares up to {largest:g}^2 is beyond {end}"


def _quotient(values: Values, top: Values, below: Values, dtype: str) -> str:
    """By the first element that is not finite."""
    for r, row in enumerate(values):
        for i, value in enumerate(row):
            if isfinite(value):
                continue
            a, b = _at(top, r, i), _at(below, r, i)
            if b == 0 and a == 0:
                return f"0/0: nothing is left to divide, and eps is 0 in {dtype}"
            if b == 0:
                return f"{a:g}/0"
            if abs(a) == inf or isnan(a) or isnan(b):
                return f"{a:g}/{b:g}"
            return f"{a:g}/{b:g} is beyond {LARGEST[dtype]:.6g}, the largest number in {dtype}"
    return ""


def _at(values: Values, row: int, column: int) -> float:
    """The element that meets it: a single row or column stands for all."""
    line = values[row if len(values) > 1 else 0]
    return line[column if len(line) > 1 else 0]


def _finite(values: Values) -> bool:
    return all(isfinite(v) for row in values for v in row)


def _largest(values: Values) -> float:
    return max(abs(v) for row in values for v in row)


# lnexp norm: one vector, normalised step by step.


EPS_SHOWN = [1e-12, 1e-8, 1e-5, 1e-2, 1.0]


def norm(
    words: list[str],
    names: str,
    eps: float | None,
    gain: str,
    bias: str,
    dtype: str,
    as_json: bool,
) -> None:
    rows = _rows(words)
    norms = _norms(names)
    if eps is not None and not (isfinite(eps) and eps >= 0):
        raise UserError(f"--eps {eps:g}: write a number, 0 or more")
    gains, biases = _vector("--gain", gain, len(rows[0])), _vector("--bias", bias, len(rows[0]))

    from lnexp.model.worked import DTYPES, rms_over_eps, work_out

    if dtype not in DTYPES:
        raise UserError(f"--dtype {dtype}: write {', '.join(DTYPES)}")
    console = Console(highlight=False)
    worked: dict[str, list[tuple[str, list[list[float]]]]] = {}
    for name in norms:
        steps = work_out(name, rows, eps=eps, gain=gains, bias=biases, dtype=dtype)
        values = [(step.name, step.values.double().tolist()) for step in steps]
        if gains is None and biases is None:  # nothing learned: the normalised values are the end
            values = [item for item in values if item[0] not in ("times gain", "plus bias")]
        worked[name] = values
    if as_json:
        used = {name: EXAMPLES[name].eps if eps is None else eps for name in worked}
        print(_json(worked, used, dtype))
        return
    for name, values in worked.items():
        below = [*_below(name, rows), *why_nonfinite(values, dtype)]
        print_steps(console, name, equation(name), below, values)
    if len(worked) > 1:
        print_side_by_side(console, [(name, values[-1][1]) for name, values in worked.items()])
    with_eps = [name for name in norms if NORMS[name].beside_eps is not None]
    if with_eps:
        used = {name: EXAMPLES[name].eps if eps is None else eps for name in with_eps}
        shown = sorted({*EPS_SHOWN, *used.values()})
        rms = {n: dict(zip(shown, rms_over_eps(n, rows, shown, dtype), strict=True)) for n in used}
        print_eps(console, rms, used, dtype)


def _json(worked: Mapping[str, Sequence[tuple[str, Any]]], eps: Mapping[str, float], dtype: str):
    """Each norm's steps; a non-finite number is "nan", "inf" or "-inf"."""
    from lnexp.files import strict_json

    return strict_json(
        {
            name: {
                "equation": equation(name),
                "eps": None if NORMS[name].beside_eps is None else eps[name],
                "dtype": dtype,
                "steps": [{"name": step, "values": values} for step, values in steps],
            }
            for name, steps in worked.items()
        }
    ).rstrip("\n")


def equation(norm: str) -> str:
    """As it stands over the worked example."""
    return EXAMPLES[norm].equation or NORMS[norm].equation


def _below(norm: str, rows: list[list[float]]) -> list[str]:
    """What the statistics are over, and what they divide by."""
    example = EXAMPLES[norm]
    lines = [example.over]
    count = len(rows) if NORMS[norm].over_batch else len(rows[0])
    if example.divides_by:
        number = count - 1 if example.divides_by == "N - 1" else count
        lines.append(f"The variance divides by {example.divides_by} = {number}.")
    if norm == "batchnorm" and len(rows) < 2:
        lines.append(
            "batchnorm needs two rows or more: one row is its own mean, and nothing is left of it. "
            "Write ; between rows: '3 5 2 6; 2 4 1 3'."
        )
    return lines


def _rows(words: list[str]) -> list[list[float]]:
    """'2 4 1 3' or several arguments: one row; `;` starts another."""
    rows = [_numbers("NUMBERS", row) for row in " ".join(words).split(";") if row.strip()]
    if not rows or not all(len(row) == len(rows[0]) for row in rows):
        raise UserError("NUMBERS: write rows of the same length: '3 5 2 6; 2 4 1 3'")
    if len(rows[0]) < 2:
        raise UserError("NUMBERS: a norm needs two numbers or more: 2 4 1 3")
    return rows


def _norms(names: str) -> list[str]:
    norms = [name.strip() for name in names.split(",") if name.strip()]
    for name in norms:
        if name not in EXAMPLES:
            raise UserError(f"--norm {name}: write {', '.join(EXAMPLES)}; several with commas")
    return norms or ["layernorm"]


def _vector(option: str, text: str, width: int) -> list[float] | None:
    if not text:
        return None
    values = _numbers(option, text)
    if len(values) == 1:
        values *= width
    if len(values) != width:
        raise UserError(f"{option} {text}: write one number, or {width} with commas")
    return values


def _numbers(place: str, text: str) -> list[float]:
    try:
        return [float(word) for word in text.replace(",", " ").split()]
    except ValueError:
        raise UserError(f"{place}: {text.strip()}: write numbers: 2 4 1 3") from None
