"""How each number on the page is made: the formulas of docs/metrics.md that a reader needs here.

A test holds every entry against that page.
"""

from lnexp.analysis.statistics import wilson

FORMULAS = {
    "loss": "mean cross entropy of a batch, before the step's update, without z-loss.",
    "gap": "loss - unigram_loss.",
    "unigram_loss": "cross entropy of the same targets under the training text's letter "
    "frequencies, -mean ln p(letter).",
    "ln V": "the loss of a uniform guess over the vocabulary.",
    "H1": "entropy of a letter of the training text.",
    "H2": "entropy of a letter given the one before it.",
    "floor": "H2, or for source: markov the chain's exact entropy rate.",
    "gradient norm": "All norms are L2, before clipping. A total norm is the root of the summed "
    "squares of its parts.",
    "exactly 0": "a 0 means that every element is 0 and an Inf that an element is.",
    "first/last": "gradient norm of block 1 (layer 0) over that of the last block, attention, MLP "
    "and norms together; at the end: median over the last 20 % of the readings.",
    "update ratio": "the same of the updates: Adam rescales, so a vanished gradient is not yet a "
    "vanished update.",
    "End": "median of the last 10 % of the steps, at least 10.",
    "bar": "-0.2 (H1 - floor).",
    "falling": "the median gap of the last quarter lies below that of the quarter before by more "
    "than 0.005 H1.",
    "s (of a spike)": "1.4826 MAD(step differences of the gap) / sqrt 2, the largest of three: "
    "over the 20 steps before, the 60 before, and all.",
    "P(failure)": "(nonfinite + diverged + lost + stalled) / decided runs of one cell, with the "
    "95 % Wilson interval. The unit is the seed.",
    "origin": "the first operation with clean inputs whose output holds a NaN or an Inf.",
}
VERDICTS = {
    "nonfinite": "a NaN or Inf in loss, gradient or parameter",
    "nothing_to_learn": "H1 - floor below 0.05 nat: no verdict possible",
    "diverged": "end loss above 1.1 max(first loss, ln V)",
    "lost": "the running median gap (window: that of End) was below the bar earlier, the end is "
    "not",
    "spiked": "learned, and a gap above the median of the 10 before it by more than 6 s",
    "learned": "end gap below the bar, no spike",
    "too_short": "not learned and still falling, or fewer than 20 steps",
    "stalled": "not learned, not falling, and a measured reason: vanishing, zero_gradient, "
    "rank_collapse, frozen. Printed with its horizon",
    "plateau": "not learned, not falling, no such reason: more steps may still help",
}
CAUSES = {
    "vanishing": "first/last gradient ratio at the end below 1e-2",
    "exploding": "that ratio above 100, or the total gradient norm grown more than 100-fold",
    "zero_gradient": "the last readings of k of N blocks are exactly 0",
    "rank_collapse": "token cosine of the last block above 0.99 (level full)",
    "frozen": "weights bit-identical to their start: all of them is a reason to stall, some are a "
    "warning",
    "warming_up": "the warm-up is longer than the run",
    "too_slow": "slope of the gap over the last half below 0 by more than two standard errors, but "
    "not falling; or all updates together (sum of update_norm) moved the weights by less than 1 % "
    "of their norm",
    "adam_underflow": "second moments 0 where the first are not, in more than 10 % of the weights "
    "at the end or by an event; a warning for a run that learned",
    "precision": "the failing step is finite in fp64",
    "nonfinite_origin": "phase and module of the first event",
}


def seeds_note() -> str:
    """What few seeds can say."""
    four, three = wilson(4, 4)[0], wilson(3, 3)[0]
    return (
        f"With 4 of 4 seeds failing the interval begins at {four:.2f}, with 3 of 3 at {three:.2f}: "
        "fewer than four seeds cannot put P(failure) above one half."
    )
