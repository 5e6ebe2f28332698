"""Figures beside a verdict: what was read in the forward pass, and what became of the rate."""

from collections.abc import Iterator

import pandas as pd

from lnexp.analysis.case import Case
from lnexp.analysis.causes import text
from lnexp.analysis.table import column, numbers

GONE = 0.01  # of the highest learning rate
FORWARD = {
    "act_rms": ("RMS of the residual stream", "After the block."),
    "norm_input_rms": ("RMS of a norm's input", ""),
    "token_cosine": ("cosine between tokens", "Near 1 all positions look alike."),
    "attn_logit_max": ("largest attention score", ""),
}


def forward_readings(layers: pd.DataFrame, depth: int) -> Iterator[tuple[str, str, str]]:
    """Level full: the last reading of the first and of the last block."""
    layer, step = column(layers, "layer").to_numpy(), column(layers, "step").to_numpy()
    for name, (words, meaning) in FORWARD.items():
        values = column(layers, name)
        there = values.notna().to_numpy() & (layer >= 0) & (layer < depth)
        if not there.any():
            continue
        at = step[there].max()
        told = []
        for block, which in ((0, "first"), (depth - 1, "last")):
            found = numbers(values)[there & (step == at) & (layer == block)]
            if len(found):
                told.append(f"{text(float(found[-1]))} in the {which} block")
        if told:
            yield words, f"{', '.join(told)} at step {at}", meaning


def decay(case: Case) -> str:
    """'lr had fallen to 0 by the last step (train.schedule: cosine, peak 0.001)', or ''."""
    schedule, lr = case.settings.get("train.schedule"), case.readings("lr")
    if schedule == "constant" or not len(lr) or not lr[-1] < GONE * lr.max():
        return ""
    gone = f"lr had fallen to {text(float(lr[-1]))} by the last step"
    which = f"train.schedule: {schedule}, " if schedule else ""
    return f"{gone} ({which}peak {text(float(lr.max()))})"
