"""lab/probe.csv: its schema, as in rows.py. Free of torch and pandas."""

from dataclasses import dataclass


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
    forward_law: (
        str  # of the stream's largest element over blocks: exponential, power, flat, unclear
    )
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
