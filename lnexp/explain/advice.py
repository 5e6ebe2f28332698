"""What is worth trying: for a mechanism, a cause or a verdict the changes that its figures speak
for, each with those figures."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf, isfinite, isinf
from typing import Any

import numpy as np

from lnexp.explain.birth import FORMATS, fused_beyond, mechanism
from lnexp.explain.case import Case
from lnexp.results.causes import VANISHING, text
from lnexp.results.run_folder import DEFAULTS

EPS = 1e-5  # of Adam: with it (and with 1e-6) fp16 runs at lr 1e-3 that failed at 1e-8 went on
HIGH_LOSS = 10.0  # times ln V: the logits are far too large
USELESS_CLIP = 100.0  # a gradient norm that is usually above it needs another cure
MOVE_TO = 0.1  # of the norm of the weights: what runs that learn come to
MOST = 6  # suggestions
GROWING = {
    "update_norm": "updates, per unit of lr,",
    "weight_norm": "weights",
    "grad_norm": "gradients",
}


@dataclass(frozen=True)
class Suggestion:
    key: str
    value: Any
    because: str


Advice = Iterator[Suggestion]
Rule = Callable[[Case, str], Advice]  # the figures in words speak for its suggestions


def advice(case: Case) -> list[Suggestion]:
    """The most direct first; a key once, and none that is set so already."""
    suggestions: dict[str, Suggestion] = {}
    # What is not known of a watched run is reckoned with as our default.
    for suggestion in _all(replace(case, settings={**DEFAULTS, **case.settings})):
        if case.settings.get(suggestion.key) != suggestion.value:
            suggestions.setdefault(suggestion.key, suggestion)
    return list(suggestions.values())[:MOST]


def _all(case: Case) -> Advice:
    if case.autopsy is not None:
        yield from _fused(case)
        how = mechanism(case.autopsy)
        yield from MECHANISM.get(how.name, always())(case, how.says)
    yield from _zero_output(case)
    for name, cause in case.causes.items():
        yield from CAUSE.get(name, always())(case, cause.evidence)
    verdict = case.judgement.verdict or case.process.status
    yield from VERDICT.get(verdict, always())(case, case.judgement.reason)
    if case.settings.get("measure.level") == "off" and len(case.steps):
        yield Suggestion(
            "measure.level", "light", "no gradient, weight or update of this run was written"
        )


def always(*changes: tuple[str, Any, str]) -> Rule:
    """The same (key, value, what to add to the figures) for every run."""
    return lambda _, because: (Suggestion(key, v, f"{because}{more}") for key, v, more in changes)


# Remedies that several rules share.


def growth(case: Case) -> Advice:
    """The very first loss, in fp64 where it has no other, tells of values that grow on their way
    through the blocks."""
    first, ln_v, where = case.figures.get("first_loss"), case.env.get("ln_v"), ""
    wide = case.autopsy.shadow.get("float64") if case.autopsy and case.bad_step == 0 else None
    if wide is not None and (first is None or not isfinite(first)):
        first, where = wide.loss, " in fp64"
    if first is None or ln_v is None or not first > HIGH_LOSS * ln_v:
        return
    because = (
        f"the first loss is {text(first)}{where} (ln V {text(ln_v)}): values grow block by block"
    )
    if case.env.get("norms") == 0:
        yield Suggestion("model.placement", "pre", f"{because}, and no norm holds them")
    yield small_branches(because)


def small_branches(because: str) -> Suggestion:
    return Suggestion("model.init", "gpt2", f"{because}; its residual branches start small")


def larger_eps(case: Case, because: str) -> Advice:
    if float(case.settings["train.adam_eps"]) < EPS:
        more = f"{because}; a larger eps bounds m/eps"
        yield Suggestion("train.adam_eps", EPS, more)
    if case.settings["train.precision"] == "fp16":
        if case.settings["train.loss_scale"] in ("auto", "none"):
            scaled = f"{because}; gradients 256 times larger have squares that fp16 holds"
            yield Suggestion("train.loss_scale", 256.0, scaled)
        master = f"{because}; fp32 master weights and moments hold them"
        yield Suggestion("train.precision", "fp16-mixed", master)


def smaller_steps(case: Case, _: str = "") -> Advice:
    """Where updates, weights or gradients left their range before the end."""
    for series, what in GROWING.items():
        left = case.left(series)
        if left is not None and left["value"] > left["usual"]:
            times = text(left["value"] / left["usual"])
            because = f"the {what} grew to {times} times their usual norm at step {left['step']}"
            if series == "grad_norm":
                yield from clip(case, because)
            yield from gentler(case, because)
            return


def gentler(case: Case, because: str) -> Advice:
    lr, warmup = float(case.settings.get("train.lr", 0)), case.settings.get("train.warmup", 0)
    if lr > 0:
        yield Suggestion("train.lr", rounded(lr / 3), because)
    yield Suggestion("train.warmup", max(100, 2 * warmup), because)


def clip(case: Case, because: str) -> Advice:
    """At the norm that was usual, where the largest was far above it."""
    norms = case.readings("grad_norm")
    if len(norms) and isinf(case.settings.get("train.clip", inf)):
        usual, largest = float(np.median(norms)), float(norms.max())
        if 0 < usual < USELESS_CLIP and largest > 10 * usual:
            figures = f"gradient norm {text(largest)} at its largest, {text(usual)} as a rule"
            yield Suggestion("train.clip", rounded(usual), f"{because}; {figures}")


def larger(lr: float, times: float) -> float:
    return rounded(lr * max(times, 2.0))


def rounded(value: float) -> float:
    """To one significant digit."""
    return float(f"{value:.0e}")


# What made the first non-finite value.


def _fused(case: Case) -> Advice:
    """Rounding inside the fused kernel: without it, and in numbers that round later."""
    autopsy = case.autopsy
    largest = autopsy and autopsy.origin and fused_beyond(autopsy.origin)
    if not autopsy or not largest:
        return
    because = f"numbers up to {text(largest)} went into the fused kernel"
    yield Suggestion("model.attention", "plain", f"{because}; this shows its share")
    if autopsy.in_fp64:
        yield Suggestion("train.precision", "fp64", f"{because}; the step is {autopsy.in_fp64}")


def _zero_output(case: Case) -> Advice:
    if event := next(case.events_of("zero_norm_output"), None):
        because = f"{event['module']} gave exactly 0 from step {event['step']} on: squares overflow"
        yield Suggestion("train.precision", "bf16", because)


def _masked_row(_: Case, __: str) -> Advice:
    because = "scaled_dot_product_attention gives 0 for a fully masked row, a plain softmax 0/0"
    yield Suggestion("model.attention", "sdpa", because)


def _eps_lost(_: Case, says: str) -> Advice:
    yield Suggestion("model.eps", 1e-5, says)
    yield Suggestion("train.precision", "fp32", "fp32 holds this eps")


def _overflow(case: Case, says: str) -> Advice:
    origin = case.autopsy and case.autopsy.origin
    if case.left("adam_underflow") is not None:
        yield from larger_eps(case, case.causes["adam_underflow"].evidence)
    scores = case.left("attn_logit_max")
    if scores is not None:
        because = f"attention scores reached {text(scores['value'])} at step {scores['step']}"
        yield Suggestion("model.qk_norm", True, because)
    scale = case.settings["train.loss_scale"]
    if isinstance(scale, float) and scale > 1 and origin and origin.phase == "backward":
        yield Suggestion("train.loss_scale", scale / 8, f"scaled gradients: {says}")
    if origin and any(tensor.dtype == "float16" for tensor in origin.outputs):
        top = text(FORMATS["bfloat16"][0])
        yield Suggestion("train.precision", "bf16", f"{says}; bfloat16 ends at {top}")
    yield from _growing(case)


def _growing(case: Case, _: str = "") -> Advice:
    yield from growth(case)
    yield from smaller_steps(case)


MECHANISM: dict[str, Rule] = {
    "masked_row": _masked_row,
    "exp_overflow": always(
        ("model.softmax", "stable", "; minus the largest score it cannot"),
        ("model.qk_norm", True, "; normalised queries and keys bound it"),
    ),
    "eps_lost": _eps_lost,
    "zero_variance": always(
        ("model.norm", "layernorm", "; with eps under the root it holds"),
        ("model.eps", 1e-5, ""),
    ),
    "adam_eps_lost": larger_eps,
    "adam_underflow": larger_eps,
    "overflow": _overflow,
    "numerical": _overflow,
    "mathematical": _growing,
    "not_reproduced": always(("train.device", "cpu", "")),
}


# Causes.


def _vanishing(case: Case, _: str) -> Advice:
    start, end = case.figures.get("grad_ratio_step0"), case.figures.get("grad_ratio_end")
    assert end is not None
    left = case.left("gradient_ratio")
    if start is not None and start >= VANISHING:
        when = "" if left is None else f" by step {left['step']}"
        because = (
            f"first/last block gradient was {text(start)} at step 0 and below "
            f"{text(VANISHING)}{when}: the first updates did it"
        )
        yield from gentler(case, because)
        yield small_branches(because)
    else:
        because = f"first/last block gradient is {text(end)}" + (
            "" if start is None else f", and was {text(start)} at step 0: so it began"
        )
        yield Suggestion("model.init", "gpt2", because)
    yield Suggestion("model.residual", True, f"{because}; a skip carries gradients past a block")
    yield Suggestion("model.placement", "pre", f"{because}; the skips then run through no norm")


def _rank_collapse(case: Case, because: str) -> Advice:
    left = case.left("token_cosine")
    because += "" if left is None else f", above 0.99 from step {left['step']} on"
    yield Suggestion("model.residual", True, f"{because}; a skip keeps what tells tokens apart")
    if left is not None and left["step"] > 0:
        yield from gentler(case, because)
    yield small_branches(because)


def _frozen(case: Case, because: str) -> Advice:
    narrow, lr = case.env.get("weights_dtype"), case.readings("lr")
    if len(lr) and lr.max() == 0:
        yield Suggestion("train.lr", 1e-3, "the learning rate of every step was 0")
    elif narrow in ("bfloat16", "float16"):
        rounds = f"{because}; weights in {narrow}: an update smaller than half a step of it is lost"
        yield Suggestion("train.precision", "fp32", rounds)
    elif case.all_frozen:
        because = f"{because} at an lr of {text(lr.max())}"
        yield Suggestion("train.lr", larger(case.settings["train.lr"], 1000.0), because)


def _warming_up(case: Case, because: str) -> Advice:
    yield Suggestion("train.steps", 3 * int(case.settings["train.warmup"]), because)
    yield Suggestion("train.warmup", max(1, len(case.steps) // 10), because)


def _too_slow(case: Case, because: str) -> Advice:
    lr = case.settings.get("train.lr")
    if not lr:  # not known of an imported run
        return
    if "moved" not in because:
        yield Suggestion("train.lr", larger(lr, 3.0), because)
        return
    moved = float(case.readings("update_norm").mean()) * len(case.steps)
    share = moved / case.readings("weight_norm")[0]
    yield Suggestion("train.lr", larger(lr, MOVE_TO / share), because)


def _exploding(case: Case, because: str) -> Advice:
    yield from growth(case)
    if "grew" in because:
        yield from clip(case, because)
    yield from gentler(case, because)


CAUSE: dict[str, Rule] = {
    "vanishing": _vanishing,
    "rank_collapse": _rank_collapse,
    "zero_gradient": always(
        ("train.precision", "fp64", ": are they 0, or only too small to hold"),
        ("model.activation", "gelu", "; a ReLU below 0 passes none"),
        ("measure.level", "full", "; forward readings tell what died"),
    ),
    "frozen": _frozen,
    "warming_up": _warming_up,
    "too_slow": _too_slow,
    "exploding": _exploding,
    "adam_underflow": larger_eps,
}


# Verdicts, where no cause says more.


def _unstable(case: Case, because: str) -> Advice:
    yield from smaller_steps(case)
    if because:
        yield from clip(case, because)
        yield from gentler(case, because)


def _longer(case: Case, because: str) -> Advice:
    if case.all_frozen or {"too_slow", "warming_up"} & set(case.causes):
        return
    steps = int(case.figures.get("steps_done") or len(case.steps))
    yield Suggestion("train.steps", 2 * max(steps, 10), f"{because}; {steps} steps")
    if case.settings.get("measure.level") == "light":
        because = "the cosine between tokens was not measured, so rank collapse is not ruled out"
        yield Suggestion("measure.level", "full", because)


def _failed(case: Case, _: str) -> Advice:
    error, batch = case.process.error or "", case.settings.get("train.batch_size", 1)
    if "memory" in error.lower() and batch > 1:
        yield Suggestion("train.batch_size", batch // 2, error)


VERDICT: dict[str, Rule] = {
    "nonfinite": smaller_steps,
    "diverged": _unstable,
    "lost": _unstable,
    "spiked": _unstable,
    "too_short": _longer,
    "plateau": _longer,
    "nothing_to_learn": always(("data.source", "pydoc", "")),
    "failed": _failed,
}
