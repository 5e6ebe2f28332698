"""An inspected model in the terminal."""

import re
from collections.abc import Sequence
from math import isnan
from typing import Any

from rich.console import Group
from rich.text import Text

from lnexp.messages import amount, one_line
from lnexp.terminal.sheet import Column, Sheet


def in_words(inspection: dict[str, Any]) -> Group:
    """Size, norms, largest values, Adam's moments, and what stands out."""
    kinds = ", ".join(inspection["dtypes"])
    count = amount(inspection["tensors"], "parameter tensor")
    about = f"{inspection['model']}: {inspection['parameters']:,} parameters in {count}; {kinds}"
    parts: list[Text | Sheet] = [Text(one_line(about), style="bold")]
    if inspection["checkpoint"]:
        parts.append(Text(one_line(f"weights: {inspection['checkpoint']}")))
    parts += [Text(), _norms(inspection)] if inspection["norms"] else [Text("It has no norm.")]
    if inspection["not_traced"]:
        why = f"Places not found, no forward could be traced: {inspection['not_traced']}"
        parts.append(Text(one_line(why)))
    if inspection["largest"]:
        parts.append(_largest(inspection["largest"]))
    if inspection["adam"]:
        parts.append(_adam(inspection["adam"]))
    if inspection["init"]:
        parts.append(Text(_init(inspection["init"])))
    parts.append(Text())
    if inspection["warnings"]:
        parts.append(Text("What stands out", style="bold"))
        parts += [Text(f"  {one_line(warning)}") for warning in inspection["warnings"]]
    else:
        parts.append(Text("Nothing stands out: every value is finite."))
    return Group(*parts)


def pattern(names: Sequence[str]) -> str:
    """'blocks.0..11.attn.before' for twelve of a kind; one name as it is."""
    pieces = [re.split(r"(\d+)", name) for name in names]
    if len({len(piece) for piece in pieces}) != 1:
        return f"{names[0]}, ..."
    parts = []
    for at, column in enumerate(zip(*pieces, strict=True)):
        values = list(dict.fromkeys(column))
        if len(values) == 1:
            parts.append(values[0])
        elif at % 2:
            parts.append(f"{values[0]}..{values[-1]}")
        else:
            return f"{names[0]}, ..."
    return "".join(parts)


def _norms(inspection: dict[str, Any]) -> Sheet:
    """Norms that agree in everything but their block stand in one line."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for norm in inspection["norms"]:
        blank = re.sub(r"\d+", "#", norm["module"])
        same = (blank, norm["kind"], norm["eps"], norm["place"], norm["dtype"], norm["parameters"])
        groups.setdefault(same, []).append(norm)
    rows = list(groups.values())
    columns = [
        Column("norm", [pattern([n["module"] or "(model)" for n in row]) for row in rows]),
        Column("count", [str(len(row)) for row in rows], number=True),
        Column("kind", [row[0]["kind"] for row in rows], rank=3),
        Column("stands", [row[0]["place"] for row in rows], wraps=True, readable=16),
        Column("eps", [_eps(row[0]) for row in rows], number=True),
        Column("dtype", [row[0]["dtype"] for row in rows], rank=2),
        Column("gain", [_gain(row) for row in rows], rank=1),
        Column("parameters", [f"{row[0]['parameters']:,}" for row in rows], True, rank=4),
    ]
    below = (
        [f"Places are those of one forward of {inspection['traced']}."]
        if inspection["traced"]
        else []
    )
    title = amount(len(inspection["norms"]), "norm")
    return Sheet(title, columns, below, whole="--json")


def _eps(norm: dict[str, Any]) -> str:
    return "-" if norm["eps"] is None else f"{norm['eps']:g}"


def _gain(norms: list[dict[str, Any]]) -> str:
    """Smallest and largest element over the norms of a line."""
    known = [norm for norm in norms if norm["gain_min"] is not None]
    if not known:
        return "-"
    if any(isnan(norm["gain_min"]) for norm in known):
        return "nan"
    low, high = min(n["gain_min"] for n in known), max(n["gain_max"] for n in known)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _largest(rows: list[dict[str, Any]]) -> Sheet:
    columns = [
        Column("tensor", [row["tensor"] for row in rows]),
        Column("largest", [f"{row['absmax']:.4g}" for row in rows], number=True),
        Column("dtype", [row["dtype"] for row in rows]),
        Column("ends at", [f"{row['limit']:.4g}" for row in rows], number=True),
    ]
    return Sheet("Nearest to the limit of their type", columns, whole="--json")


def _adam(rows: list[dict[str, Any]]) -> Sheet:
    """The tensors that eps and underflow touch most."""
    shown = sorted(rows, key=lambda r: (-r["nonfinite"], -r["vanished"], -r["below_eps"]))[:5]
    columns = [
        Column("tensor", [row["tensor"] for row in shown]),
        Column("shape", ["x".join(map(str, row["shape"])) for row in shown]),
        Column("dtype", [row["dtype"] for row in shown]),
        Column("not finite", [str(row["nonfinite"]) for row in shown], number=True),
        Column("v = 0, m not", [f"{row['vanished']:.1%}" for row in shown], number=True),
        Column("sqrt v < eps", [f"{row['below_eps']:.1%}" for row in shown], number=True),
    ]
    return Sheet(f"Adam's moments ({len(shown)} of {len(rows)})", columns, whole="--json")


def _init(init: dict[str, Any]) -> str:
    return (
        f"Matrices that write into the stream ({init['projections']}): std {init['std']:.3g}; "
        f"the other matrices: {init['others_std']:.3g}."
    )
