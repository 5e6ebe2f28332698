"""The loop: what it yields, and that measuring never changes it."""

from dataclasses import replace
from functools import cache
from itertools import product
from math import inf, isfinite, log

import pytest
import torch
from torch.nn import functional as F

from lnexp.config.schema import Data, Measure, Model, RunConfig, Seed, Train
from lnexp.data import Batches, Corpus, load
from lnexp.model.init import build
from lnexp.rows import Record
from lnexp.train.loop import train
from lnexp.train.optim import lr_at
from lnexp.train.state import State, set_up

SMALL = {"depth": 2, "width": 16, "heads": 2, "context": 16}


@cache
def markov() -> Corpus:
    return load(Data(source="markov", length=5000))


def config(model=None, train=None, measure=None, seed=None) -> RunConfig:
    return RunConfig(
        data=Data(source="markov", length=5000),
        model=Model(**{**SMALL, **(model or {})}),
        train=Train(**{"steps": 5, "batch_size": 4, **(train or {})}),
        measure=Measure(**(measure or {})),
        seed=Seed(**(seed or {})),
    )


def records(**sections) -> list[Record]:
    return list(train(set_up(config(**sections), markov(), "cpu")))


def timeless(rows: list[Record]) -> list[Record]:
    return [replace(r, step=replace(r.step, seconds=0.0)) for r in rows]


def losses(**sections) -> list[float]:
    return [r.step.loss for r in records(**sections)]


@pytest.mark.parametrize(
    "placement, residual, activation",
    list(product(["pre", "post", "none", "sandwich", "output"], [True, False], ["gelu", "relu"])),
)
def test_measuring_does_not_change_training(placement, residual, activation):
    model = {"placement": placement, "residual": residual, "activation": activation}
    runs = []
    for level in ("off", "light", "full"):
        state = set_up(config(model=model, measure={"level": level}), markov(), "cpu")
        rows = [r.step.loss for r in train(state)]
        runs.append((rows, [p.detach().clone() for p in state.model.parameters()]))
    for rows, weights in runs[1:]:
        assert rows == runs[0][0]  # bit for bit
        assert all(map(torch.equal, weights, runs[0][1]))


def test_measuring_does_not_change_training_with_dropout_validation_and_autocast():
    for precision in ("fp32", "fp64", "bf16-mixed"):
        runs = [
            losses(
                model={"dropout": 0.3},
                train={"precision": precision},
                measure={"level": level, "eval_every": every},
            )
            for level, every in (("off", 50), ("light", 1), ("full", 2))
        ]
        assert runs[0] == runs[1] == runs[2]


def test_the_same_config_gives_the_same_rows_and_another_seed_others():
    sections = {"model": {"dropout": 0.1}, "measure": {"level": "full"}}
    assert timeless(records(**sections)) == timeless(records(**sections))
    for seed in ({"init": 1}, {"data": 1}):
        assert losses(**sections) != losses(**sections, seed=seed)


def test_rows_do_not_depend_on_what_the_process_drew_before():
    torch.manual_seed(1)
    one = losses(model={"dropout": 0.5})
    torch.manual_seed(99)
    torch.rand(10)
    state = torch.get_rng_state()
    assert losses(model={"dropout": 0.5}) == one
    assert torch.equal(torch.get_rng_state(), state)  # nor does a run leave a trace


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_the_loop_is_the_plain_loop_that_people_write(optimizer):
    cfg = config(train={"optimizer": optimizer, "lr": 0.01, "clip": 0.5, "warmup": 3})
    model = build(cfg.model, len(markov().vocabulary), 0)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    if optimizer == "sgd":
        theirs = torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    else:
        kind = torch.optim.AdamW if optimizer == "adamw" else torch.optim.Adam
        theirs = kind(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8)
    batches = Batches(markov(), 4, 16, 0, torch.device("cpu"))
    expected = []
    for step in range(5):
        for group in theirs.param_groups:
            group["lr"] = 0.01 * min(1, (step + 1) / 3)
        x, y = batches.draw()
        theirs.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        before = [p.detach().clone() for p in model.parameters()]
        theirs.step()
        moved = torch.cat(
            [(p.detach() - b).flatten() for p, b in zip(model.parameters(), before, strict=True)]
        )
        expected.append((loss.item(), norm.item(), moved.norm().item()))
    for record, (loss, norm, moved) in zip(
        records(train={"optimizer": optimizer, "lr": 0.01, "clip": 0.5, "warmup": 3}),
        expected,
        strict=True,
    ):
        assert record.step.loss == pytest.approx(loss, rel=1e-5)
        assert record.step.grad_norm == pytest.approx(norm, rel=1e-4)  # before clipping
        assert record.step.clip_factor == pytest.approx(min(1, 0.5 / norm), rel=1e-4)
        assert record.step.update_norm == pytest.approx(moved, rel=1e-3)


def test_layers_add_up_to_the_totals_and_each_matrix_is_part_of_its_sublayer():
    for record in records(model={"qk_norm": True}, measure={"level": "full"}):
        parts = {(r.layer, r.part): r for r in record.layers}
        assert [r.layer for r in record.layers] == sorted(r.layer for r in record.layers)
        whole = ("embed", "attn", "mlp", "norm", "head")
        for column in ("grad_norm", "weight_norm", "update_norm"):
            squares = sum(getattr(r, column) ** 2 for r in record.layers if r.part in whole)
            assert squares**0.5 == pytest.approx(getattr(record.step, column))
        for layer in (0, 1):
            matrices = [parts[layer, p].grad_norm for p in ("wq", "wk", "wv", "wo")]
            assert 0 < sum(g**2 for g in matrices) <= parts[layer, "attn"].grad_norm ** 2 * 1.0001
        assert (2, "norm") in parts and (2, "head") in parts and (-1, "embed") in parts


def test_light_leaves_forward_readings_and_matrices_empty_and_off_writes_four_numbers():
    light, off = (records(measure={"level": level})[0] for level in ("light", "off"))
    assert all(r.act_rms is None and r.part in ("embed", "attn", "mlp", "norm", "head")
               for r in light.layers)  # fmt: skip
    assert off.layers == []
    filled = {f for f in off.step.__slots__ if getattr(off.step, f) is not None}
    assert filled == {"step", "tokens", "seconds", "lr", "loss", "unigram_loss"}


def test_every_thins_the_readings_and_never_the_loss():
    rows = records(measure={"every": 2})
    assert [r.step.grad_norm is not None for r in rows] == [True, False, True, False, True]
    assert [bool(r.layers) for r in rows] == [True, False, True, False, True]
    assert all(isfinite(r.step.loss) and isfinite(r.step.unigram_loss) for r in rows)


def test_validation_comes_every_so_often_and_on_the_last_row():
    rows = records(measure={"eval_every": 2})
    assert [r.step.val_loss is not None for r in rows] == [False, True, False, True, True]


def test_validation_loss_is_the_models_own_after_the_update():
    state = set_up(config(model={"dropout": 0.2}), markov(), "cpu")
    *_, last = train(state)
    state.model.eval()
    windows = torch.from_numpy(markov().val).unfold(0, 17, 1)
    starts = torch.linspace(0, len(windows) - 1, 32).long()
    logits = state.model(windows[starts][:, :-1])
    with torch.no_grad():
        expected = F.cross_entropy(logits.flatten(0, 1), windows[starts][:, 1:].flatten())
    assert last.step.val_loss == pytest.approx(expected.item(), rel=1e-5)


def test_row_s_is_taken_before_update_s():
    state = set_up(config(), markov(), "cpu")
    start = torch.cat([p.detach().flatten() for p in state.model.parameters()])
    first, second, *_ = train(state)
    assert first.step.weight_norm == pytest.approx(start.norm().item(), rel=1e-5)
    assert second.step.weight_norm != first.step.weight_norm
    assert first.step.loss == pytest.approx(log(16), abs=0.1)


def test_zero_lr_moves_nothing():
    rows = records(train={"lr": 0.0})
    assert all(r.step.update_norm == 0 for r in rows)


def poisoned(value: float, at: int = 2, **sections) -> tuple[State, list[Record]]:
    """A run whose head weight holds `value` from step `at` on."""
    state = set_up(config(**sections), markov(), "cpu")
    rows = []
    for record in train(state):
        rows.append(record)
        if record.step.step == at - 1:
            with torch.no_grad():
                state.model.head.weight[0, 0] = value
    return state, rows


@pytest.mark.parametrize("level", ["off", "light", "full"])
@pytest.mark.parametrize("every", [1, 10])
def test_a_nonfinite_step_is_recorded_and_ends_the_run_at_every_level(level, every):
    state, rows = poisoned(float("nan"), measure={"level": level, "every": every})
    assert [isfinite(r.step.loss) for r in rows] == [True, True, False]
    assert state.first_bad_step == 2 and state.steps_done == 3
    origin, *rest = [e for e in rows[2].events if e.kind == "nan"]
    assert (origin.role, origin.module, origin.op) == ("origin", "head.weight", "(given)")
    assert {(e.phase, e.role) for e in rest} == {("loss", "propagated"), ("backward", "propagated")}


def test_the_optimizer_does_not_act_on_a_nonfinite_step():
    state = set_up(config(train={"lr": 0.1}), markov(), "cpu")
    stream = train(state)
    next(stream)
    before = {n: p.detach().clone() for n, p in state.model.named_parameters()}
    with torch.no_grad():
        state.model.head.weight[0, 0] = inf
    bad = next(stream)
    assert bad.step.skipped == 1 and bad.step.update_norm is None
    for name, p in state.model.named_parameters():
        if name != "head.weight":
            assert torch.equal(p, before[name]), name
    with pytest.raises(StopIteration):
        next(stream)


def test_continue_skips_the_bad_step_and_goes_on():
    state = set_up(config(train={"on_nonfinite": "continue"}), markov(), "cpu")
    rows = []
    good = state.model.head.weight.detach().clone()
    for record in train(state):
        rows.append(record)
        with torch.no_grad():
            if record.step.step == 1:
                good = state.model.head.weight.clone()
                state.model.head.weight[0, 0] = inf
            if record.step.step == 2:
                state.model.head.weight.copy_(good)
    # The weights themselves were bad before step 2, not its update: the run goes on.
    assert [r.step.skipped for r in rows] == [0, 0, 1, 0, 0]
    assert state.first_bad_step == 2


def test_an_update_that_makes_weights_nonfinite_belongs_to_its_step_and_ends_the_run():
    rows = records(train={"lr": 1e38, "optimizer": "sgd", "steps": 5})
    kinds = [(e.phase, e.kind) for r in rows for e in r.events]
    assert len(rows) < 5 and isfinite(rows[0].step.loss)
    assert kinds


def test_gradients_that_are_exactly_zero_are_said_once_a_tensor():
    state = set_up(config(), markov(), "cpu")
    with torch.no_grad():
        state.model.head.weight.zero_()
    events = [e for r in train(state) for e in r.events if e.kind == "zero_gradient"]
    assert len(events) == len({e.module for e in events}) > 10
    assert all(e.step == 0 for e in events)


def test_unigram_loss_is_the_cross_entropy_of_the_letter_frequencies():
    x, y = Batches(markov(), 4, 16, 0, torch.device("cpu")).draw()
    logits = torch.from_numpy(markov().letter_frequencies).log().expand(4, 16, -1)
    expected = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    assert records()[0].step.unigram_loss == pytest.approx(expected.item())


def test_z_loss_changes_training_but_not_the_first_loss():
    plain, z = losses(), losses(train={"z_loss": 0.1})
    assert plain[0] == z[0] and plain[1:] != z[1:]


def test_schedules_run_from_warm_up_to_zero():
    t = Train(lr=1.0, warmup=4, steps=12, schedule="linear")
    assert [lr_at(s, t) for s in (0, 3, 4, 8)] == [0.25, 1.0, 1.0, 0.5]
    cosine = t.model_copy(update={"schedule": "cosine"})
    assert lr_at(8, cosine) == pytest.approx(0.5) and lr_at(4, cosine) == 1.0
    assert lr_at(11, t.model_copy(update={"schedule": "constant"})) == 1.0


def test_a_small_model_learns_the_chain_to_near_its_floor():
    rows = records(train={"steps": 150, "lr": 0.01}, measure={"eval_every": 150})
    floor = markov().floor
    assert floor < rows[-1].step.val_loss < floor + 0.35 * (markov().h1 - floor)
