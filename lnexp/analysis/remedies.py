"""Changes that several findings speak for, each with the figures that do."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite, isinf
from typing import Any

import numpy as np

from lnexp.analysis.case import Case
from lnexp.analysis.causes import text

EPS = 1e-5  # of Adam: with it (and with 1e-6) fp16 runs at lr 1e-3 that failed at 1e-8 went on
HIGH_LOSS = 10.0  # times ln V: the logits are far too large
USELESS_CLIP = 100.0  # a gradient norm that is usually above it needs another cure


@dataclass(frozen=True)
class Suggestion:
    key: str
    value: Any
    because: str


Advice = Iterator[Suggestion]


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
    yield Suggestion("model.init", "gpt2", f"{because}; its residual branches start small")


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


def smaller_steps(case: Case) -> Advice:
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


GROWING = {
    "update_norm": "updates, per unit of lr,",
    "weight_norm": "weights",
    "grad_norm": "gradients",
}


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
