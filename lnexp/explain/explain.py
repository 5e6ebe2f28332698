"""One run in words: what happened, the figures that show it, what came before, what to try."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd

from lnexp.explain.advice import Suggestion, advice
from lnexp.explain.birth import born, mechanism, origin_words
from lnexp.explain.case import Case, read_case
from lnexp.explain.words import layer_words, module_words
from lnexp.records import PHASES
from lnexp.rescue.reading import rescue_evidence
from lnexp.results.causes import text
from lnexp.results.tables import column, numbers

GONE = 0.01  # of the highest learning rate
# Why a loss does not move, the plainest reason first.
STANDSTILL = {
    "frozen": "Nothing was trained",
    "zero_gradient": "No gradient arrives",
    "warming_up": "Still warming up",
    "vanishing": "Stalled, the gradient vanishes on its way to the first block",
    "rank_collapse": "Stalled, all tokens look alike",
    "too_slow": "Too slow",
}
ONLY_STALLED = ("vanishing", "rank_collapse")
# What each cause and each kind of event means, for a reader who has not met it.
MEANING = {
    "nonfinite_origin": "The first value that was no number any more.",
    "precision": "The same step in 64-bit numbers has a result: the number format failed.",
    "vanishing": (
        "What the first blocks should learn hardly reaches them. Adam rescales gradients, so the "
        "updates differ less than the gradients do."
    ),
    "zero_gradient": "Not small but exactly 0: these blocks are not trained at all.",
    "rank_collapse": "All positions carry nearly the same vector, so attention cannot choose.",
    "frozen": "A weight that is the same to the last bit has not been trained.",
    "warming_up": "The run ended before the learning rate reached its peak.",
    "too_slow": "It moves, but far too little for this many steps.",
    "exploding": "Gradients grow through the blocks or over the steps instead of settling.",
    "adam_underflow": (
        "Adam divides by sqrt(v) + eps. Where v underflowed to 0 the update is m/eps: its size no "
        "longer follows the gradient."
    ),
}
EVENTS = {
    "zero_norm_output": "A norm gave exactly 0 for an input that is not: its squares overflowed.",
    "norm_overflow": "Every element is finite; only the norm, a sum of squares, left its format.",
    "scaler_skip": "Loss scaling looked for its level: no instability.",
    "skips_in_a_row": "No loss scale was small enough: the run ended.",
}
SERIES = {
    "act_rms": "RMS of the residual stream",
    "norm_input_rms": "RMS of a norm's input",
    "token_cosine": "cosine between tokens",
    "attn_logit_max": "largest attention score",
    "act_absmax": "largest activation",
    "weight_norm": "weight norm",
    "grad_norm": "gradient norm",
    "gradient_ratio": "first/last block gradient",
    "update_norm": "update norm per unit of lr",
}
# Read at level full, and what there is to say of it.
FORWARD = {
    "act_rms": "After the block.",
    "norm_input_rms": "",
    "token_cosine": "Near 1 all positions look alike.",
    "attn_logit_max": "",
}


@dataclass(frozen=True)
class Explanation:
    """The answer to `lnexp explain`. Every sentence rests on recorded numbers."""

    case: Case
    diagnosis: str  # one line
    evidence: list[tuple[str, str, str]]  # name, figures, what it means
    origin: list[str]  # of the first non-finite value
    chain: list[dict[str, Any]]  # what left its usual range, in order: rows of chain() with words
    suggestions: list[Suggestion]
    unknown: list[str]  # what was not measured, and so cannot be said


def explain(folder: Path) -> Explanation:
    case = read_case(folder)
    rows = case.chain.to_dict("records")
    return Explanation(
        case=case,
        diagnosis=diagnosis(case),
        evidence=[*_evidence(case)],
        origin=[*_origin(case)],
        chain=[row | {"words": chain_words(row, case.depth)} for row in rows],
        suggestions=advice(case),
        unknown=[*_unknown(case)],
    )


def diagnosis(case: Case) -> str:
    """One line. A cause that explains a run by itself speaks before its verdict."""
    verdict = case.judgement.verdict
    if not verdict:
        return _process(case)
    if verdict in ("stalled", "plateau", "too_short"):
        for name, words in STANDSTILL.items():
            cause = case.causes.get(name)
            if cause is not None and (name != "frozen" or case.all_frozen):
                if verdict == "stalled" or name not in ONLY_STALLED:
                    return f"{words}: {cause.evidence}."
    return {
        "nonfinite": _nonfinite,
        "learned": _learned,
        "spiked": lambda c: f"It learned, with a spike: {c.judgement.reason}.",
        "diverged": lambda c: f"Diverged, with finite numbers: {c.judgement.reason}.",
        "lost": lambda c: f"It had learned, and lost it again: {c.judgement.reason}.",
        "nothing_to_learn": lambda c: f"Nothing to learn in this text: {c.judgement.reason}.",
        "too_short": lambda c: f"Too short to tell: {c.judgement.reason}.",
        "plateau": _plateau,
    }[verdict](case)


def _process(case: Case) -> str:
    status, done = case.process.status, len(case.steps)
    if status == "failed":
        return f"The process failed after {done} steps: {case.process.error or 'no message'}."
    if status == "interrupted" and case.process.error:
        return f"Interrupted after {done} steps: {case.process.error}."
    return {
        "finished": "Finished, but what it left cannot be read: no verdict.",
        "interrupted": f"Interrupted after {done} steps: `lnexp run` takes it up again.",
        "running": f"Still running, {done} steps so far: no verdict yet.",
        "pending": "Not trained yet. `lnexp run` of its config trains it.",
    }[status]


def _nonfinite(case: Case) -> str:
    autopsy, step = case.autopsy, case.bad_step
    if autopsy is None:
        return f"Non-finite: {case.causes['nonfinite_origin'].evidence}."
    how = mechanism(autopsy)
    if autopsy.origin is None:
        return f"Non-finite at step {step}, and not reproduced: {how.says}."
    origin = autopsy.origin
    return (
        f"{born(origin)} {PHASES[origin.phase]} of step {step}, in "
        f"{module_words(origin.module, case.depth)}: {how.says}."
    )


def _plateau(case: Case) -> str:
    if decayed := _decay(case):
        return f"Flat, under a learning rate that was gone: {case.judgement.reason}; {decayed}."
    return f"Flat, for no reason that was measured: {case.judgement.reason}. More steps may help."


def _decay(case: Case) -> str:
    """'lr had fallen to 0 by the last step (train.schedule: cosine, peak 0.001)', or ''."""
    schedule, lr = case.settings.get("train.schedule"), case.readings("lr")
    if schedule == "constant" or not len(lr) or not lr[-1] < GONE * lr.max():
        return ""
    gone = f"lr had fallen to {text(float(lr[-1]))} by the last step"
    which = f"train.schedule: {schedule}, " if schedule else ""
    return f"{gone} ({which}peak {text(float(lr.max()))})"


def _learned(case: Case) -> str:
    first, end = case.figures["first_loss"], case.figures["end_loss"]
    gap = case.figures["end_gap"]
    assert first is not None and end is not None
    warnings = [name for name in ("frozen", "adam_underflow") if name in case.causes]
    healthy = "It learned, with a warning" if warnings else "Healthy, it learned"
    guess = "the baseline" if case.foreign else "guessing by letter frequency"
    below = f"{text(-gap)} nats below {guess}" if gap is not None else case.judgement.reason
    says = f"loss {text(first)} -> {text(end)}, {below}"
    return "; ".join([f"{healthy}: {says}", *(case.causes[w].evidence for w in warnings)]) + "."


def _evidence(case: Case) -> Iterator[tuple[str, str, str]]:
    if case.judgement.reason and case.judgement.verdict:
        yield case.judgement.verdict, case.judgement.reason, ""
    for cause in case.judgement.causes:
        yield cause.name, cause.evidence, MEANING[cause.name]
    yield from _losses(case)
    if case.judgement.verdict in ("plateau", "stalled", "too_short") and (gone := _decay(case)):
        yield "lr", gone, "With so small a rate a loss stands still, whatever else holds."
    start, end = case.figures.get("grad_ratio_step0"), case.figures.get("grad_ratio_end")
    if start is not None and end is not None and isfinite(start) and isfinite(end):
        says = f"{text(start)} at step 0, {text(end)} at the end"
        yield "first/last block gradient", says, "Runs that learn sit between 0.5 and 10."
    yield from _forward(case.layers, case.depth)
    yield from _events(case)
    yield from rescue_evidence(case.folder)


def _losses(case: Case) -> Iterator[tuple[str, str, str]]:
    first, end, gap = (case.figures.get(n) for n in ("first_loss", "end_loss", "end_gap"))
    if first is None or end is None:
        return
    h1 = "baseline" if "imported" in case.env else "letter frequencies"
    names = {"ln_v": "ln V", "h1": h1, "floor": "floor"}
    known = [key for key in names if case.env.get(key) is not None]
    levels = ", ".join(f"{names[key]} {text(case.env[key])}" for key in known)
    says = f"{text(first)} at the start, {text(end)} at the end"
    yield "loss", f"{says} ({levels or 'no baseline'})", ""
    if gap is not None and isfinite(gap):
        says = f"{text(gap)}, learned below {text(case.judgement.bar)}"
        whose = "the baseline" if case.foreign else "that of letter frequencies"
        yield "gap", says, f"Loss minus {whose}."


def _forward(layers: pd.DataFrame, depth: int) -> Iterator[tuple[str, str, str]]:
    """Level full: the last reading of the first and of the last block."""
    layer, step = column(layers, "layer").to_numpy(), column(layers, "step").to_numpy()
    for name, meaning in FORWARD.items():
        values = column(layers, name)
        known = values.notna().to_numpy() & (layer >= 0) & (layer < depth)
        if not known.any():
            continue
        at, parts = step[known].max(), []
        for block, which in ((0, "first"), (depth - 1, "last")):
            readings = numbers(values)[known & (step == at) & (layer == block)]
            parts += [f"{text(float(value))} in the {which} block" for value in readings[-1:]]
        if parts:
            yield SERIES[name], f"{', '.join(parts)} at step {at}", meaning


def _events(case: Case) -> Iterator[tuple[str, str, str]]:
    """What the tables do not show."""
    for kind, meaning in EVENTS.items():
        rows = [*case.events_of(kind)]
        if rows:
            more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
            where = module_words(rows[0]["module"], case.depth)
            yield kind, f"from step {rows[0]['step']} on, {where}{more}", meaning
    failing = case.judgement.verdict == "nonfinite"  # its own step makes no update
    if (case.process.skipped or 0) > failing:
        yield "skipped", f"{case.process.skipped} of {len(case.steps)} steps made no update", ""


def _origin(case: Case) -> Iterator[str]:
    if case.judgement.verdict != "nonfinite":
        return
    if case.autopsy is not None:
        yield from origin_words(case.autopsy, case.depth)
        return
    yield f"No autopsy was kept; the tables say: {case.causes['nonfinite_origin'].evidence}."


def chain_words(row: dict[str, Any], depth: int) -> str:
    """'gradient norm rose to 25.8, 27 times its usual 0.95, most of it in the head'."""
    series, value, usual = row["series"], row["value"], row["usual"]
    if series == "skips":
        return f"{value:.0f} steps in a row were skipped, to the end"
    if series == "adam_underflow":
        return f"Adam's second moments are 0 under gradients that are not ({row['places']} places)"
    rises = value > usual
    words = f"{SERIES[series]} {'rose' if rises else 'fell'} to {text(value)}, "
    if series in ("gradient_ratio", "token_cosine"):
        words += f"{'above' if rises else 'below'} {text(usual)}"
    elif rises:
        words += f"{text(value / usual)} times its usual {text(usual)}"
    else:
        share = f"1/{text(usual / value)} of" if value else "from"
        words += f"{share} its usual {text(usual)}"
    if row["layer"] is None or row["layer"] != row["layer"]:
        return words
    where = layer_words(int(row["layer"]), row["part"], depth)
    if not row["places"]:
        return f"{words}, most of it in {where}"
    others = f", later in {row['places'] - 1} more places" if row["places"] > 1 else ""
    return f"{words}, first in {where}{others}"


def _unknown(case: Case) -> Iterator[str]:
    level, status = case.settings.get("measure.level"), case.process.status
    if "imported" in case.env:
        yield "The model and its settings: this run is a log of another tool."
    if status == "pending" or not len(case.steps):
        return
    if level == "off":
        yield "Gradients, weights and updates (measure.level: off): little can be said of causes."
    elif level == "light":
        yield "Activations, norm inputs, attention and tokens (measure.level: light)."
    if case.judgement.verdict == "nonfinite" and case.bad_step == 0:
        yield "It happened at step 0: there is nothing before it."
    elif case.judgement.verdict == "nonfinite" and not len(case.chain):
        done = len(case.readings("grad_norm"))
        yield f"What led to it: {done} readings before it show nothing unusual, or are too few."
    if case.judgement.verdict in ("stalled", "plateau", "too_short", "learned", "spiked", "lost"):
        yield f"What comes {case.judgement.horizon.replace('within', 'after')}."
