"""Constants of the placements, the starts they ask for, and a few trained steps of each."""

from itertools import product
from math import isfinite, sqrt

import pytest
import torch

from lnexp.config.rules import canonical, clashes
from lnexp.config.schema import Data, Measure, Model, RunConfig, Train
from lnexp.data import Corpus, load
from lnexp.model.catalog import NORMS, PLACEMENTS, Seat
from lnexp.model.gpt import GPT
from lnexp.model.init import build, draw_of, weights
from lnexp.train.loop import train
from lnexp.train.state import State, set_up
from tests.model.equations import NO_SKIP

# ----------------------------------------------------------------------- constants


@pytest.mark.parametrize("N, a, b", [(12, 2.213, 0.319), (100, 3.761, 0.188)])
def test_deepnorms_constants_are_those_of_its_paper(N, a, b):
    assert PLACEMENTS["deepnorm"].at(Seat(3, "mlp", N)).skip == pytest.approx(a, abs=5e-4)
    for weight in ("wv", "wo", "w1", "w2"):
        factor = PLACEMENTS["deepnorm"].init_factor(f"blocks.3.x.body.{weight}", N)
        assert factor == pytest.approx(b, abs=5e-4)
    for weight in ("blocks.0.attn.body.wq", "blocks.0.attn.body.wk", "embed.token", "head"):
        assert PLACEMENTS["deepnorm"].init_factor(weight, N) == 1


@pytest.mark.parametrize("N, w", [(12, 2.601), (100, 6.075)])
def test_admins_constant_is_that_of_its_code(N, w):
    assert PLACEMENTS["admin"].at(Seat(0, "attn", N)).skip == pytest.approx(w, abs=5e-4)


def test_keels_constant_counts_sublayers_and_its_start_is_plain():
    first, second, later = (
        PLACEMENTS["keel"].at(Seat(block, half, 12))
        for block, half in ((0, "attn"), (0, "mlp"), (1, "attn"))
    )
    assert (first.skip, second.skip, later.skip) == (1, 1, 24)
    assert (first.after, second.after, later.after) == (False, True, True)


def test_lns_divides_by_the_root_of_the_block_from_1():
    damps = [PLACEMENTS["lns"].at(Seat(block, "mlp", 9)).damp for block in range(9)]
    assert damps == [sqrt(block) for block in range(1, 10)]


@pytest.mark.parametrize("N, posts", [(1, 1), (4, 1), (5, 2), (12, 3), (100, 25)])
def test_mix_is_post_in_the_first_quarter_rounded_up(N, posts):
    terms = [PLACEMENTS["mix"].at(Seat(block, "attn", N)) for block in range(N)]
    assert [t.after for t in terms] == [True] * posts + [False] * (N - posts)
    assert all(t.before != t.after for t in terms)


def test_the_catalog_tells_which_placements_hold_no_norm_and_which_may_drop_their_skip():
    assert {name for name, p in PLACEMENTS.items() if p.drops_skip} == set(NO_SKIP)
    bare = {name for name, p in PLACEMENTS.items() if not p.has_norm}
    assert bare == {"none", "rezero", "tfixup"}


@pytest.mark.parametrize(
    "settings",
    [
        *({"model.placement": p, "model.residual": False} for p in PLACEMENTS if p not in NO_SKIP),
        {"model.norm": "layernorm_std", "model.width": 1},
        {"model.norm": "powernorm", "train.precision": "fp16-mixed"},
    ],
)
def test_what_cannot_go_together_is_refused(settings):
    ((_, problem),) = clashes([RunConfig().settings() | {"model.heads": 1} | settings], ())
    assert all(key in problem for key in settings)


def test_a_placement_without_its_skip_is_allowed_where_that_is_a_question():
    for placement in NO_SKIP:
        settings = {"model.placement": placement, "model.residual": False}
        assert not list(clashes([RunConfig().settings() | settings], ()))


def test_eps_does_nothing_under_dyt():
    settings = RunConfig().settings() | {"model.norm": "dyt", "model.eps": 0.5}
    assert canonical(settings)["model.eps"] == 1e-5


# ----------------------------------------------------------------------- starts


@pytest.mark.parametrize("placement, init", list(product(PLACEMENTS, ["gpt2", "xavier"])))
def test_each_weight_has_the_std_that_the_placement_asks_for(placement, init):
    config = Model(depth=9, width=64, placement=placement, init=init)
    shrunk = {
        "deepnorm": (("wv", "wo", "w1", "w2"), (8 * 9) ** -0.25),
        "tfixup": (("wv", "wo", "w2", "token", "position"), (9 * 9) ** -0.25),
    }.get(placement, ((), 1.0))
    for w in weights(build(config, 103, 0)):
        if w.tensor.numel() < 1000:
            continue
        kind = w.name.rpartition(".")[2]
        if kind in ("token", "position"):
            std = 1.0 if (kind, init) == ("token", "xavier") else 0.02
        elif init == "xavier":
            std = sqrt(2 / (w.fan_in + w.fan_out))
        else:
            scaled = kind in ("wo", "w2") and placement != "lns"
            std = 0.02 / sqrt(18) if scaled else 0.02
        std *= shrunk[1] if kind in shrunk[0] else 1
        assert draw_of(w, config).std == pytest.approx(std)
        assert float(w.tensor.detach().std()) == pytest.approx(std, rel=0.06), w.name


def test_rezero_starts_as_the_identity_with_one_gain_a_block():
    model = build(Model(depth=3, placement="rezero", init="xavier"), 103, 0)
    gains = {n: p for n, p in model.named_parameters() if n.endswith("gain")}
    assert list(gains) == [f"blocks.{i}.gain" for i in range(3)]
    assert all(p.ndim == 0 and p.item() == 0 for p in gains.values())
    ids_BT = torch.arange(64)[None]
    torch.testing.assert_close(model(ids_BT), model.head(model.embed(ids_BT)))


# ----------------------------------------------------------------------- trained steps

MARKOV = Data(source="markov", length=5000)
MODEL = {"depth": 2, "width": 16, "heads": 2, "context": 12}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load(MARKOV)


def state_of(corpus: Corpus, level: str = "full", **model) -> State:
    config = RunConfig(
        data=MARKOV,
        model=Model(**MODEL, **model),
        train=Train(steps=3, batch_size=4),
        measure=Measure(level=level, eval_every=2),
    )
    return set_up(config, corpus, "cpu")


@pytest.mark.parametrize("placement, norm", list(product(PLACEMENTS, NORMS)))
def test_three_steps_are_trained_and_every_reading_filled(corpus, placement, norm):
    rows = list(train(state_of(corpus, placement=placement, norm=norm)))
    assert len(rows) == 3 and all(isfinite(row.step.loss) for row in rows)
    normed = PLACEMENTS[placement].has_norm
    for row in rows:
        assert not [e for e in row.events if e.kind != "zero_gradient"]
        for layer in row.layers:
            if layer.part not in ("attn", "mlp"):
                continue
            always = ("act_rms", "branch_to_stream", "stream_grad_rms", "token_cosine")
            assert all(isfinite(getattr(layer, name)) for name in always)
            assert (layer.norm_input_rms is not None) == normed
            assert (layer.norm_gain is not None) == normed
            assert (layer.eps_floor_fraction is not None) == (normed and norm != "dyt")
            if normed and row.step.step == 0:
                assert layer.norm_gain == pytest.approx(1)


@pytest.mark.parametrize("norm", ["batchnorm", "powernorm"])
@pytest.mark.parametrize("qk_norm", [True, False])
def test_measuring_and_validation_leave_running_statistics_alone(corpus, norm, qk_norm):
    ends = []
    for level in ("off", "light", "full"):  # off: no validation either
        state = state_of(corpus, level, norm=norm, qk_norm=qk_norm, placement="keel")
        losses = [row.step.loss for row in train(state)]
        ends.append((losses, state.model.state_dict()))
    for losses, values in ends[1:]:
        assert losses == ends[0][0]
        assert all(torch.equal(values[name], ends[0][1][name]) for name in values)
    moved = [name for name in ends[0][1] if name.endswith(("running_var", "mean_square"))]
    assert moved and all(bool((ends[0][1][name] != 1).any()) for name in moved)


def test_the_eps_floor_of_batchnorm_counts_features_of_the_whole_batch(corpus):
    state = state_of(corpus, norm="batchnorm", eps=1e-3)
    seen = {}

    def read(module, inputs, output):
        seen.setdefault("x", inputs[0].detach().double())

    state.model.blocks[1].mlp.before.register_forward_hook(read)
    (row,) = [x for x in next(train(state)).layers if (x.layer, x.part) == (1, "mlp")]
    variances = seen["x"].flatten(0, 1).var(0, correction=0)
    assert row.eps_floor_fraction == float((variances < 1e-3).double().mean())


def test_a_checkpoint_holds_the_running_statistics(corpus):
    state = state_of(corpus, norm="powernorm")
    list(train(state))
    again = GPT(state.config.model, len(corpus.vocabulary))
    again.load_state_dict(state.model.state_dict())
    ids_BT = torch.arange(12)[None]
    assert torch.equal(again.eval()(ids_BT), state.model.eval()(ids_BT))
