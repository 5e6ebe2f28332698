import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lnexp.config import Model, RunConfig, Train
from lnexp.model.check import architecture, step_bytes, step_flops
from lnexp.model.init import build


@pytest.mark.parametrize(
    "placement, norms", [("pre", 9), ("post", 8), ("none", 0), ("sandwich", 17)]
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
    assert {count for *_, count in norms} == {1024}


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
