"""One run's configuration: typed, frozen, strict, complete. Free of torch and pandas.

Every key has a neutral default instead of None. How a YAML file becomes runs is sweep.py's work.
"""

from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lnexp.model.catalog import (
    ACTIVATIONS,
    INITS,
    NORMS,
    OPTIMIZERS,
    PLACEMENTS,
    PRECISIONS,
    SCHEDULES,
)

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
# Finite unless the key says otherwise; an infinite learning rate is a typing error, not a setting.
Real = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Limit = Annotated[float, Field(gt=0)]  # .inf means no limit

# At a field: it decides what a run leaves on disk or how long it may take, and changes no row, so
# no run id.
NO_ROW = "changes no row"

# A setting's allowed words are the names of the catalog: a new entry there is a new value here.
if TYPE_CHECKING:
    PlacementName = NormName = InitName = ActivationName = str
    OptimizerName = ScheduleName = PrecisionName = str
else:
    PlacementName, NormName, InitName = (Literal[tuple(d)] for d in (PLACEMENTS, NORMS, INITS))
    ActivationName, OptimizerName = (Literal[tuple(d)] for d in (ACTIVATIONS, OPTIMIZERS))
    ScheduleName, PrecisionName = (Literal[tuple(d)] for d in (SCHEDULES, PRECISIONS))


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Data(Section):
    source: Literal["pydoc", "file", "markov"] = Field(
        default="pydoc",
        description="pydoc: English text that comes with Python; file: a text of yours; markov: "
        "letters of a seeded chain whose entropy rate is known exactly",
    )
    path: str = Field(
        default="",
        description="source file: the text, relative to the config's folder; after -s to this one",
    )
    encoding: str = Field(
        default="utf-8",
        description="source file: its encoding, by Python's name (utf-8, cp1252, ...)",
    )
    val_fraction: Fraction = Field(
        default=0.1,
        description="share of the letters, at the text's end, kept for validation; 0: none",
    )
    order: Annotated[int, Field(ge=1, le=3)] = Field(
        default=1, description="source markov: letters that the next one depends on"
    )
    symbols: Annotated[int, Field(ge=2, le=64)] = Field(
        default=16, description="source markov: different letters"
    )
    length: Annotated[int, Field(ge=100, le=10_000_000)] = Field(
        default=200_000, description="source markov: letters of the text"
    )
    chain_seed: NonNegative = Field(
        default=0, description="source markov: draws chain and text, whatever the run's seed"
    )


# Sizes are bounded: above what a machine trains, below what overflows a tensor's size, crashes the
# thread pool or lets a check of the model alone take minutes.
class Model(Section):
    depth: Annotated[int, Field(ge=1, le=5_000)] = Field(
        default=4, description="N, blocks (attention + MLP each; 2 N residual sublayers)"
    )
    width: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        default=64, description="D, features of the residual stream; a multiple of heads"
    )
    heads: Annotated[int, Field(ge=1, le=65_536)] = Field(
        default=4, description="attention heads, each of width / heads features"
    )
    context: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=64, description="T, letters that a prediction may look back on"
    )
    placement: PlacementName = Field(
        default="pre", description="where the norms stand; see Placements"
    )
    norm: NormName = Field(default="layernorm", description="the normalizer; see Norms")
    eps: Real = Field(default=1e-5, description="added inside the norm (where exactly: see Norms)")
    residual: bool = Field(default=True, description="false: x = F(x) instead of x + F(x)")
    affine: bool = Field(
        default=True, description="norms learn gain g and bias b; false: g = 1, b = 0"
    )
    init: InitName = Field(default="gpt2", description="how weights are drawn; see Inits")
    init_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=1.0, description="factor on the std of the blocks' matrices"
    )
    embed_std: Literal["auto"] | Real = Field(
        default="auto", description="std of the token embeddings; auto: by init, see Inits"
    )
    activation: ActivationName = Field(default="gelu", description="of the MLP")
    mlp_ratio: Annotated[int, Field(ge=1, le=1_000)] = Field(
        default=4, description="the MLP's hidden features / width"
    )
    dropout: Fraction = Field(
        default=0.0, description="share of the sublayers' activations set to 0 while training"
    )
    bias: bool = Field(default=True, description="linear layers have biases")
    tie_embeddings: bool = Field(
        default=False, description="the head's weight is the token embedding's"
    )
    qk_norm: bool = Field(
        default=False, description="norms on queries and keys, a head's features at a time"
    )
    attention: Literal["sdpa", "plain"] = Field(
        default="sdpa", description="sdpa: torch's fused attention; plain: written out"
    )
    softmax: Literal["stable", "plain"] = Field(
        default="stable",
        description="stable: minus the row's maximum; plain: exp(x) / sum exp(x), needs attention "
        "plain",
    )


class Train(Section):
    steps: Annotated[int, Field(ge=1, le=1_000_000_000)] = Field(default=200, description="updates")
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=16, description="sequences of T letters in one step"
    )
    optimizer: OptimizerName = Field(
        default="adamw",
        description="adamw: weight decay beside the gradient; adam: inside it; sgd: with momentum",
    )
    lr: Real = Field(default=1e-3, description="learning rate at its highest")
    warmup: NonNegative = Field(
        default=0, description="W, steps of linear warm-up: lr (step + 1) / W"
    )
    schedule: ScheduleName = Field(
        default="constant",
        description="after warm-up, p from 0 to 1: lr; lr (1 + cos(pi p)) / 2; lr (1 - p)",
    )
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = Field(
        default_factory=lambda: [0.9, 0.95],
        description="Adam's decay of the first and second moment",
    )
    adam_eps: Real = Field(
        default=1e-8,
        description="Adam's eps: the update is lr m / (sqrt(v) + eps), m and v bias-corrected",
    )
    weight_decay: Real = Field(default=0.1, description="on matrices and embeddings only")
    momentum: Fraction = Field(default=0.9, description="of sgd")
    clip: Limit = Field(
        default=inf, description="largest total gradient norm; a larger one is scaled down to it"
    )
    precision: PrecisionName = Field(
        default="fp32",
        description="fp32, fp64, bf16, fp16: weights, gradients and moments in that type; -mixed: "
        "autocast over fp32 weights",
    )
    loss_scale: (
        Literal["auto", "none", "dynamic"] | Annotated[float, Field(gt=0, allow_inf_nan=False)]
    ) = Field(
        default="auto",
        description="S, factor on the loss in backward with fp16 or fp16-mixed; auto: dynamic for "
        "fp16-mixed, else none",
    )
    z_loss: Real = Field(
        default=0.0, description="z: adds z mean(log(sum exp logits)^2) to what is minimised"
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        default="auto", description="auto: cuda where there is one, else cpu"
    )
    threads: Annotated[int, Field(ge=1, le=1_024)] = Field(
        default=1, description="CPU threads of one run"
    )
    flush_denormal: bool = Field(
        default=True, description="the CPU sets denormal numbers (below 1e-38 in fp32) to 0"
    )
    compile: bool = Field(
        default=False,
        description="torch.compile, block by block; equal within rounding. Steps that "
        "measure.level full reads, validation and the autopsy run without it",
    )
    checkpointing: Annotated[Literal["auto"] | bool, NO_ROW] = Field(
        default="auto",
        description="true: backward computes each block again, to save memory; auto: where the run "
        "would not fit in its share of the machine's. Changes no bit, so no run id",
    )
    max_seconds: Annotated[Limit, NO_ROW] = Field(
        default=inf,
        description="a run stops after the step in which its training reaches this time, with "
        "status interrupted; a larger limit goes on. Changes no row, so no run id",
    )
    on_nonfinite: Literal["stop", "continue"] = Field(
        default="stop",
        description="at a loss or gradient that is NaN or Inf; continue: without that update",
    )


class Measure(Section):
    level: Literal["light", "full", "off"] = Field(
        default="light",
        description="light: losses, gradients, weights, updates; full: the forward pass too; off: "
        "the training loss alone",
    )
    every: Positive = Field(
        default=1,
        description="steps from one reading to the next; the loss is written at every step",
    )
    sample: Positive = Field(
        default=2, description="level full: sequences of the batch that are read"
    )
    eval_every: Positive = Field(
        default=50, description="steps from one validation loss to the next"
    )
    snapshot_every: Annotated[Positive, NO_ROW] = Field(
        default=50, description="steps from one checkpoint.pt to the next"
    )
    keep: Annotated[Literal["weights", "none", "all"], NO_ROW] = Field(
        default="weights",
        description="of checkpoint.pt; all: weights, optimizer, place in the data; weights: the "
        "same, but of a run that learned the weights alone; none: nothing",
    )


class Seed(Section):
    init: NonNegative = 0
    data: NonNegative = 0


class RunConfig(Section):
    """Everything that decides a run's rows."""

    data: Data = Field(default_factory=Data)
    model: Model = Field(default_factory=Model)
    train: Train = Field(default_factory=Train)
    measure: Measure = Field(default_factory=Measure)
    seed: Seed = Field(default_factory=Seed)

    def settings(self) -> dict[str, Any]:
        """Every setting but the seed by its dotted name: {'model.depth': 4, ...}."""
        return {
            f"{section}.{key}": value
            for section in SECTIONS
            for key, value in getattr(self, section).model_dump().items()
        }


SECTIONS: dict[str, type[Section]] = {
    "data": Data,
    "model": Model,
    "train": Train,
    "measure": Measure,
}
# 'model.depth' -> its field, for key checks, axes and nearest-key hints.
KEYS: dict[str, Any] = {
    f"{section}.{key}": field
    for section, model in SECTIONS.items()
    for key, field in model.model_fields.items()
}


def resolved_embed_std(model: Model) -> float:
    """Standard deviation of the token embeddings."""
    return INITS[model.init].embed_std if model.embed_std == "auto" else float(model.embed_std)
