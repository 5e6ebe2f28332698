import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lnexp.config.schema import Model, RunConfig, Train
from lnexp.model.check import architecture, encoder_decoder_norms, norm_parameters, step_flops
from lnexp.model.init import build


@pytest.mark.parametrize(
    "placement, norms",
    [("pre", 9), ("post", 8), ("none", 0), ("sandwich", 17), ("keel", 15), ("residual_dual", 9)],
)
def test_parameters_and_norm_parameters_are_those_of_the_real_model(placement, norms):
    config = Model(placement=placement, width=32)
    planned = architecture(config, 103)
    real = build(config, 103, 0)
    assert planned.parameters == sum(p.numel() for p in real.parameters())
    assert len(planned.norms) == norms
    assert planned.norm_parameters == norms * 2 * 32


def test_a_layernorm_at_width_512_has_1024_parameters():
    norms = architecture(Model(width=512), 103).norms
    assert {count for *_, count in norms} == {1024} == {norm_parameters(512)}


def test_the_norms_of_a_6_plus_6_encoder_decoder_at_width_512_have_30720_parameters():
    theirs = nn.Transformer(512, 8, 6, 6, dim_feedforward=8, batch_first=True, device="meta")
    for stack in (theirs.encoder, theirs.decoder):
        stack.norm = None  # torch ends each stack with one more; the paper does not
    norms = [m for m in theirs.modules() if isinstance(m, nn.LayerNorm)]
    assert encoder_decoder_norms(6, 6) == len(norms) == 30
    counted = sum(p.numel() for norm in norms for p in norm.parameters())
    assert norm_parameters(512, 30) == counted == 30_720


def test_a_norm_without_eps_is_planned_without_one():
    assert {eps for _, _, eps, _ in architecture(Model(norm="dyt"), 103).norms} == {None}


def test_planned_flops_are_those_that_torch_counts():
    config = RunConfig(model=Model(depth=3, width=32, attention="plain"), train=Train(batch_size=2))
    model = build(config.model, 103, 0)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(2, 64, dtype=torch.long)).sum().backward()
    assert step_flops(config, 103) == counter.get_total_flops()
