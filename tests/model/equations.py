"""The network in NumPy, written from the equations alone: position by position, norm by norm.

Shapes: B batch, T time, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import erf, log, sqrt

import numpy as np
from numpy import ndarray as Array

from lnexp.config.schema import Model
from lnexp.model.gpt import GPT, MLP, Attention

NORMS_NP: dict[str, Callable[[Array, float], Array]] = {  # (x, eps), written from science 2
    "layernorm": lambda x, e: (x - mean(x)) / np.sqrt(mean((x - mean(x)) ** 2) + e),
    "layernorm_std": lambda x, e: (x - mean(x)) / (x.std(-1, ddof=1, keepdims=True) + e),
    "rmsnorm": lambda x, e: x / np.sqrt(mean(x**2) + e),
    "batchnorm": lambda x, e: (x - x.mean((0, 1))) / np.sqrt(x.var((0, 1)) + e),
    "powernorm": lambda x, e: x / np.sqrt(1 + e),  # before any batch was seen
    "scalenorm": lambda x, e: (
        sqrt(x.shape[-1]) * x / np.maximum(np.sqrt((x**2).sum(-1, keepdims=True)), e)
    ),
    "dyt": lambda x, e: np.tanh(0.5 * x),
}
NORMS_NP["layernorm_plain"] = NORMS_NP["layernorm"]
NORMS_NP["rmsnorm_plain"] = NORMS_NP["rmsnorm"]


def mean(x: Array) -> Array:
    return x.mean(-1, keepdims=True)


def softmax_np(s: Array) -> Array:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention_np(a: Attention, x: Array, heads: int) -> Array:
    w, b = a.wqkv.weight.numpy(), a.wqkv.bias.numpy()
    D = x.shape[-1]
    q, k, v = (x @ w[i * D : (i + 1) * D].T + b[i * D : (i + 1) * D] for i in range(3))
    y = np.zeros_like(x)
    K = D // heads
    for batch in range(x.shape[0]):
        for h in range(heads):
            s = slice(h * K, (h + 1) * K)
            for t in range(x.shape[1]):  # written as the definition: position by position
                scores = k[batch, : t + 1, s] @ q[batch, t, s] / sqrt(K)
                y[batch, t, s] = softmax_np(scores) @ v[batch, : t + 1, s]
    return y @ a.wo.weight.numpy().T + a.wo.bias.numpy()


def gelu_np(x: Array) -> Array:
    return 0.5 * x * (1 + np.vectorize(erf)(x / sqrt(2)))


def mlp_np(m: MLP, x: Array) -> Array:
    hidden = gelu_np(x @ m.w1.weight.numpy().T + m.w1.bias.numpy())
    return hidden @ m.w2.weight.numpy().T + m.w2.bias.numpy()


@dataclass
class Here:
    """What an equation of one sublayer may use."""

    F: Callable[[Array], Array]
    n: Callable[[Array], Array]
    l: int  # noqa: E741  block from 1, as the papers count
    half: str
    N: int
    x: Array  # the block's input
    gain: float = 0.0


Step = tuple[Array | None, Array, Array]  # what the serving norm reads, what is added, next h


def post(c: Here, h: Array, a: float = 1.0) -> Step:
    f = c.F(h)
    return a * h + f, f, c.n(a * h + f)


def pre(c: Here, h: Array) -> Step:
    f = c.F(c.n(h))
    return h, f, h + f


def none(c: Here, h: Array) -> Step:
    f = c.F(h)
    return None, f, h + f


def sandwich(c: Here, h: Array) -> Step:
    f = c.n(c.F(c.n(h)))
    return h, f, h + f


def output(c: Here, h: Array) -> Step:
    f = c.F(h)
    return f, c.n(f), h + c.n(f)


def keel(c: Here, h: Array) -> Step:
    f = c.F(c.n(h))
    total = (h if c.l == 1 else 2 * c.N * h) + f
    return h, f, total if (c.l, c.half) == (1, "attn") else c.n(total)


def rezero(c: Here, h: Array) -> Step:
    f = c.gain * c.F(h)
    return None, f, h + f


def lns(c: Here, h: Array) -> Step:
    f = c.F(c.n(h) / sqrt(c.l))
    return h, f, h + f


def b2t(c: Here, h: Array) -> Step:
    f = c.F(h)
    total = h + f if c.half == "attn" else c.x + h + f
    return total, f, c.n(total)


EQUATIONS: dict[str, Callable[[Here, Array], Step]] = {  # written from science 3
    "pre": pre,
    "post": post,
    "none": none,
    "sandwich": sandwich,
    "output": output,
    "deepnorm": lambda c, h: post(c, h, (2 * c.N) ** 0.25),
    "admin": lambda c, h: post(c, h, sqrt((2 * c.N + 1) / log(2 * c.N + 1) - 1)),
    "keel": keel,
    "rezero": rezero,
    "tfixup": none,
    "lns": lns,
    "mix": lambda c, h: post(c, h) if c.l <= -(-c.N // 4) else pre(c, h),
    "b2t": b2t,
    "residual_dual": post,
}
NO_SKIP: dict[str, Callable[[Here, Array], Array]] = {
    "pre": lambda c, h: c.F(c.n(h)),
    "post": lambda c, h: c.n(c.F(h)),
    "none": lambda c, h: c.F(h),
    "sandwich": lambda c, h: c.n(c.F(c.n(h))),
    "output": lambda c, h: c.n(c.F(h)),
}
FINAL = {"pre", "sandwich", "output", "lns", "mix"}


def network_np(model: GPT, config: Model, ids_BT: Array) -> tuple[Array, list[Step]]:
    """Logits, and each sublayer's step; norms without gain or at gain 1."""
    norm = NORMS_NP[config.norm]

    def n(x: Array) -> Array:
        return norm(x, config.eps)

    E, P = model.embed.token.weight.numpy(), model.embed.position.weight.numpy()
    h = r = E[ids_BT] + P[: ids_BT.shape[1]]
    steps: list[Step] = []
    for index, block in enumerate(model.blocks):
        x = h
        for half in ("attn", "mlp"):
            body = getattr(block, half).body

            def F(x, body=body, half=half):
                return attention_np(body, x, config.heads) if half == "attn" else mlp_np(body, x)

            here = Here(F, n, index + 1, half, config.depth, x)
            here.gain = float(getattr(block, "gain", 0.0))
            if config.residual:
                steps.append(EQUATIONS[config.placement](here, h))
                h, r = steps[-1][2], r + steps[-1][1]
            else:
                h = NO_SKIP[config.placement](here, h)
    if config.placement == "residual_dual":
        h = h + n(r)
    return (n(h) if config.placement in FINAL else h) @ model.head.weight.numpy().T, steps
