"""lnexp norm: one vector, normalised step by step."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from rich.console import Console

from ..errors import UserError

EPS_SHOWN = [1e-12, 1e-8, 1e-5, 1e-2, 1.0]
AXES = {
    "layernorm": "Mean and variance over the features of each row (token).",
    "layernorm_std": "Mean and deviation over the features of each row (token).",
    "rmsnorm": "Mean square over the features of each row (token); no mean is taken off.",
    "batchnorm": "Mean and variance over the rows (the batch), for each feature on its own.",
    "scalenorm": "Length over the features of each row (token).",
    "dyt": "No statistics: each number on its own.",
}
EQUATIONS = {
    "layernorm": "(x - mean) / sqrt(var + eps) * g + b",
    "layernorm_std": "(x - mean) / (std + eps) * g + b, std unbiased",
    "rmsnorm": "x / sqrt(mean x^2 + eps) * g",
    "batchnorm": "(x - mean) / sqrt(var + eps) * g + b, over the batch",
    "scalenorm": "sqrt(d) x / max(norm(x), eps)",
    "dyt": "tanh(a x) * g + b",
}


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

    from ..model.worked import DTYPES, EPS, rms_over_eps, work_out
    from ..present.nonfinite import why_nonfinite
    from ..present.norm import print_eps, print_side_by_side, print_steps

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
        used = {name: EPS.get(name, 1e-5) if eps is None else eps for name in worked}
        print(_json(worked, used, dtype))
        return
    for name, values in worked.items():
        below = [*_below(name, rows), *why_nonfinite(values, dtype)]
        print_steps(console, name, EQUATIONS[name], below, values)
    if len(worked) > 1:
        print_side_by_side(console, [(name, values[-1][1]) for name, values in worked.items()])
    with_eps = [name for name in norms if name != "dyt"]
    if with_eps:
        used = {name: EPS.get(name, 1e-5) if eps is None else eps for name in with_eps}
        shown = sorted({*EPS_SHOWN, *used.values()})
        rms = {n: dict(zip(shown, rms_over_eps(n, rows, shown, dtype), strict=True)) for n in used}
        print_eps(console, rms, used, dtype)


def _json(worked: Mapping[str, Sequence[tuple[str, Any]]], eps: Mapping[str, float], dtype: str):
    """Each norm's steps; a non-finite number is "nan", "inf" or "-inf"."""
    from ..runs.rundir import strict_json

    return strict_json(
        {
            name: {
                "equation": EQUATIONS[name],
                "eps": None if name == "dyt" else eps[name],
                "dtype": dtype,
                "steps": [{"name": step, "values": values} for step, values in steps],
            }
            for name, steps in worked.items()
        }
    ).rstrip("\n")


def _below(norm: str, rows: list[list[float]]) -> list[str]:
    """What the statistics are over, and what they divide by."""
    lines = [AXES[norm]]
    count = len(rows) if norm == "batchnorm" else len(rows[0])
    if norm in ("layernorm", "batchnorm"):
        lines.append(f"The variance divides by N = {count}.")
    elif norm == "layernorm_std":
        lines.append(f"The variance divides by N - 1 = {count - 1}.")
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
        if name not in EQUATIONS:
            raise UserError(f"--norm {name}: write {', '.join(EQUATIONS)}; several with commas")
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
