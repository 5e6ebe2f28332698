"""Tables of lab/, a CSV each; their schemas, as in rows.py. Free of torch and pandas.

Those of TABLES are small computations on a trained model, measured after training when a claim of
the sweep names them; the others are what `lnexp boundary`, `rescue` and `probe` write.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lnexp.rows import Part


@dataclass(frozen=True, slots=True)
class BatchRow:
    """How far the rest of the batch reaches: largest change of a logit / RMS of the logits, fp64.

    Norms in training mode unless it says eval; dropout is off. Empty: nothing to compare.
    """

    run: str
    steps_done: int
    permuted: float | None  # the batch in reversed order
    alone: float | None  # one sequence by itself
    alone_eval: float | None
    padded: float | None  # with as many sequences of one repeated letter added
    train_eval: float | None  # training mode against evaluation
    future: float | None  # another last letter, read at the positions before it
    future_eval: float | None


@dataclass(frozen=True, slots=True)
class NormRow:
    """One norm of a trained model, on one batch, in fp64; without its gain and bias.

    A norm over the batch takes the batch's own statistics. Empty: there is no such figure (of one
    token, of an output that is 0).
    """

    run: str
    steps_done: int
    layer: int
    part: Part
    input_rms: float
    token_sigma: float  # RMS over tokens of their standard deviation
    sigma_spread: float | None  # standard deviation over tokens of ln sigma
    output_rms: float
    expected_rms: float | None  # sqrt(mean v / (v + eps)), v what eps is added to
    undo_r2: float | None  # of the best gain and bias a feature that turn the output back into x
    scale_change: float | None  # RMS of norm(3 x + 7) - norm(x) / RMS of norm(x)


@dataclass(frozen=True, slots=True)
class SkipRow:
    """What one block is worth: the validation loss without it, in nats."""

    run: str
    steps_done: int
    block: int
    loss: float
    loss_without: float
    change: float


@dataclass(frozen=True, slots=True)
class DepthRow:
    """How many blocks count."""

    run: str
    steps_done: int
    blocks: int
    effective_depth: int  # blocks whose skipping changes the loss by more than 0.01 nat
    share: float  # effective_depth / blocks
    largest_change: float  # in nats


@dataclass(frozen=True, slots=True)
class SampledSkipRow:
    """SkipRow for at most 16 blocks, spread over the depth, on fewer windows, before the first
    update and after the last: small enough for networks of a thousand blocks."""

    run: str
    steps_done: int
    at: Literal["start", "end"]
    block: int
    loss: float
    loss_without: float
    change: float


@dataclass(frozen=True, slots=True)
class DriftRow:
    """How far what sublayers read moves between readings ten steps apart, and what it does to
    training: the run trained twice more, as it is and with a random shift and scale, new every
    step, on what each sublayer reads.

    mean_drift = mean |mean_t - mean_(t-10)| / std_(t-10), std_drift = mean |ln std_t / std_(t-10)|,
    over features, sublayers and readings.
    """

    run: str
    steps_done: int
    mean_drift: float | None
    std_drift: float | None
    end_loss: float  # median of the last 10 % of steps, at least 10
    mean_drift_injected: float | None
    std_drift_injected: float | None
    end_loss_injected: float
    cost: float  # end_loss_injected - end_loss


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """How a run's readings at one step change over depth, from layers.csv of level full.

    Stream figures stand after each block (its MLP half); fits are in logarithms, over blocks
    fit_from .. fit_to counted from 1. first is block 0, last is block N - 1.
    """

    run: str
    steps_done: int
    when: Literal["first", "last"]
    step: int
    fit_from: int
    fit_to: int
    variance_exponent: float | None  # of RMS_l^2 - RMS_0^2 ~ l^p
    variance_r2: float | None
    variance_per_block: float | None  # (RMS_N^2 - RMS_0^2) / N
    rms_exponent: float | None  # of RMS_l ~ l^p
    rms_r2: float | None
    growth_per_block: float | None  # (RMS_N / RMS_0)^(1/N)
    stream_rms_per_sublayer: float | None  # (RMS_N / RMS_0)^(1/2N)
    rms_min: float | None  # of the stream after every sublayer
    rms_max: float | None
    norm_input_min: float | None  # RMS of what the sublayers' norms read
    norm_input_max: float | None
    grad_ratio: float | None  # gradient norm of the first block / of the last
    wq_ratio: float | None
    w2_ratio: float | None
    stream_grad_ratio: float | None  # gradient RMS of the stream into the first / the last sublayer
    stream_grad_per_sublayer: float | None  # that ratio ^ (1 / (2N - 1))
    identity_path: float | None  # product of RMS(h) / RMS(h + F), where a norm follows every sum
    token_cosine_last: float | None


@dataclass(frozen=True, slots=True)
class BoundaryRow:
    """Where along a knob one cell's runs turn unstable: lnexp boundary. Empty: none in range.

    A value is unstable where more than half of its decided runs are.
    """

    knob: str
    cell: str  # the cell's settings
    low: float
    high: float
    resolution: float  # the bracket's ends are at most this factor apart
    seeds: int  # at most, of one value
    # On which side of the edge; undecided: what is not unstable is merely slow.
    stable: Literal["below", "above", "everywhere", "nowhere", "undecided"]
    edge: float | None  # the last stable value
    beyond: float | None  # the first that is not
    edge_unstable: str  # unstable of decided runs
    beyond_unstable: str
    useful: float | None  # largest value with a median end loss within 0.1 nat of the cell's best
    sensitivity: float | None  # of train.lr, over the scan: mean min(loss, first loss) - best loss
    other_crossings: str  # where P(unstable) passes one half once more
    undecided: int  # runs that were merely slow, or failed to execute
    runs: int
    values: int
    seconds: float  # of training


@dataclass(frozen=True, slots=True)
class RampRow:
    """At which learning rate one cell breaks when it grows linearly: lnexp boundary --ramp.

    Over the seeds that broke; empty: none did.
    """

    cell: str  # the cell's settings
    high: float  # learning rate of the last step
    steps: int
    edge: float | None  # median
    lowest: float | None
    highest: float | None
    broke: int
    runs: int


@dataclass(frozen=True, slots=True)
class RescueRow:
    """A run gone on with from before its failure, with one change: lnexp rescue.

    Empty: it did not fail, or there is no such figure.
    """

    run: str  # the run that failed
    change: str
    settings: str  # key=value
    from_step: int  # that of the snapshot; 0: trained from the beginning
    bad_step: int | None  # in which the run failed
    failed_at: int | None  # in which this one did
    steps_done: int
    verdict: str
    outcome: str  # in words
    identical: int | None  # the control: 1 if its rows up to the failure are those of the run
    loss_change: float | None  # in the last step before the failure, against the run's, in nats
    end_loss: float | None
    end_gap: float | None
    trial: str  # the folder of its run


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """How one run's readings at one step change over depth: lnexp probe.

    The first columns are ProfileRow's; a ratio is the first block's figure over the last one's.
    """

    run: str
    steps_done: int
    step: int
    blocks: int
    fit_from: int
    fit_to: int
    growth_per_block: float | None
    rms_exponent: float | None
    rms_r2: float | None
    variance_exponent: float | None
    variance_r2: float | None
    variance_per_block: float | None
    stream_rms_per_sublayer: float | None
    rms_min: float | None
    rms_max: float | None
    norm_input_min: float | None
    norm_input_mean: float | None  # over sublayers
    norm_input_max: float | None
    grad_ratio: float | None
    grad_per_sublayer: float | None  # grad_ratio ^ (1/2N)
    wq_ratio: float | None
    wv_ratio: float | None
    wo_ratio: float | None
    w1_ratio: float | None
    w2_ratio: float | None
    w2_last: float | None  # gradient norm of the last block's W2
    stream_grad_ratio: float | None
    stream_grad_per_sublayer: float | None
    branch_first: float | None  # RMS F / RMS h of the first sublayer
    branch_last: float | None  # of the last
    token_cosine_last: float | None
    attn_logit_max: float | None  # over all blocks
    eps_floor_fraction: float | None  # mean over the sublayers' norms
    blocks_skipped: int | None  # looked at in lab/sampled_skip.csv
    blocks_counting: int | None  # of them, loss changed by more than 0.01 nat without the block
    effective_depth: float | None  # blocks x blocks_counting / blocks_skipped
    # Of the stream's largest element over blocks: exponential, power, flat, unclear.
    forward_law: str
    forward_rate: float | None  # factor a block, or exponent
    forward_r2: float | None
    forward_fp16: int | None  # depth at which it leaves the format; empty: not below 10^6
    forward_bf16: int | None
    forward_fp32: int | None
    backward_law: str  # of the stream's gradient RMS, from the last block to the first
    backward_rate: float | None
    backward_r2: float | None
    backward_fp16: int | None
    backward_bf16: int | None
    backward_fp32: int | None


# A table's file below lab/, without .csv -> its rows.
TABLES: dict[str, type] = {
    "batch": BatchRow,
    "norms": NormRow,
    "skip": SkipRow,
    "depth": DepthRow,
    "sampled_skip": SampledSkipRow,
    "drift": DriftRow,
    "profile": ProfileRow,
}

# What a table needs of every run: (tables, setting, value that excludes it, what to write).
NEEDS = (
    (("batch", "norms", "skip", "depth", "sampled_skip"), "measure.keep", "none", "weights"),
    (("profile",), "measure.level", "light", "full"),
    (("profile",), "measure.level", "off", "full"),
)


def excluded(tables: Sequence[str], points: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """(setting, complaint) where points, by dotted name, rule out a table that is asked for."""
    points = list(points)
    for needed, key, bad, instead in NEEDS:
        asked = [table for table in tables if table in needed]
        if asked and any(point[key] == bad for point in points):
            named = ", ".join(f"lab/{table}.csv" for table in asked)
            yield (
                key,
                f"{bad} leaves nothing to measure {named} by, which a claim reads; write {instead}",
            )
