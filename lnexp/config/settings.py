"""What each setting means, in one line. The page docs/settings.md and `lnexp schema` read this.

Free of torch and pandas.
"""

MEANING = {
    "data.source": "pydoc: English text that comes with Python; file: a text of yours; "
    "markov: letters of a seeded chain whose entropy rate is known exactly",
    "data.path": "source file: the text, relative to the config's folder; after -s to this one",
    "data.encoding": "source file: its encoding, by Python's name (utf-8, cp1252, ...)",
    "data.val_fraction": "share of the letters, at the text's end, kept for validation; 0: none",
    "data.order": "source markov: letters that the next one depends on",
    "data.symbols": "source markov: different letters",
    "data.length": "source markov: letters of the text",
    "data.chain_seed": "source markov: draws chain and text, whatever the run's seed",
    "model.depth": "N, blocks (attention + MLP each; 2 N residual sublayers)",
    "model.width": "D, features of the residual stream; a multiple of heads",
    "model.heads": "attention heads, each of width / heads features",
    "model.context": "T, letters that a prediction may look back on",
    "model.placement": "where the norms stand; see Placements",
    "model.norm": "the normalizer; see Norms",
    "model.eps": "added inside the norm (where exactly: see Norms)",
    "model.residual": "false: x = F(x) instead of x + F(x)",
    "model.affine": "norms learn gain g and bias b; false: g = 1, b = 0",
    "model.init": "how weights are drawn; see Inits",
    "model.init_scale": "factor on the std of the blocks' matrices",
    "model.embed_std": "std of the token embeddings; auto: by init, see Inits",
    "model.activation": "of the MLP",
    "model.mlp_ratio": "the MLP's hidden features / width",
    "model.dropout": "share of the sublayers' activations set to 0 while training",
    "model.bias": "linear layers have biases",
    "model.tie_embeddings": "the head's weight is the token embedding's",
    "model.qk_norm": "norms on queries and keys, a head's features at a time",
    "model.attention": "sdpa: torch's fused attention; plain: written out",
    "model.softmax": "stable: minus the row's maximum; plain: exp(x) / sum exp(x), "
    "needs attention plain",
    "train.steps": "updates",
    "train.batch_size": "sequences of T letters in one step",
    "train.optimizer": "adamw: weight decay beside the gradient; adam: inside it; "
    "sgd: with momentum",
    "train.lr": "learning rate at its highest",
    "train.warmup": "W, steps of linear warm-up: lr (step + 1) / W",
    "train.schedule": "after warm-up, p from 0 to 1: lr; lr (1 + cos(pi p)) / 2; lr (1 - p)",
    "train.betas": "Adam's decay of the first and second moment",
    "train.adam_eps": "Adam's eps: the update is lr m / (sqrt(v) + eps), m and v bias-corrected",
    "train.weight_decay": "on matrices and embeddings only",
    "train.momentum": "of sgd",
    "train.clip": "largest total gradient norm; a larger one is scaled down to it",
    "train.precision": "fp32, fp64, bf16, fp16: weights, gradients and moments in that type; "
    "-mixed: autocast over fp32 weights",
    "train.loss_scale": "S, factor on the loss in backward with fp16 or fp16-mixed; "
    "auto: dynamic for fp16-mixed, else none",
    "train.z_loss": "z: adds z mean(log(sum exp logits)^2) to what is minimised",
    "train.device": "auto: cuda where there is one, else cpu",
    "train.threads": "CPU threads of one run",
    "train.flush_denormal": "the CPU sets denormal numbers (below 1e-38 in fp32) to 0",
    "train.compile": "torch.compile, block by block; equal within rounding. Steps that "
    "measure.level full reads, validation and the autopsy run without it",
    "train.checkpointing": "true: backward computes each block again, to save memory; auto: where "
    "the run would not fit in its share of the machine's. Changes no bit, so no run id",
    "train.max_seconds": "a run stops after the step in which its training reaches this time, with "
    "status interrupted; a larger limit goes on. Changes no row, so no run id",
    "train.on_nonfinite": "at a loss or gradient that is NaN or Inf; continue: without that update",
    "measure.level": "light: losses, gradients, weights, updates; full: the forward pass too; "
    "off: the training loss alone",
    "measure.every": "steps from one reading to the next; the loss is written at every step",
    "measure.sample": "level full: sequences of the batch that are read",
    "measure.eval_every": "steps from one validation loss to the next",
    "measure.snapshot_every": "steps from one checkpoint.pt to the next",
    "measure.keep": "of checkpoint.pt; all: weights, optimizer, place in the data; weights: the "
    "same, but of a run that learned the weights alone; none: nothing",
}

# N(0, s): normal with standard deviation s.
INITS = {
    "gpt2": "N(0, 0.02); W_O and W2 N(0, 0.02 / sqrt(2N)), but under lns; biases 0 (Radford 2019)",
    "xavier": "N(0, sqrt(2 / (fan_in + fan_out))); biases 0 (Glorot 2010)",
    "torch": "weights and biases uniform on +-1 / sqrt(fan_in), nn.Linear's default",
    "lesson": "N(0, 0.1); biases 0",
}
