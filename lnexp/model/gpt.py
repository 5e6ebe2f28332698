"""A character-level GPT whose block is an equation.

Shapes: B batch, T time, D width, H heads, K width of a head, V vocabulary.
"""

from collections.abc import Callable, Iterable
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lnexp.config.schema import Model
from lnexp.model.branches import BLOCKS, Sublayer
from lnexp.model.catalog import PLACEMENTS, Seat
from lnexp.model.norms import build_norm

ACTIVATION_FUNCTIONS = {"gelu": F.gelu, "relu": F.relu}


class Attention(nn.Module):
    """Causal self-attention: softmax(q k / sqrt(K)) v, then W_O."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.heads = config.heads
        self.plain = config.attention == "plain"
        self.softmax = SOFTMAXES[config.softmax]
        self.dropout = config.dropout
        # W_Q, W_K and W_V in one product; initialised and measured as three matrices.
        self.wqkv = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.wo = nn.Linear(config.width, config.width, bias=config.bias)
        head_width = config.width // config.heads

        def qk_norm() -> nn.Module:
            if not config.qk_norm:
                return nn.Identity()
            return build_norm(config.norm, head_width, config.eps, config.affine)

        self.q_norm, self.k_norm = qk_norm(), qk_norm()

    def split(self, qkv_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k (after QK norm) and v, each BHTK, from the joint product."""
        B, T, _ = qkv_BTE.shape
        q, k, v = qkv_BTE.view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return self.q_norm(q), self.k_norm(k), v

    @staticmethod
    def products(q_BHTK: Tensor, k_BHTK: Tensor) -> Tensor:
        """q k / sqrt(K), BHTT."""
        return q_BHTK @ k_BHTK.transpose(-2, -1) / sqrt(q_BHTK.shape[-1])

    def scores(self, q_BHTK: Tensor, k_BHTK: Tensor) -> Tensor:
        """The products with -inf on later positions, BHTT."""
        scores_BHTT = self.products(q_BHTK, k_BHTK)
        T = scores_BHTT.shape[-1]
        later_TT = torch.ones(T, T, dtype=torch.bool, device=q_BHTK.device).triu(1)
        return scores_BHTT.masked_fill(later_TT, float("-inf"))

    def forward(self, x_BTD: Tensor) -> Tensor:
        q, k, v = self.split(self.wqkv(x_BTD))
        rate = self.dropout if self.training else 0.0
        if self.plain:
            p_BHTT = F.dropout(self.softmax(self.scores(q, k)), rate)
            y_BHTK = p_BHTT @ v
        else:
            y_BHTK = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        y_BTD = y_BHTK.transpose(1, 2).flatten(2)
        return F.dropout(self.wo(y_BTD), rate)


def softmax_stable(scores: Tensor) -> Tensor:
    """exp(s - max s) / sum over the last dimension."""
    return scores.softmax(-1)


def softmax_plain(scores: Tensor) -> Tensor:
    """exp(s) / sum, the lesson's: overflows once a score passes 88 in fp32."""
    weights = scores.exp()
    return weights / weights.sum(-1, keepdim=True)


SOFTMAXES = {"stable": softmax_stable, "plain": softmax_plain}


class MLP(nn.Module):
    """W2 activation(W1 x)."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        hidden = config.mlp_ratio * config.width
        self.w1 = nn.Linear(config.width, hidden, bias=config.bias)
        self.w2 = nn.Linear(hidden, config.width, bias=config.bias)
        self.activation = ACTIVATION_FUNCTIONS[config.activation]
        self.dropout = config.dropout

    def forward(self, x_BTD: Tensor) -> Tensor:
        rate = self.dropout if self.training else 0.0
        return F.dropout(self.w2(self.activation(self.w1(x_BTD))), rate)


def new_block(config: Model, index: int) -> nn.Module:
    """Block `index` (from 0) of a network."""
    placement = PLACEMENTS[config.placement]
    bodies = {"attn": Attention, "mlp": MLP}

    def norm() -> nn.Module:
        return build_norm(config.norm, config.width, config.eps, config.affine)

    def build(kind: type[Sublayer], half: str) -> Sublayer:
        terms = placement.at(Seat(index, half, config.depth))
        return kind(bodies[half](config), terms, config.residual, norm)

    return BLOCKS[placement.block](build)


class Embedding(nn.Module):
    """E[letter] + P[position]."""

    def __init__(self, config: Model, vocabulary: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.dropout = config.dropout

    def forward(self, ids_BT: Tensor) -> Tensor:
        h_BTD = self.token(ids_BT) + self.position.weight[: ids_BT.shape[1]]
        return F.dropout(h_BTD, self.dropout if self.training else 0.0)


class GPT(nn.Module):
    """embedding -> blocks -> (final norm) -> head; logits BTV from ids BT."""

    def __init__(self, config: Model, vocabulary: int) -> None:
        super().__init__()
        self.embed = Embedding(config, vocabulary)
        self.blocks = nn.ModuleList(new_block(config, i) for i in range(config.depth))
        placement = PLACEMENTS[config.placement]
        self.network = BLOCKS[placement.block].network
        self.norm = (
            build_norm(config.norm, config.width, config.eps, config.affine)
            if placement.final
            else nn.Identity()
        )
        self.head = nn.Linear(config.width, vocabulary, bias=False)
        if config.tie_embeddings:
            self.head.weight = self.embed.token.weight

    def forward(self, ids_BT: Tensor) -> Tensor:
        return self.through(ids_BT, self.blocks)

    def through(self, ids_BT: Tensor, blocks: Iterable[Callable[..., Any]]) -> Tensor:
        """With these blocks' calls in place of the model's own."""
        return self.head(self.network(self.embed(ids_BT), blocks, self.norm))
