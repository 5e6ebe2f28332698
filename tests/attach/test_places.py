"""Any model's parameters by layer and part, from the names the model gives them."""

import pytest
import torch
from torch import nn

from lnexp.config.schema import Model
from lnexp.measure.groups import place_of, places
from lnexp.messages import UserError
from lnexp.model.init import build


def named(*names: str) -> nn.Module:
    """A model whose modules have these dotted names, each with one weight (a norm where the last
    word says so)."""
    model = nn.Module()
    for name in names:
        *path, last = name.split(".")
        here = model
        for word in path:
            if not hasattr(here, word):
                here.add_module(word, nn.Module())
            here = getattr(here, word)
        here.add_module(last, nn.LayerNorm(2, bias=False) if "norm" in last else Weight())
    return model


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))


GPT2 = {
    "transformer.wte": (-1, "embed"),
    "transformer.h.0.ln_1": (0, "norm"),
    "transformer.h.0.attn.c_attn": (0, "attn"),
    "transformer.h.0.mlp.c_fc": (0, "mlp"),
    "transformer.h.1.ln_1": (1, "norm"),
    "transformer.h.1.attn.c_proj": (1, "attn"),
    "transformer.h.1.mlp.c_proj": (1, "mlp"),
    "transformer.ln_f": (2, "norm"),
    "lm_head": (2, "head"),
}
LLAMA = {
    "model.embed_tokens": (-1, "embed"),
    "model.layers.0.self_attn.q_proj": (0, "attn"),
    "model.layers.0.mlp.gate_proj": (0, "mlp"),
    "model.layers.0.input_layernorm": (0, "norm"),
    "model.layers.0.post_attention_layernorm": (0, "norm"),
    "model.norm": (1, "norm"),
    "lm_head": (1, "head"),
}
BERT = {
    "bert.embeddings.LayerNorm_norm": (-1, "embed"),
    "bert.encoder.layer.0.attention.self.query": (0, "attn"),
    "bert.encoder.layer.0.attention.output.dense": (0, "attn"),
    "bert.encoder.layer.0.intermediate.dense": (0, "mlp"),
    "bert.encoder.layer.0.output.dense": (0, "mlp"),
    "classifier": (1, "head"),
}
T5 = {
    "shared": (-1, "embed"),
    "encoder.block.0.layer.0.SelfAttention.q": (0, "attn"),
    "encoder.block.0.layer.1.DenseReluDense.wo": (0, "mlp"),
    "encoder.final_layer_norm": (2, "norm"),
    "decoder.block.0.layer.1.EncDecAttention.q": (1, "attn"),
    "decoder.block.0.layer.2.DenseReluDense.wi": (1, "mlp"),
}
MIXTURE = {
    "embed": (-1, "embed"),
    "layers.0.moe.experts.0.w1": (0, "mlp"),
    "layers.0.moe.experts.1.w1": (0, "mlp"),
    "layers.0.wq": (0, "attn"),
    "layers.1.wo": (1, "attn"),
    "output": (2, "head"),
}


@pytest.mark.parametrize("names", [GPT2, LLAMA, BERT, T5, MIXTURE])
def test_names_of_well_known_models_tell_layer_and_part(names):
    assert places(named(*names)).of == {f"{name}.weight": place for name, place in names.items()}


def test_our_own_names_come_out_as_our_own_table_has_them():
    model = build(Model(depth=3, width=8, heads=2, context=4, qk_norm=True), 11, 0)
    found = places(model)
    assert found.of == {name: place_of(name, 3) for name, _ in model.named_parameters()}


def test_torchs_own_encoder_and_what_wrappers_do_to_names():
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    found = places(encoder)
    assert found.blocks == ["layers.0", "layers.1"]
    assert found.of["layers.1.self_attn.in_proj_weight"] == (1, "attn")
    assert found.of["layers.1.linear2.bias"] == (1, "mlp")
    assert found.of["layers.0.norm1.weight"] == (0, "norm")
    outer = nn.Module()
    outer.add_module("module", encoder)
    encoder.layers[0] = nn.Sequential()  # as torch.compile nests a block
    encoder.layers[0].add_module("_orig_mod", layer)
    assert places(outer).of.keys() == found.of.keys()


def test_a_plain_sequence_counts_its_layers():
    found = places(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))
    assert found.blocks == ["0", "2"] and found.of["2.bias"] == (1, "mlp")


def test_a_regular_expression_says_what_a_block_is():
    names = ["stages.0.deep.0.attn", "stages.0.deep.1.attn", "stages.1.deep.0.attn", "head"]
    assert places(named(*names)).depth == 2
    found = places(named(*names), r"stages\.\d+\.deep\.\d+")
    assert found.depth == 3 and found.of["stages.1.deep.0.attn.weight"] == (2, "attn")
    with pytest.raises(UserError, match="no parameter's name holds it; names look like 'stages"):
        places(named(*names), r"blocks\.\d+")
    with pytest.raises(UserError, match="no regular expression"):
        places(named(*names), "(")
