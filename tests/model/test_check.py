import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lnexp.config import Model, RunConfig, Train
from lnexp.errors import UserError
from lnexp.model.check import (
    architecture,
    encoder_decoder_norms,
    held_bytes,
    norm_parameters,
    step_bytes,
    step_flops,
)
from lnexp.model.init import build
from lnexp.model.norms import NORMS
from lnexp.model.placements import PLACEMENTS


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


@pytest.mark.parametrize("norm", NORMS)
def test_every_norm_is_planned_on_the_meta_device(norm):
    config = RunConfig(model=Model(width=16, context=8, norm=norm, qk_norm=True))
    assert step_bytes(config, 103) > 0


def test_planned_flops_are_those_that_torch_counts():
    config = RunConfig(model=Model(depth=3, width=32, attention="plain"), train=Train(batch_size=2))
    model = build(config.model, 103, 0)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(2, 64, dtype=torch.long)).sum().backward()
    assert step_flops(config, 103) == counter.get_total_flops()


def test_planned_memory_grows_with_the_batch_by_what_backward_keeps():
    small, large = (
        step_bytes(RunConfig(model=Model(width=32), train=Train(batch_size=b)), 103) for b in (2, 4)
    )
    weights = 4 * 4 * architecture(Model(width=32), 103).parameters
    assert weights < small < large
    # Activations are proportional to the batch; the causal kernels keep little beside.
    assert (large - weights) / (small - weights) == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("depth", [1, 17])
def test_the_memory_of_a_deep_model_is_that_of_its_whole_forward(placement, depth):
    config = RunConfig(model=Model(depth=depth, width=32, placement=placement))
    assert step_bytes(config, 103) == held_bytes(config, 103)


def test_what_torch_cannot_count_is_said_and_what_it_can_is_built():
    big = {"width": 10_000_000, "mlp_ratio": 1000, "depth": 1, "heads": 1}
    assert architecture(Model(**big), 103).parameters > 10**17
    too_big = RunConfig(model=Model(**big, context=1_000_000), train=Train(batch_size=1_000_000))
    with pytest.raises(UserError, match=r"^train.batch_size: .* write smaller sizes"):
        step_bytes(too_big, 103)
    for size in (2**62, 2**63 - 1, 2**70):  # beyond what a config may say
        with pytest.raises(UserError, match=r"^model.width: .* write smaller sizes"):
            architecture(Model.model_construct(**dict(Model(depth=1)) | {"mlp_ratio": size}), 103)


def test_half_precision_weights_take_half_the_memory():
    fp32, fp16 = (
        step_bytes(
            RunConfig(model=Model(width=32, attention="plain"), train=Train(precision=p)), 103
        )
        for p in ("fp32", "fp16")
    )
    assert fp16 == pytest.approx(fp32 / 2, rel=0.05)
