"""What stands out in an inspected model; every sentence carries its figures."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

NEAR = 0.1  # of a type's largest number
HALF_LIMIT = torch.finfo(torch.float16).max
FEWEST_SUMS = 8  # residual additions from which depth scaling matters
SAME = 0.1  # two standard deviations within a tenth of each other
NAMED = 3


def concerns(found: dict[str, Any], trained: bool) -> list[str]:
    """`trained`: the weights are a checkpoint's; in a fresh model every gain is at its start."""
    return [
        *_nonfinite(found),
        *_large(found),
        *_eps(found["norms"]),
        *(_gains(found["norms"]) if trained else ()),
        *_adam(found["adam"]),
        *_init(found["init"]),
        *_names(found),
    ]


def _few(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _nonfinite(found: dict[str, Any]) -> Iterator[str]:
    for row in found["nonfinite"]:
        yield (
            f"{row['tensor']}: {row['nan']} NaN and {row['inf']} Inf of {row['elements']} "
            f"elements, first at {row['first']}"
        )


def _large(found: dict[str, Any]) -> Iterator[str]:
    for row in found["largest"]:
        largest, limit = row["absmax"], row["limit"]
        if row["share"] > NEAR:
            yield f"{row['tensor']} reaches {largest:.4g}: {row['dtype']} ends at {limit:.4g}"
        elif largest > HALF_LIMIT:
            yield f"{row['tensor']} reaches {largest:.4g}: it would be Inf in float16"


def _eps(norms: list[dict[str, Any]]) -> Iterator[str]:
    known = [norm for norm in norms if norm["eps"] is not None]
    counts = Counter(norm["eps"] for norm in known)
    if len(counts) > 1:
        usual, count = counts.most_common(1)[0]
        for eps in sorted(counts):
            names = [norm["module"] for norm in known if norm["eps"] == eps]
            if eps != usual:
                yield f"eps {eps:g} in {_few(names)}; {usual:g} in the other {count}"
    for eps in sorted(counts):
        mine = [norm for norm in known if norm["eps"] == eps]
        lost = [norm for norm in mine if eps == 0 or norm["eps_held"] == 0]
        if eps == 0:
            yield f"eps is 0 in {_few([n['module'] for n in lost])}: a constant row gives 0/0"
        elif lost:
            dtype = lost[0]["dtype"]
            tiny = torch.finfo(getattr(torch, dtype)).smallest_normal
            least = tiny * torch.finfo(getattr(torch, dtype)).eps
            yield (
                f"eps {eps:g} is 0 in {dtype}, whose least positive number is {least:.2g} "
                f"({_few([n['module'] for n in lost])}): a norm that computes in {dtype} divides "
                "a constant row by 0; torch's own layer_norm keeps eps in float32"
            )


def _gains(norms: list[dict[str, Any]]) -> Iterator[str]:
    """All elements at the same 1 or 0: where a gain starts."""
    learned = [norm for norm in norms if norm["gain_min"] is not None]
    frozen = [n for n in learned if n["gain_min"] == n["gain_max"] and n["gain_min"] in (0.0, 1.0)]
    if not frozen:
        return
    which = "all" if len(frozen) == len(learned) else f"{len(frozen)} of"
    dtype, value = frozen[0]["dtype"], frozen[0]["gain_min"]
    why = ""
    if dtype in ("bfloat16", "float16") and value == 1:
        below = 1 - torch.finfo(getattr(torch, dtype)).eps / 2
        why = f"; the next {dtype} below 1 is {below:.4g}, and a smaller step rounds away"
    names = _few([norm["module"] for norm in frozen])
    yield (
        f"{which} {len(learned)} norm gains are exactly {value:g}, as at their start ({names}){why}"
    )


def _adam(rows: list[dict[str, Any]]) -> Iterator[str]:
    bad = [row for row in rows if row["nonfinite"]]
    if bad:
        elements = sum(row["nonfinite"] for row in bad)
        yield f"Adam's moments: {elements} elements not finite, in {_few(_tensors(bad))}"
    lost = [row for row in rows if row["vanished"] > 0]
    if lost:
        worst = max(lost, key=lambda row: row["vanished"])
        yield (
            f"Adam's second moment is 0 under a first that is not in {len(lost)} tensors (most: "
            f"{worst['vanished']:.0%} of {worst['tensor']}): the update there is m / eps"
        )
    gone = [row for row in rows if row["eps"] and row["eps_held"] == 0]
    if gone:
        yield (
            f"Adam's eps {gone[0]['eps']:g} is 0 in {gone[0]['dtype']}, the type of its moments: "
            "an update computed in it is 0/0 where a gradient is 0 (fused kernels use float32)"
        )


def _tensors(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['tensor']} ({'x'.join(map(str, row['shape']))})" for row in rows]


def _init(init: dict[str, Any]) -> Iterator[str]:
    if not init or init["projections"] < FEWEST_SUMS or not init["others_std"]:
        return
    if abs(init["std"] / init["others_std"] - 1) < SAME:
        yield (
            f"no depth scaling: the {init['projections']} matrices that write into the stream have "
            f"std {init['std']:.3g}, the others {init['others_std']:.3g}; GPT-2's init would start "
            f"them at {init['scaled_std']:.2g}"
        )


def _names(found: dict[str, Any]) -> Iterator[str]:
    if found["missing"]:
        yield f"not in the checkpoint: {_few(found['missing'])}"
    if found["unexpected"]:
        yield f"in the checkpoint alone: {_few(found['unexpected'])}"
