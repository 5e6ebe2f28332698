"""How the first non-finite value came to be: what the autopsy's figures say of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log

from lnexp.explain.words import (
    block_of,
    input_names,
    is_fused_attention,
    module_words,
    op_base,
    op_words,
    tensor_words,
)
from lnexp.records import KINDS, NOT_KNOWN, NUMERICAL, OVERFLOW, PHASES, Autopsy, Birth
from lnexp.results.causes import UNDERFLOW, text

# Largest number and smallest above 0 of each format.
FORMATS = {
    "float16": (65504.0, 2.0**-24),
    "bfloat16": (3.3895313892515355e38, 2.0**-133),
    "float32": (3.4028234663852886e38, 2.0**-149),
    "float64": (1.7976931348623157e308, 2.0**-1074),
}
FUSED_LIMIT = 1e10  # inputs of a fused attention beyond which its backward is rounding alone


@dataclass(frozen=True)
class Mechanism:
    """What made the value, by name, and the figures that show it."""

    name: str
    says: str


def mechanism(autopsy: Autopsy) -> Mechanism:
    """The first that fits."""
    if not autopsy.reproduced or autopsy.origin is None:
        seen = f"loss {_figure(autopsy.loss)}, gradient norm {_figure(autopsy.grad_norm)}"
        return Mechanism("not_reproduced", f"the replay of the step came out finite ({seen})")
    mechanisms = (rule(autopsy.origin, autopsy) for rule in RULES)
    return next(fits for fits in mechanisms if fits is not None)


def _given(origin: Birth, _: Autopsy) -> Mechanism | None:
    if not origin.op.startswith("(given"):
        return None
    return Mechanism("given", f"{origin.module} was not finite before the step began")


def _no_moment(origin: Birth, autopsy: Autopsy) -> Mechanism | None:
    """The optimizer divided by sqrt(v) + eps = 0, or by an eps that stood there alone."""
    update = autopsy.optimizer
    if origin.phase != "optimizer" or update is None or update.exp_avg_sq != 0:
        return None
    if update.eps_held == 0:
        return Mechanism(
            "adam_eps_lost",
            f"the second moment is 0 and eps {text(update.eps or 0)} is held as 0 "
            f"({_smallest(update.dtype)}): the update divides by 0",
        )
    return Mechanism(
        "adam_underflow",
        f"the second moment is 0 under a gradient of {_figure(update.gradient)}, so the update is "
        f"the first moment {_figure(update.exp_avg)} over eps {_figure(update.eps_held)}",
    )


def _masked_row(origin: Birth, _: Autopsy) -> Mechanism | None:
    forward = origin.phase == "forward" and origin.kind == "nan"
    if not forward or not op_base(origin.op).endswith("softmax"):
        return None
    wrong = sum(tensor.nan for tensor in origin.outputs)
    return Mechanism(
        "masked_row",
        f"a row of scores that is -inf everywhere (fully masked): its softmax is 0/0; {wrong} "
        "elements came out NaN",
    )


def _exp_overflow(origin: Birth, _: Autopsy) -> Mechanism | None:
    if op_base(origin.op) != "exp" or origin.kind != "inf" or not origin.inputs:
        return None
    into = origin.inputs[0]
    limit = log(FORMATS[into.dtype][0]) if into.dtype in FORMATS else inf
    score = (origin.attention or {}).get("largest_score", into.max)
    return Mechanism(
        "exp_overflow",
        f"the exponential of {_figure(score)}; {into.dtype} holds exp(x) up to x = {limit:.1f}",
    )


def _products(origin: Birth, _: Autopsy) -> Mechanism | None:
    """Attention in one operation: the products of its first two inputs are scores."""
    if "scaled_dot_product" not in origin.op or len(origin.inputs) < 2:
        return None
    q, k = (tensor.absmax or 0.0 for tensor in origin.inputs[:2])
    dtype = origin.inputs[0].dtype
    if dtype not in FORMATS or q * k <= FORMATS[dtype][0]:
        return None
    return Mechanism(
        "overflow",
        f"queries up to {text(q)} times keys up to {text(k)}: the scores leave {dtype}, which "
        f"ends at {text(FORMATS[dtype][0])}",
    )


def _norm(origin: Birth, _: Autopsy) -> Mechanism | None:
    facts = origin.norm
    if facts is None:
        return None
    eps, held, variance = facts["eps"], facts["eps_held"], facts["smallest_variance"]
    dtype = origin.inputs[0].dtype if origin.inputs else ""
    if held == 0 < eps:
        return Mechanism(
            "eps_lost",
            f"eps {text(eps)} is not representable in {dtype} and is held as 0 "
            f"({_smallest(dtype)}); the smallest variance was {text(variance)}",
        )
    if variance == 0:
        return Mechanism(
            "zero_variance", f"a token whose features are all equal: variance 0, eps {text(eps)}"
        )
    return None


def _root(origin: Birth, _: Autopsy) -> Mechanism | None:
    into = [tensor for tensor in origin.inputs if tensor.min == 0 or tensor.absmax == 0]
    words = origin.op.lower()
    if origin.phase != "backward" or not ("sqrt" in words or "norm" in words) or not into:
        return None
    return Mechanism(
        "zero_variance", "the derivative of a square root at 0 is infinite, and an input was 0"
    )


def _overflow(origin: Birth, autopsy: Autopsy) -> Mechanism | None:
    """Finite inputs, an Inf out, and none in fp64: the format ended."""
    if autopsy.nature != NUMERICAL or not origin.outputs:
        return None
    dtype = origin.outputs[0].dtype
    if origin.kind != "inf" or dtype not in FORMATS:
        return None
    return Mechanism(
        "overflow",
        f"the result is beyond {dtype}, which ends at {text(FORMATS[dtype][0])}; the largest "
        f"number that went in was {_figure(largest_input(origin))}",
    )


def _rest(origin: Birth, autopsy: Autopsy) -> Mechanism:
    if autopsy.nature == NUMERICAL:
        return Mechanism("numerical", "the numbers left what this format can hold")
    if autopsy.nature == OVERFLOW:
        return Mechanism("overflow", "numbers grew beyond what even fp64 holds, 1.8e308")
    return Mechanism("mathematical", "the operation has no finite result there in any format")


RULES = (_given, _no_moment, _masked_row, _exp_overflow, _products, _norm, _root, _overflow, _rest)


def origin_words(autopsy: Autopsy, depth: int) -> Iterator[str]:
    """Where the value was born, what went in and came out, and whether fp64 would hold it."""
    origin = autopsy.origin
    if origin is None:
        yield f"Not reproduced: {mechanism(autopsy).says}. The cause is not known."
        return
    yield (
        f"{born(origin)} {PHASES[origin.phase]} of step {autopsy.step}, in "
        f"{module_words(origin.module, depth)}, by {op_words(origin.op)}."
    )
    names = input_names(origin.op, len(origin.inputs))
    for name, tensor in zip(names, origin.inputs, strict=True):
        yield f"In: {name}{tensor_words(tensor)}."
    for tensor in origin.outputs:
        yield f"Out: {tensor_words(tensor)}."
    yield f"Why: {mechanism(autopsy).says}."
    yield from _update_words(autopsy)
    yield nature_words(autopsy, depth)
    if fused_beyond(origin) is not None:
        yield (
            "The fused kernel recomputes exp(score - log-sum); at such scores rounding alone makes "
            "it infinite. model.attention: plain shows how much is the kernel's."
        )
    bad = autopsy.propagated
    if bad is not None and (bad.phase, bad.module, bad.op) != (
        origin.phase, origin.module, origin.op,
    ):  # fmt: skip
        yield (
            f"It spread: the first bad gradient ({KINDS[bad.kind]}) was in "
            f"{module_words(bad.module, depth)}; the loss was {_figure(autopsy.loss)}."
        )


def born(origin: Birth) -> str:
    """'NaN was born', or 'Inf and NaN were born' where both came out."""
    both = any(t.inf for t in origin.outputs) and any(t.nan for t in origin.outputs)
    return "Inf and NaN were born" if both else f"{KINDS[origin.kind]} was born"


def fused_beyond(origin: Birth) -> float | None:
    """The largest input of a fused attention's backward, where it is beyond FUSED_LIMIT."""
    largest = largest_input(origin)
    fused = is_fused_attention(origin.op) and op_base(origin.op).endswith("_backward")
    return largest if fused and largest is not None and largest > FUSED_LIMIT else None


def largest_input(origin: Birth) -> float | None:
    return max((t.absmax for t in origin.inputs if t.absmax is not None), default=None)


def nature_words(autopsy: Autopsy, depth: int) -> str:
    """Whether a wider format would have held it."""
    if autopsy.nature == NUMERICAL:
        narrower = autopsy.shadow.get("float32")
        also = ", and in fp32 as well" if narrower and narrower.finite else ""
        return (
            f"Numerical: the same step is {autopsy.in_fp64}{also}. The format failed, not the "
            f"mathematics.{_rounding(autopsy, depth)}"
        )
    if autopsy.nature == OVERFLOW:
        return "Overflow: the same step leaves fp64, too; no format holds numbers that grow so."
    if autopsy.nature == NOT_KNOWN:
        return "The step could not be computed in fp64, so the format's part is not known."
    return (
        "Mathematical: the same step is not finite in fp64 either; a wider format will not mend it."
    )


def _rounding(autopsy: Autopsy, depth: int) -> str:
    """Where the true gradient would fit the format: then its size is not what failed."""
    origin, wide = autopsy.origin, autopsy.shadow.get("float64")
    norm = None if wide is None else wide.grad_norm
    if origin is None or origin.phase != "backward" or not origin.outputs or norm is None:
        return ""
    dtype = origin.outputs[0].dtype
    if dtype not in FORMATS or not norm < FORMATS[dtype][0]:
        return ""
    fits = f" {dtype} could hold a gradient of that size: what grew beyond it was rounding"
    block = block_of(origin.module)
    if block is not None and block < depth - 1:
        return f"{fits}, carried from block to block, not the gradient itself."
    # The backward pass begins here: no block came before it.
    inside = "here" if block is None else "inside this block"
    return (
        f"{fits} {inside}, multiplied by numbers of size "
        f"{_figure(largest_input(origin))}, not the gradient itself."
    )


def _update_words(autopsy: Autopsy) -> Iterator[str]:
    update = autopsy.optimizer
    if update is None:
        return
    at = f"[{', '.join(map(str, update.element))}]"
    figures = {
        "gradient": update.gradient, "first moment": update.exp_avg,
        "second moment": update.exp_avg_sq,
    }  # fmt: skip
    known = ", ".join(f"{name} {text(v)}" for name, v in figures.items() if v is not None)
    moved = f"{_figure(update.weight_before)} -> {_figure(update.weight_after)}"
    yield f"Weight {update.parameter}{at}: {moved} ({known})."
    if update.eps is not None and update.eps_held is not None:
        yield (
            f"The {update.kernel} kernel holds eps {text(update.eps)} as {text(update.eps_held)} "
            f"(weights in {update.dtype})."
        )
    yield f"{update.nonfinite} of its {update.elements} elements went bad" + (
        f"; v = 0 and m != 0 in {update.underflowed:.0%} of them."
        if update.underflowed is not None and update.underflowed > UNDERFLOW
        else "."
    )


def _smallest(dtype: str) -> str:
    """'the smallest number above 0 in float16 is 6e-08'."""
    if dtype not in FORMATS:
        return "too small for its type"
    return f"the smallest number above 0 in {dtype} is {FORMATS[dtype][1]:.1g}"


def _figure(value: float | None) -> str:
    return "not known" if value is None else text(value)
