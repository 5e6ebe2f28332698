"""An autopsy in a few lines, for whoever has no run folder."""

from math import isfinite, prod
from typing import Any

from .autopsy import NOT_KNOWN, Autopsy

PHASES = {
    "forward": "in the forward pass",
    "loss": "in the loss",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer's update",
}
NATURES = {
    "numerical": "The same step is finite in fp64: the number format failed.",
    "overflow": "The same step leaves fp64, too: no format holds such numbers.",
    "mathematical": "The same step is not finite in fp64 either: a wider format will not mend it.",
    NOT_KNOWN: "The step could not be computed in fp64, so the format's part is not known.",
}


def told(found: Autopsy) -> str:
    origin = found.origin
    if origin is None:
        seen = f"loss {found.loss:.4g}, gradient norm {found.grad_norm or 0.0:.4g}"
        finite = isfinite(found.loss) and isfinite(found.grad_norm or 0.0)
        return f"Every value is finite: {seen}." if finite else f"Born where nobody looked: {seen}."
    kind = f" ({origin.module_kind})" if origin.module_kind else ""
    born = "NaN" if origin.kind == "nan" else "Inf"
    lines = [f"{born} was born {PHASES[origin.phase]}, in {origin.module}{kind}, by {origin.op}."]
    lines += [f"  in:  {_tensor(tensor)}" for tensor in origin.inputs]
    lines += [f"  out: {_tensor(tensor)}" for tensor in origin.outputs]
    if origin.note:
        lines.append(f"  {origin.note}")
    bad = found.propagated
    if bad is not None and bad != origin:
        lines.append(f"The first bad gradient was in {bad.module}.")
    return "\n".join([*lines, NATURES[found.nature]])


def _tensor(facts: dict[str, Any]) -> str:
    shape = "x".join(map(str, facts["shape"])) or "scalar"
    finite = facts["absmax"]
    words = "no finite element" if finite is None else f"{facts['min']:.4g} to {facts['max']:.4g}"
    counts = {"NaN": facts["nan"], "Inf": facts["inf"]}
    bad = [f"{n} of {prod(facts['shape'])} {kind}" for kind, n in counts.items() if n]
    return ", ".join([f"{facts['dtype']} {shape}", words, *bad])
