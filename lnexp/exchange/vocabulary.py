"""What other tools call our columns, and what ours are called when they leave.

Free of torch and pandas.
"""

from lnexp.rows import LayerRow, StepRow, header

# Column of steps.csv -> its key in TensorBoard, W&B, Parquet and JSON.
STEP_KEYS = {
    "tokens": "train/tokens",
    "seconds": "train/seconds",
    "lr": "train/lr",
    "loss": "train/loss",
    "unigram_loss": "train/unigram_loss",
    "val_loss": "val/loss",
    "grad_norm": "grad/norm",
    "update_norm": "update/norm",
    "weight_norm": "weight/norm",
    "clip_factor": "grad/clip_factor",
    "loss_scale": "train/loss_scale",
    "skipped": "train/skipped",
    "nonfinite_grads": "grad/nonfinite",
}
# Column of layers.csv -> its key before the layer: grad/norm/blocks.3.attn.
LAYER_KEYS = {
    "grad_norm": "grad/norm",
    "weight_norm": "weight/norm",
    "update_norm": "update/norm",
    "zero_grad_fraction": "grad/zero_fraction",
    "act_rms": "act/rms",
    "norm_input_rms": "norm/input_rms",
    "norm_gain": "norm/gain",
    "eps_floor_fraction": "norm/eps_floor_fraction",
    "branch_to_stream": "act/branch_to_stream",
    "stream_grad_rms": "grad/stream_rms",
    "act_absmax": "act/absmax",
    "token_cosine": "act/token_cosine",
    "attn_logit_max": "attn/logit_max",
    "attn_entropy": "attn/entropy",
}

# Column of steps.csv -> names in logs, the likeliest first; case does not count.
ALIASES: dict[str, tuple[str, ...]] = {
    "step": (
        "step", "iter", "iteration", "global_step", "trainer/global_step", "train/global_step",
        "train/step", "_step", "steps", "it",
    ),
    "loss": (
        "loss", "train/loss", "train_loss", "training_loss", "train loss", "loss/train",
        "training/loss",
    ),
    "val_loss": (
        "val_loss", "eval_loss", "val/loss", "eval/loss", "val loss", "valid_loss", "loss/val",
        "validation_loss", "validation/loss",
    ),
    "lr": ("lr", "learning_rate", "train/lr", "train/learning_rate", "optim/lr"),
    "grad_norm": (
        "grad_norm", "train/grad_norm", "grad/norm", "gradient_norm", "gnorm", "grad norm",
        "optim/total_grad_norm", "norm",
    ),
    "tokens": ("tokens", "num_input_tokens_seen", "tokens_seen", "train/tokens", "total_tokens"),
    "seconds": ("seconds", "train/seconds", "elapsed", "_runtime"),
    "unigram_loss": ("unigram_loss", "train/unigram_loss"),
    "update_norm": ("update_norm", "update/norm"),
    "weight_norm": ("weight_norm", "weight/norm", "param_norm"),
    "clip_factor": ("clip_factor", "grad/clip_factor"),
    "loss_scale": ("loss_scale", "train/loss_scale", "scale"),
    "skipped": ("skipped", "train/skipped"),
    "nonfinite_grads": ("nonfinite_grads", "grad/nonfinite"),
}  # fmt: skip

assert set(STEP_KEYS) == set(header(StepRow)) - {"step"} and set(ALIASES) == set(header(StepRow))
assert set(LAYER_KEYS) == set(header(LayerRow)) - {"step", "layer", "part"}


def place(layer: int, part: str) -> str:
    """'embed', 'blocks.3.attn', 'norm', 'head'."""
    return part if part in ("embed", "norm", "head") else f"blocks.{layer}.{part}"
