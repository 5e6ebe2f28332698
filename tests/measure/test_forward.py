"""Forward readings against NumPy computations of their definitions."""

from math import log, sqrt
from typing import get_args

import numpy as np
import pytest
import torch

from lnexp.config.schema import Model
from lnexp.measure import forward
from lnexp.measure.forward import ForwardProbe, attention_entropy, token_cosine
from lnexp.model.catalog import PLACEMENTS
from lnexp.model.init import build
from tests.measure.readings import readings

CONFIG = Model(depth=3, width=16, heads=2, context=8, init="xavier")


def naive_cosine(x: np.ndarray) -> float:
    values = []
    for sequence in x:
        for i, a in enumerate(sequence):
            for j, b in enumerate(sequence):
                if i != j:
                    values.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    return float(np.mean(values))


def test_token_cosine_is_the_mean_over_pairs_of_positions():
    x = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(token_cosine(x)) == pytest.approx(naive_cosine(x.numpy()))
    same = x[:, :1].expand(2, 5, 7)
    assert float(token_cosine(same)) == pytest.approx(1.0)


def test_attention_entropy_is_one_for_uniform_rows_and_zero_for_one_position():
    later = torch.ones(4, 4, dtype=torch.bool).triu(1)
    uniform = torch.zeros(1, 1, 4, 4).masked_fill(later, float("-inf"))
    assert float(attention_entropy(uniform)) == pytest.approx(1.0)
    sharp = torch.diag(torch.full((4,), 1e4))[None, None].masked_fill(later, float("-inf"))
    assert float(attention_entropy(sharp)) == pytest.approx(0.0)
    p = np.array([0.25, 0.75])
    row = torch.tensor([[0.0, -np.inf], [log(0.25), log(0.75)]])[None, None]
    assert float(attention_entropy(row)) == pytest.approx(-(p @ np.log(p)) / log(2))


@pytest.mark.parametrize("placement", ["pre", "post", "none", "sandwich", "output"])
def test_readings_are_those_of_a_second_forward_written_out(placement):
    config = CONFIG.model_copy(update={"placement": placement})
    model = build(config, 23, 0)
    ids = torch.randint(23, (4, 8), generator=torch.Generator().manual_seed(1))
    probe = ForwardProbe(model, config.norm, config.eps, sample=2)
    with probe.listening():
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()

    streams = [model.embed(ids)]
    for block in model.blocks:
        for branch in (block.attn, block.mlp):
            streams.append(branch(streams[-1]))
    for stream in streams:
        stream.retain_grad()
    logits = model.head(model.norm(streams[-1]))
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()

    def rms(x) -> float:
        return float(np.sqrt((x.detach()[:2].double().numpy() ** 2).mean()))

    places = [(-1, "embed")] + [(i, p) for i in range(3) for p in ("attn", "mlp")]
    for k, place in enumerate(places):
        read = readings(probe)[place]
        assert float(read["act_rms"]) == pytest.approx(rms(streams[k]), rel=1e-6)
        assert float(read["act_absmax"]) == float(streams[k].detach()[:2].abs().max())
        cosine = naive_cosine(streams[k].detach()[:2].double().numpy())
        assert float(read["token_cosine"]) == pytest.approx(cosine, rel=1e-5, abs=1e-7)
        if place[0] >= 0:
            before = streams[k - 1]
            assert float(read["stream_grad_rms"]) == pytest.approx(rms(before.grad), rel=1e-5)
            branch = getattr(model.blocks[place[0]], place[1])
            added = branch.inside(branch.body(branch.before(before)))
            assert float(read["branch_to_stream"]) == pytest.approx(
                rms(added) / rms(before), rel=1e-5
            )
            assert ("norm_input_rms" in read) == (placement != "none")
            entering = {"post": before + added, "output": branch.body(before)}.get(
                placement, before
            )
            if placement != "none":
                assert float(read["norm_input_rms"]) == pytest.approx(rms(entering), rel=1e-5)
                assert float(read["norm_gain"]) == 1.0


def test_the_largest_score_and_its_layer_are_read():
    model = build(CONFIG, 23, 0)
    ids = torch.randint(23, (1, 8), generator=torch.Generator().manual_seed(1))
    probe = ForwardProbe(model, CONFIG.norm, CONFIG.eps, sample=2)
    with probe.listening():
        model(ids)
    x = model.blocks[0].attn.before(model.embed(ids)).detach().double().numpy()[0]
    w = model.blocks[0].attn.body.wqkv.weight.detach().double().numpy()
    q, k = (x @ w[:16].T).reshape(8, 2, 8), (x @ w[16:32].T).reshape(8, 2, 8)
    largest = max(
        abs(q[t, h] @ k[s, h]) / sqrt(8) for h in range(2) for t in range(8) for s in range(t + 1)
    )
    assert float(readings(probe)[(0, "attn")]["attn_logit_max"]) == pytest.approx(largest, rel=1e-5)


def test_the_eps_floor_is_the_share_of_tokens_whose_variance_is_below_eps():
    model = build(CONFIG, 23, 0)
    with torch.no_grad():
        model.embed.token.weight[3] = 0  # its tokens are position embeddings alone: std 0.02
    ids = torch.tensor([[3, 3, 1, 2, 3, 4, 5, 6]])
    probe = ForwardProbe(model, CONFIG.norm, 0.01, sample=1)
    with probe.listening():
        model(ids)
    assert float(readings(probe)[(0, "attn")]["eps_floor_fraction"]) == pytest.approx(3 / 8)


def read_once(model, config: Model) -> dict:
    ids = torch.randint(23, (4, 8), generator=torch.Generator().manual_seed(1))
    probe = ForwardProbe(model, config.norm, config.eps, sample=2)
    with probe.listening():
        logits = model(ids)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    return readings(probe)


@pytest.mark.parametrize("placement", ["pre", "post", "residual_dual"])
def test_readings_do_not_depend_on_how_many_places_are_read_at_once(monkeypatch, placement):
    config = CONFIG.model_copy(update={"placement": placement, "depth": 5})
    whole = read_once(build(config, 23, 0), config)
    for at_once in (1, 600, 1500):
        monkeypatch.setattr(forward, "AT_ONCE", at_once)
        assert read_once(build(config, 23, 0), config) == whole  # bit for bit


def test_readings_of_several_types_are_those_of_each_in_its_own():
    """Under autocast the stream is fp32 and a branch bf16."""
    model = build(CONFIG, 23, 0)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = read_once(model, CONFIG)
    own = read_once(model, CONFIG)
    assert mixed.keys() == own.keys()
    for place, fields in own.items():
        assert mixed[place].keys() == fields.keys()
        for name, value in fields.items():
            assert mixed[place][name] == pytest.approx(value, rel=0.05, abs=0.02), (place, name)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("norm", ["layernorm_plain", "batchnorm", "scalenorm"])
def test_nothing_that_is_caught_is_written_into_before_it_is_copied(monkeypatch, placement, norm):
    caught: list[tuple[torch.Tensor, int]] = []
    own = ForwardProbe._catch

    def catch(self, kind, place, x):
        caught.append((x, x._version))
        own(self, kind, place, x)

    monkeypatch.setattr(ForwardProbe, "_catch", catch)
    for activation in get_args(Model.model_fields["activation"].annotation):
        config = CONFIG.model_copy(
            update={"placement": placement, "norm": norm, "activation": activation, "dropout": 0.1}
        )
        read_once(build(config, 23, 0).train(), config)
    assert caught and all(x._version == version for x, version in caught)


def test_nothing_of_a_reading_stays_in_the_model_not_even_after_an_exception():
    model = build(CONFIG, 23, 0)
    before = [set(vars(module)) for module in model.modules()]
    read_once(model, CONFIG)
    probe = ForwardProbe(model, CONFIG.norm, CONFIG.eps, sample=2)
    with pytest.raises(KeyError), probe.listening():
        raise KeyError
    assert [set(vars(module)) for module in model.modules()] == before
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())
