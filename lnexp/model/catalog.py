"""What a model and its training may be made of: each name once, with its equation and its facts.

Free of torch and of the config, so that both halves read it: checks of a config, `lnexp norm`,
`lnexp plan`, the report's drawing, docs/settings.md. What computes an entry stands beside torch: a
placement's block in branches.py, a norm's module in norms.py, an init's draw in init.py, an
activation's function in gpt.py, an optimizer's construction in train/optim.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, log, pi, sqrt
from typing import Literal

# Placements. N blocks (attention + MLP), R = 2N residual sublayers, h the residual stream, F a
# sublayer.


@dataclass(frozen=True)
class Seat:
    """One sublayer of a network."""

    block: int  # from 0
    half: str  # attn or mlp
    depth: int  # N


@dataclass(frozen=True)
class Terms:
    """after(skip h + inside(body(before(h) / damp))): which norms stand, two constants."""

    before: bool = False
    inside: bool = False
    after: bool = False
    skip: float = 1.0
    damp: float = 1.0

    @property
    def norms(self) -> tuple[str, ...]:
        """Of before, inside, after: the places that hold a norm."""
        return tuple(place for place in ("before", "inside", "after") if getattr(self, place))


Where = bool | Callable[[Seat], bool]
# What a block's two sublayers hand on: one stream; it, times a learned gain a block; it, with the
# block's input added again; two streams.
BlockName = Literal["plain", "gain", "bypass", "dual"]


@dataclass(frozen=True)
class Placement:
    """Which of a sublayer's places hold a norm, whether the whole network ends with one, and the
    constants that go with it."""

    equation: str
    source: str
    before: Where = False  # F(norm(h))
    inside: Where = False  # h + norm(F(...))
    after: Where = False  # norm(h + F(...))
    final: bool = False  # the network ends with a norm
    drops_skip: bool = False  # `residual: false` is a question; else the skip is what defines it
    skip: Callable[[Seat], float] = lambda seat: 1.0  # a in a h + F
    damp: Callable[[Seat], float] = lambda seat: 1.0  # s in F(norm(h) / s)
    shrunk: tuple[str, ...] = ()  # weights whose init std is multiplied
    shrink: Callable[[int], float] = lambda depth: 1.0  # by this
    plain_gpt2: bool = False  # init gpt2 without / sqrt(2N) on the residual projections
    block: BlockName = "plain"

    def at(self, seat: Seat) -> Terms:
        before, inside, after = (w if isinstance(w, bool) else w(seat) for w in self.places)
        return Terms(before, inside, after, self.skip(seat), self.damp(seat))

    @property
    def places(self) -> tuple[Where, Where, Where]:
        return self.before, self.inside, self.after

    @property
    def has_norm(self) -> bool:
        """Whether any norm stands, so that norm, eps and affine have an effect."""
        return any(where is not False for where in (*self.places, self.final))

    def init_factor(self, weight: str, depth: int) -> float:
        """Of 'blocks.3.attn.body.wv': what its std is multiplied by."""
        return self.shrink(depth) if weight.rpartition(".")[2] in self.shrunk else 1.0


def _early(seat: Seat) -> bool:
    """In the first quarter of the blocks; a part of a block counts as one."""
    return seat.block < seat.depth / 4


def _admin(seat: Seat) -> float:
    """sqrt((R + 1) / ln(R + 1) - 1)."""
    sublayers = 2 * seat.depth + 1
    return sqrt(sublayers / log(sublayers) - 1)


PLACEMENTS: dict[str, Placement] = {
    "pre": Placement(
        "h + F(norm(h)); final norm", "Xiong 2020", before=True, final=True, drops_skip=True
    ),
    "post": Placement("norm(h + F(h))", "Xiong 2020", after=True, drops_skip=True),
    "none": Placement("h + F(h)", "", drops_skip=True),
    "sandwich": Placement(
        "h + norm2(F(norm1(h))); final norm",
        "CogView; Gemma 2",
        before=True,
        inside=True,
        final=True,
        drops_skip=True,
    ),
    "output": Placement(
        "h + norm(F(h)); final norm", "OLMo 2; Swin v2", inside=True, final=True, drops_skip=True
    ),
    "deepnorm": Placement(
        "norm(a h + F(h)), a = (2N)^(1/4); init of W1, W2, W_V, W_O times (8N)^(-1/4)",
        "Wang 2022 (DeepNet)",
        after=True,
        skip=lambda seat: (2 * seat.depth) ** 0.25,
        shrunk=("w1", "w2", "wv", "wo"),
        shrink=lambda depth: (8 * depth) ** -0.25,
    ),
    "admin": Placement(
        "norm(w h + F(h)), w = sqrt((R + 1) / ln(R + 1) - 1)",
        "Liu 2020; admin-torch",
        after=True,
        skip=_admin,
    ),
    "keel": Placement(
        "norm(a h + F(norm(h))), a = R; first block a = 1, first attention without outer norm",
        "Chen 2026 (KEEL)",
        before=True,
        after=lambda seat: (seat.block, seat.half) != (0, "attn"),
        skip=lambda seat: 2.0 * seat.depth if seat.block else 1.0,
    ),
    "rezero": Placement(
        "h + a F(h), a learned, one a block, 0 at the start", "Bachlechner 2020", block="gain"
    ),
    "tfixup": Placement(
        "h + F(h); init of W_O, W2, W_V and both embeddings times (9N)^(-1/4)",
        "Huang 2020",
        shrunk=("wo", "w2", "wv", "token", "position"),
        shrink=lambda depth: (9 * depth) ** -0.25,
    ),
    "lns": Placement(
        "h + F(norm(h) / sqrt(l)), l the block from 1; final norm; init gpt2 without / sqrt(2N)",
        "Sun 2025 (LayerNorm scaling)",
        before=True,
        final=True,
        damp=lambda seat: sqrt(seat.block + 1),
        plain_gpt2=True,
    ),
    "mix": Placement(
        "the first N/4 blocks, rounded up, norm(h + F(h)), the rest h + F(norm(h)); final norm",
        "Li 2024 (Mix-LN)",
        before=lambda seat: not _early(seat),
        after=_early,
        final=True,
    ),
    "b2t": Placement(
        "post; the MLP half is norm(x + h + F(h)), x the block's input",
        "Takase 2022",
        after=True,
        block="bypass",
    ),
    "residual_dual": Placement(
        "h' = norm(h + F(h)), r' = r + F(h); the network ends with h + norm(r)",
        "Xie 2023 (ResiDual)",
        after=True,
        final=True,
        block="dual",
    ),
}


# Norms. x one token's features, g gain, b bias.

# What eps is added to or compared with: of a token, or of a feature over batch and time.
Statistic = Literal[
    "variance", "deviation", "mean_square", "length", "batch_variance", "batch_mean_square"
]


@dataclass(frozen=True)
class Example:
    """What `lnexp norm` says beside the steps that model/worked.py goes through."""

    over: str  # what the statistics are over
    equation: str = ""  # where that of a few numbers differs from the norm's
    eps: float = 1e-5
    divides_by: str = ""  # N or N - 1: the variance


@dataclass(frozen=True)
class Norm:
    equation: str
    source: str
    beside_eps: Statistic | None  # None: it has no eps
    causal: bool = True  # False: a later token changes what an earlier one becomes
    least_width: int = 1
    running_gradient: bool = False  # which a changing loss scale spoils
    example: Example | None = None

    @property
    def over_batch(self) -> bool:
        """Whether its statistics are a feature's over batch and time, not a token's."""
        return self.beside_eps in ("batch_variance", "batch_mean_square")


NORMS: dict[str, Norm] = {
    "layernorm": Norm(
        "(x - mean) / sqrt(var + eps) * g + b",
        "Ba 2016; PyTorch",
        "variance",
        example=Example("Mean and variance over the features of each row (token).", divides_by="N"),
    ),
    "layernorm_plain": Norm(
        "the same, in the tensor's own dtype", "lesson 1's function", "variance"
    ),
    "layernorm_std": Norm(
        "(x - mean) / (std + eps) * g + b, std unbiased",
        "lesson 2's class",
        "deviation",
        least_width=2,
        example=Example(
            "Mean and deviation over the features of each row (token).",
            eps=1e-6,
            divides_by="N - 1",
        ),
    ),
    "rmsnorm": Norm(
        "x / sqrt(mean x^2 + eps) * g",
        "Zhang 2019; PyTorch",
        "mean_square",
        example=Example("Mean square over the features of each row (token); no mean is taken off."),
    ),
    "rmsnorm_plain": Norm("the same, in the tensor's own dtype", "Zhang 2019", "mean_square"),
    "batchnorm": Norm(
        "(x - mean) / sqrt(var + eps) * g + b over batch and time; running ones at evaluation",
        "Ioffe 2015; PyTorch",
        "batch_variance",
        causal=False,
        example=Example(
            "Mean and variance over the rows (the batch), for each feature on its own.",
            equation="(x - mean) / sqrt(var + eps) * g + b, over the batch",
            divides_by="N",
        ),
    ),
    "powernorm": Norm(
        "x / sqrt(running mean x^2 over batch and time + eps) * g + b; approximate backward",
        "Shen 2020",
        "batch_mean_square",
        running_gradient=True,
    ),
    "scalenorm": Norm(
        "g x / max(|x|, eps); g starts at sqrt(width)",
        "Nguyen 2019",
        "length",
        example=Example(
            "Length over the features of each row (token).",
            equation="sqrt(d) x / max(norm(x), eps)",
        ),
    ),
    "dyt": Norm(
        "tanh(a x) g + b; a starts at 0.5",
        "Zhu 2025",
        None,
        example=Example("No statistics: each number on its own.", equation="tanh(a x) * g + b"),
    ),
}
EXAMPLES = {name: norm.example for name, norm in NORMS.items() if norm.example is not None}


# Inits. N(0, s): normal with standard deviation s.


@dataclass(frozen=True)
class Init:
    equation: str  # of the blocks' weights, and of the head's
    source: str
    embed_std: float  # of the token embeddings: what `embed_std: auto` stands for
    draws_biases: bool = False  # else they are 0


INITS: dict[str, Init] = {
    "gpt2": Init(
        "N(0, 0.02); W_O and W2 N(0, 0.02 / sqrt(2N)), but under lns; biases 0",
        "Radford 2019",
        0.02,
    ),
    "xavier": Init("N(0, sqrt(2 / (fan_in + fan_out))); biases 0", "Glorot 2010", 1.0),
    "torch": Init(
        "weights and biases uniform on +-1 / sqrt(fan_in), nn.Linear's default", "", 1.0, True
    ),
    "lesson": Init("N(0, 0.1); biases 0", "", 0.1),
}
POSITION_STD = 0.02  # of the position embeddings, whatever the init


@dataclass(frozen=True)
class Activation:
    equation: str
    source: str


ACTIVATIONS: dict[str, Activation] = {
    "gelu": Activation("x Phi(x), Phi the normal distribution's", "Hendrycks 2016"),
    "relu": Activation("max(x, 0)", "Nair 2010"),
}


# Training. g a gradient, w a weight, lambda the weight decay.


@dataclass(frozen=True)
class UpdateRule:
    """An optimizer's step."""

    equation: str
    source: str
    reads_betas: bool = False  # and adam_eps; it holds two moments
    reads_momentum: bool = False

    @property
    def absorbs_scale(self) -> bool:
        """Whether a fixed factor on all gradients changes the update by no more than eps does."""
        return self.reads_betas

    def moments(self, momentum: float) -> int:
        """Tensors that it keeps a weight."""
        return 2 if self.reads_betas else int(momentum > 0)


OPTIMIZERS: dict[str, UpdateRule] = {
    "adamw": UpdateRule(
        "w - lr (m / (sqrt(v) + eps) + lambda w), m and v of g, bias-corrected",
        "Loshchilov 2019; PyTorch",
        reads_betas=True,
    ),
    "adam": UpdateRule(
        "w - lr m / (sqrt(v) + eps), m and v of g + lambda w, bias-corrected",
        "Kingma 2015; PyTorch",
        reads_betas=True,
    ),
    "sgd": UpdateRule(
        "w - lr u, u = momentum u + g + lambda w", "Sutskever 2013; PyTorch", reads_momentum=True
    ),
}


@dataclass(frozen=True)
class Precision:
    """torch's type of the weights (and so of gradients and moments), and autocast's, if any."""

    weights: str
    autocast: str = ""


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision("float32"),
    "fp64": Precision("float64"),
    "bf16": Precision("bfloat16"),
    "fp16": Precision("float16"),
    "bf16-mixed": Precision("float32", "bfloat16"),
    "fp16-mixed": Precision("float32", "float16"),
}


@dataclass(frozen=True)
class Schedule:
    equation: str  # of the learning rate after warm-up, p from 0 to 1
    factor: Callable[[float], float]  # p -> factor on lr
    reads_steps: bool = True  # False: a longer run begins with the same steps


SCHEDULES: dict[str, Schedule] = {
    "constant": Schedule("lr", lambda p: 1.0, reads_steps=False),
    "cosine": Schedule("lr (1 + cos(pi p)) / 2", lambda p: 0.5 * (1 + cos(pi * p))),
    "linear": Schedule("lr (1 - p)", lambda p: 1 - p),
}
