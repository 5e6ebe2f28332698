"""Initialisation: which draw fills which weight. A new init is one of DRAWS, its equation and
source one of catalog.INITS.

Every weight has a generator of its own, keyed by the init seed and the weight's name: runs of
other depth or placement share the weights that they have in common.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import sqrt

import torch
from torch import Tensor, nn

from lnexp.config.schema import Model, resolved_embed_std
from lnexp.model.catalog import INITS, PLACEMENTS, POSITION_STD
from lnexp.model.gpt import GPT, MLP, Attention, Embedding
from lnexp.model.norms import STARTS, ScaleNorm
from lnexp.seeds import derive


@dataclass(frozen=True)
class Draw:
    """normal: std; uniform: on [-bound, bound]; constant: a value."""

    kind: str
    scale: float

    @property
    def std(self) -> float:
        return {"normal": self.scale, "uniform": self.scale / sqrt(3), "constant": 0.0}[self.kind]


@dataclass(frozen=True)
class Weight:
    """A tensor, or the slice of one, that is drawn on its own."""

    name: str  # wq, wk, wv stand apart, however they are stored
    role: str  # embed, position, matrix, residual (W_O, W2), head, bias, gain, shift
    tensor: Tensor
    fan_in: int = 0
    fan_out: int = 0
    start: float = 0.0  # of a gain or a shift


def _gpt2(w: Weight, config: Model) -> Draw:
    scaled = w.role == "residual" and not PLACEMENTS[config.placement].plain_gpt2
    return Draw("normal", 0.02 / sqrt(2 * config.depth) if scaled else 0.02)


DRAWS: dict[str, Callable[[Weight, Model], Draw]] = {
    "gpt2": _gpt2,
    "xavier": lambda w, config: Draw("normal", sqrt(2 / (w.fan_in + w.fan_out))),
    "torch": lambda w, config: Draw("uniform", 1 / sqrt(w.fan_in)),
    "lesson": lambda w, config: Draw("normal", 0.1),
}


def draw_of(w: Weight, config: Model) -> Draw:
    """The init's draw, times what the placement asks for."""
    draw, placement = _draw(w, config), PLACEMENTS[config.placement]
    return replace(draw, scale=draw.scale * placement.init_factor(w.name, config.depth))


def _draw(w: Weight, config: Model) -> Draw:
    if w.role == "bias" and not INITS[config.init].draws_biases:
        return Draw("constant", 0.0)
    if w.role in ("gain", "shift"):
        return Draw("constant", w.start)
    if w.role == "embed":
        return Draw("normal", resolved_embed_std(config))
    if w.role == "position":
        return Draw("normal", POSITION_STD)
    draw = DRAWS[config.init](w, config)
    if w.role in ("matrix", "residual"):  # init_scale: the blocks' matrices
        draw = Draw(draw.kind, draw.scale * config.init_scale)
    return draw


def weights(model: GPT) -> Iterator[Weight]:
    """Every weight of the model once, under the name that its generator is keyed by."""
    for path, module in model.named_modules():
        match module:
            case Attention():
                for index, name in enumerate(("wq", "wk", "wv")):
                    yield from _linear(f"{path}.{name}", "matrix", module.wqkv, index, 3)
                yield from _linear(f"{path}.wo", "residual", module.wo)
            case MLP():
                yield from _linear(f"{path}.w1", "matrix", module.w1)
                yield from _linear(f"{path}.w2", "residual", module.w2)
            case Embedding():
                yield Weight(f"{path}.token", "embed", module.token.weight)
                yield Weight(f"{path}.position", "position", module.position.weight)
            case GPT():
                if module.head.weight is not module.embed.token.weight:
                    yield from _linear("head", "head", module.head)
            case ScaleNorm(weight=nn.Parameter() as gain):
                yield Weight(f"{path}.weight", "gain", gain, start=module.unit)
            case _ if not isinstance(module, nn.Linear | nn.Embedding):
                for name, tensor in module.named_parameters(recurse=False):
                    role = "shift" if name == "bias" else "gain"
                    yield Weight(f"{path}.{name}", role, tensor, start=STARTS[name])


def _linear(
    name: str, role: str, linear: nn.Linear, index: int = 0, parts: int = 1
) -> Iterator[Weight]:
    matrix = linear.weight.chunk(parts)[index]
    fan_out, fan_in = matrix.shape
    yield Weight(name, role, matrix, fan_in, fan_out)
    if linear.bias is not None:
        yield Weight(f"{name}.bias", "bias", linear.bias.chunk(parts)[index], fan_in, fan_out)


@torch.no_grad()
def initialise(model: GPT, config: Model, seed: int) -> None:
    """Fill every weight from its own stream; drawn in fp32 on the CPU, whatever the device.
    Running statistics start anew."""
    for name, buffer in model.named_buffers():
        buffer.fill_(STARTS[name.rpartition(".")[2]])
    for w in weights(model):
        draw = draw_of(w, config)
        if draw.kind == "constant":
            w.tensor.fill_(draw.scale)
            continue
        generator = torch.Generator().manual_seed(derive(seed, f"init {w.name}"))
        if draw.kind == "normal":
            values = torch.randn(w.tensor.shape, generator=generator) * draw.scale
        else:
            values = torch.rand(w.tensor.shape, generator=generator).mul_(2).sub_(1) * draw.scale
        w.tensor.copy_(values)


def build(config: Model, vocabulary: int, seed: int) -> GPT:
    """An initialised fp32 model on the CPU; torch's own initialisers are never run."""
    with torch.device("meta"):
        model = GPT(config, vocabulary)
    model.to_empty(device="cpu")
    if config.tie_embeddings:  # to_empty allocates the two names apart
        model.head.weight = model.embed.token.weight
    initialise(model, config, seed)
    return model
