from math import sqrt

import pytest
import torch

from lnexp.config.schema import Model
from lnexp.model.init import build, draw_of, weights


def measured(model) -> dict[str, float]:
    return {w.name: float(w.tensor.detach().std(correction=0)) for w in weights(model)}


@pytest.mark.parametrize("depth", [2, 50])
def test_gpt2_init_scales_the_residual_projections_by_depth(depth):
    std = measured(build(Model(depth=depth, width=128), 103, 0))
    for block in (0, depth - 1):
        for name in ("attn.body.wo", "mlp.body.w2"):
            expected = 0.02 / sqrt(2 * depth)
            assert std[f"blocks.{block}.{name}"] == pytest.approx(expected, rel=0.05)
        for name in ("attn.body.wq", "attn.body.wk", "attn.body.wv", "mlp.body.w1"):
            assert std[f"blocks.{block}.{name}"] == pytest.approx(0.02, rel=0.05)
    assert std["head"] == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("init", ["gpt2", "xavier", "torch", "lesson"])
def test_each_weight_has_the_std_that_the_table_promises(init):
    config = Model(depth=2, width=96, heads=4, init=init, init_scale=1.5)
    for w in weights(build(config, 103, 0)):
        std = draw_of(w, config).std
        if w.tensor.numel() > 1000:
            assert float(w.tensor.detach().std(correction=0)) == pytest.approx(std, rel=0.06), (
                w.name
            )
        elif std == 0:
            assert len(w.tensor.unique()) == 1


def test_xavier_reads_q_k_and_v_as_three_square_matrices():
    std = measured(build(Model(depth=1, width=128, heads=4, init="xavier"), 103, 0))
    for name in ("wq", "wk", "wv", "wo"):
        expected = sqrt(2 / (128 + 128))
        assert std[f"blocks.0.attn.body.{name}"] == pytest.approx(expected, rel=0.05)
    assert std["blocks.0.mlp.body.w1"] == pytest.approx(sqrt(2 / (128 + 512)), rel=0.05)
    assert std["embed.token"] == pytest.approx(1.0, rel=0.05)
    assert std["embed.position"] == pytest.approx(0.02, rel=0.05)


def test_torch_init_is_that_of_nn_linear():
    torch.manual_seed(0)
    linear = torch.nn.Linear(128, 512)
    ours = build(Model(depth=1, width=128, heads=4, init="torch"), 103, 0).blocks[0].mlp.body.w1
    for name in ("weight", "bias"):
        a, b = getattr(linear, name), getattr(ours, name)
        assert float(b.detach().abs().max()) == pytest.approx(
            float(a.detach().abs().max()), rel=0.02
        )
        assert float(b.detach().std()) == pytest.approx(float(a.detach().std()), rel=0.1)


@pytest.mark.parametrize("init", ["gpt2", "xavier", "lesson"])
def test_biases_start_at_zero_and_gains_at_one(init):
    for name, p in build(Model(init=init), 103, 0).named_parameters():
        if name.endswith("bias"):
            assert not p.any(), name
        elif p.ndim == 1:
            assert bool((p == 1).all()), name


def test_a_tied_head_is_one_tensor_counted_once():
    tied, free = (build(Model(tie_embeddings=t), 103, 0) for t in (True, False))
    assert tied.head.weight is tied.embed.token.weight
    count = [sum(p.numel() for p in m.parameters()) for m in (free, tied)]
    assert count[0] - count[1] == 103 * 64
    assert float(tied.head.weight.detach().std()) == pytest.approx(0.02, rel=0.05)


def test_runs_of_other_depth_and_placement_share_the_weights_they_have_in_common():
    shallow = build(Model(depth=2, init="xavier"), 103, 7).state_dict()
    deep = build(Model(depth=5, init="xavier", placement="post"), 103, 7).state_dict()
    common = [name for name in shallow if name in deep]
    assert len(common) > 15
    assert all(torch.equal(shallow[name], deep[name]) for name in common)


def test_the_init_seed_decides_and_torchs_global_state_does_not():
    torch.manual_seed(1)
    a = build(Model(), 103, 0).state_dict()
    torch.manual_seed(2)
    b, c = build(Model(), 103, 0).state_dict(), build(Model(), 103, 1).state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not torch.equal(a["head.weight"], c["head.weight"])


def test_q_k_and_v_are_not_copies_of_each_other():
    q, k, v = build(Model(), 103, 0).blocks[0].attn.body.wqkv.weight.chunk(3)
    assert not torch.equal(q, k) and not torch.equal(k, v)
