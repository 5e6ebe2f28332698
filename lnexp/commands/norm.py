"""lnexp norm: one vector, normalised step by step, and why a step is Inf or NaN."""

from collections.abc import Iterator, Sequence
from math import inf, isfinite, isnan

from lnexp.files import strict_json
from lnexp.messages import UserError
from lnexp.model.catalog import EXAMPLES, NORMS
from lnexp.terminal.sheet import Column, Sheet, display

Values = list[list[float]]  # rows x features; a single column: one value a row
Steps = Sequence[tuple[str, Values]]

EPS_SHOWN = [1e-12, 1e-8, 1e-5, 1e-2, 1.0]
SQUARED = ("variance", "variance (unbiased)", "mean square", "norm of x")
RATIOS = ("normalised", "direction")
DIVISORS = ("root", "deviation + eps", "max(norm, eps)")


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

    import torch  # after the checks: a wrong word is told at once

    from lnexp.model.worked import DTYPES, rms_over_eps, work_out

    if dtype not in DTYPES:
        raise UserError(f"--dtype {dtype}: write {', '.join(DTYPES)}")
    worked: dict[str, Steps] = {}
    for name in norms:
        steps = work_out(name, rows, eps=eps, gain=gains, bias=biases, dtype=dtype)
        values = [(step.name, step.values.double().tolist()) for step in steps]
        if gains is None and biases is None:  # nothing learned: the normalised values are the end
            values = [item for item in values if item[0] not in ("times gain", "plus bias")]
        worked[name] = values
    used = {
        name: EXAMPLES[name].eps if eps is None else eps
        for name in norms
        if NORMS[name].beside_eps is not None
    }
    if as_json:
        data = {
            name: {
                "equation": _equation(name),
                "eps": used.get(name),
                "dtype": dtype,
                "steps": [{"name": step, "values": values} for step, values in steps],
            }
            for name, steps in worked.items()
        }
        print(strict_json(data), end="")
        return
    largest = torch.finfo(DTYPES[dtype]).max
    for name, steps in worked.items():
        below = [*_below(name, rows), *why_nonfinite(steps, dtype, largest)]
        display(_table(f"{name}: {_equation(name)}", "step", steps, ".6g", below))
    if len(worked) > 1:
        ends = [(name, steps[-1][1]) for name, steps in worked.items()]
        display(_table("Side by side", "norm", ends, ".4f", []))
    if used:
        shown = sorted({*EPS_SHOWN, *used.values()})
        rms = {n: dict(zip(shown, rms_over_eps(n, rows, shown, dtype), strict=True)) for n in used}
        display(_eps_table(rms, used, dtype))


def _equation(norm: str) -> str:
    """As it stands over the worked example."""
    return EXAMPLES[norm].equation or NORMS[norm].equation


def _table(title: str, head: str, named: Steps, form: str, below: list[str]) -> Sheet:
    """A line for each name and row."""
    lines = [
        (name if row == 0 else "", str(row + 1), *(f"{v:{form}}" for v in values[row]))
        for name, values in named
        for row in range(len(values))
    ]
    width = max(len(line) for line in lines)
    filled = [line + ("",) * (width - len(line)) for line in lines]
    names, rows, *features = (list(column) for column in zip(*filled, strict=True))
    columns = [Column(head, names)]
    if any(row != "1" for row in rows):
        columns.append(Column("row", rows, number=True))
    columns += [Column(str(i + 1), cells, number=True) for i, cells in enumerate(features)]
    return Sheet(title, columns, below, whole="a wider terminal")


def _eps_table(rms: dict[str, dict[float, float]], used: dict[str, float], dtype: str) -> Sheet:
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
    below = "RMS of the output."
    if "layernorm" in rms:
        below += " LayerNorm's is sigma / sqrt(sigma^2 + eps): eps bites above the variance."
    return Sheet(f"What eps does ({dtype})", columns, [below])


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


# Why a step is Inf or NaN.


def why_nonfinite(steps: Steps, dtype: str, largest: float) -> Iterator[str]:
    """A line for each step that is not finite for a reason of its own."""
    before: dict[str, Values] = {}
    end = f"{largest:.6g}, the largest number in {dtype}"
    for name, values in steps:
        if not _finite(values) and (reason := _reason(name, values, before, dtype, largest, end)):
            yield f"{name}: {reason}."
        before[name] = values


def _reason(
    name: str, values: Values, before: dict[str, Values], dtype: str, largest: float, end: str
) -> str:
    if name == "x":
        return f"a number that is none, or is beyond {end}"
    if name == "mean" and _finite(before["x"]):
        return f"the sum of the numbers is beyond {end}"
    top = before.get("minus mean", before["x"])
    if name in SQUARED and _finite(top):
        number = max(abs(v) for row in top for v in row)
        if number > largest**0.5:
            return f"{number:g}^2 > {end}; what is divided by it comes out 0"
        return f"the sum of squares up to {number:g}^2 is beyond {end}"
    if name not in RATIOS:
        return ""
    divisor = next(before[key] for key in (*DIVISORS, *before) if key in before)
    # By the first element that is not finite.
    row, feature = next(
        (r, i) for r, line in enumerate(values) for i, v in enumerate(line) if not isfinite(v)
    )
    a, b = _at(top, row, feature), _at(divisor, row, feature)
    if b == 0 and a == 0:
        return f"0/0: nothing is left to divide, and eps is 0 in {dtype}"
    if b == 0:
        return f"{a:g}/0"
    beyond = "" if abs(a) == inf or isnan(a) or isnan(b) else f" is beyond {end}"
    return f"{a:g}/{b:g}{beyond}"


def _at(values: Values, row: int, feature: int) -> float:
    """The element that meets it: a single row or column stands for all."""
    line = values[row if len(values) > 1 else 0]
    return line[feature if len(line) > 1 else 0]


def _finite(values: Values) -> bool:
    return all(isfinite(v) for row in values for v in row)


# What was typed.


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
