"""One run's configuration: typed, frozen, strict, complete. Free of torch and pandas.

Every key has a neutral default instead of None. How a YAML file becomes runs is sweep.py's work.
"""

from math import inf
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
# Finite unless the key says otherwise; an infinite learning rate is a typing error, not a setting.
Real = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Limit = Annotated[float, Field(gt=0)]  # .inf means no limit

PlacementName = Literal[
    "pre", "post", "none", "sandwich", "output", "deepnorm", "admin", "keel", "rezero", "tfixup",
    "lns", "mix", "b2t", "residual_dual",
]  # fmt: skip
NormName = Literal[
    "layernorm", "layernorm_plain", "layernorm_std", "rmsnorm", "rmsnorm_plain", "batchnorm",
    "powernorm", "scalenorm", "dyt",
]  # fmt: skip
InitName = Literal["gpt2", "xavier", "torch", "lesson"]
Precision = Literal["fp32", "fp64", "bf16", "fp16", "bf16-mixed", "fp16-mixed"]

# Token embeddings: the standard deviation that `embed_std: auto` stands for.
EMBED_STD: dict[str, float] = {"gpt2": 0.02, "xavier": 1.0, "torch": 1.0, "lesson": 0.1}


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Data(Section):
    source: Literal["pydoc", "file", "markov"] = "pydoc"
    path: str = ""
    encoding: str = "utf-8"
    val_fraction: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.1
    order: Annotated[int, Field(ge=1, le=3)] = 1
    symbols: Annotated[int, Field(ge=2, le=64)] = 16
    length: Annotated[int, Field(ge=100, le=10_000_000)] = 200_000
    chain_seed: NonNegative = 0


# Sizes are bounded: above what a machine trains, below what overflows a tensor's size, crashes the
# thread pool or lets a check of the model alone take minutes.
class Model(Section):
    depth: Annotated[int, Field(ge=1, le=5_000)] = 4
    width: Annotated[int, Field(ge=1, le=10_000_000)] = 64
    heads: Annotated[int, Field(ge=1, le=65_536)] = 4
    context: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    placement: PlacementName = "pre"
    norm: NormName = "layernorm"
    eps: Real = 1e-5
    residual: bool = True
    affine: bool = True
    init: InitName = "gpt2"
    init_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    embed_std: Literal["auto"] | Real = "auto"
    activation: Literal["gelu", "relu"] = "gelu"
    mlp_ratio: Annotated[int, Field(ge=1, le=1_000)] = 4
    dropout: Fraction = 0.0
    bias: bool = True
    tie_embeddings: bool = False
    qk_norm: bool = False
    attention: Literal["sdpa", "plain"] = "sdpa"
    softmax: Literal["stable", "plain"] = "stable"


class Train(Section):
    steps: Annotated[int, Field(ge=1, le=1_000_000_000)] = 200
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: Real = 1e-3
    warmup: NonNegative = 0
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = Field(
        default_factory=lambda: [0.9, 0.95]
    )
    adam_eps: Real = 1e-8
    weight_decay: Real = 0.1
    momentum: Fraction = 0.9
    clip: Limit = inf
    precision: Precision = "fp32"
    loss_scale: (
        Literal["auto", "none", "dynamic"] | Annotated[float, Field(gt=0, allow_inf_nan=False)]
    ) = "auto"
    z_loss: Real = 0.0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: Annotated[int, Field(ge=1, le=1_024)] = 1
    flush_denormal: bool = True
    compile: bool = False
    checkpointing: Literal["auto"] | bool = "auto"
    max_seconds: Limit = inf
    on_nonfinite: Literal["stop", "continue"] = "stop"


class Measure(Section):
    level: Literal["light", "full", "off"] = "light"
    every: Positive = 1
    sample: Positive = 2
    eval_every: Positive = 50
    snapshot_every: Positive = 50
    keep: Literal["weights", "none", "all"] = "weights"


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
    return EMBED_STD[model.init] if model.embed_std == "auto" else float(model.embed_std)
