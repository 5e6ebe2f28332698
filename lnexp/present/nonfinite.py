"""Why a step of a worked norm is Inf or NaN."""

from collections.abc import Sequence
from math import inf, isfinite, isnan

from lnexp.present.norm import Values

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
