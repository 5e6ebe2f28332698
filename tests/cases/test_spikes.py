"""A17: vanishing gradients become exact zeros by a recorded choice; a spike is no divergence."""

import math
from collections.abc import Iterator

import pytest
import torch

from lnexp.config.schema import Data
from lnexp.train import loop
from lnexp.train.optim import lr_at
from tests.cases.trained import Told, config, told

# ------------------------------------------------------- (a) subnormal numbers

CHAIN = {"placement": "none", "residual": False, "init_scale": 0.03, "init": "xavier"}
SMALLEST_NORMAL = 1.1754944e-38


def chain(folder, depth: int, flush: bool, **settings) -> Told:
    return told(folder, config(model=CHAIN | {"depth": depth}, flush_denormal=flush, **settings))


@pytest.mark.parametrize("depth", [6, 10])
def test_seconds_are_a_column_that_grows_and_the_setting_is_recorded(tmp_path, depth):
    for flush in (True, False):
        run = chain(tmp_path / str(flush), depth, flush)
        seconds = run.numbers("seconds")
        assert seconds == sorted(seconds) and seconds[0] >= 0 and len(seconds) == 4
        assert run.env["flush_denormal"] is flush and run.row["train.flush_denormal"] is flush
        assert run.row["seconds"] == seconds[-1]


def test_flushing_decides_which_gradients_are_exactly_0(tmp_path):
    """The same weights and letters: what is subnormal without it is 0 with it."""
    kept, flushed = (chain(tmp_path / str(f), 6, f, steps=1, lr=0.0) for f in (False, True))
    norms = [run.numbers("grad_norm", "layers") for run in (kept, flushed)]
    zeros = [run.numbers("zero_grad_fraction", "layers") for run in (kept, flushed)]
    assert kept.row["first_loss"] == flushed.row["first_loss"]
    assert all(a <= b for a, b in zip(*zeros, strict=True)) and zeros[0] != zeros[1]
    subnormal = [a for a, b in zip(*norms, strict=True) if b == 0 and a > 0]
    assert subnormal and all(norm < 100 * SMALLEST_NORMAL for norm in subnormal)


def test_a_zero_norm_is_no_underflow_of_its_squares(tmp_path):
    """Of gradients near 1e-25 every square is 0 in fp32; their norm is not."""
    run = chain(tmp_path / "run", 3, True, steps=1)
    tiny = [n for n in run.numbers("grad_norm", "layers") if 0 < n < 1e-20]
    told_zero = {e["module"] for e in run.table("events") if e["kind"] == "zero_gradient"}
    assert tiny and not any("w1.weight" in name and "blocks.2" in name for name in told_zero)


def test_one_runs_setting_does_not_reach_the_next(tmp_path):
    def subnormals_live() -> bool:
        return bool((torch.tensor([SMALLEST_NORMAL]) / 4 != 0).all())

    chain(tmp_path / "a", 2, True, steps=1)
    assert not subnormals_live()
    chain(tmp_path / "b", 2, False, steps=1)
    assert subnormals_live()


# ------------------------------------------------------- (b) a spike

AT, TIMES = 80, 30


@pytest.fixture(scope="module")
def kicked(tmp_path_factory) -> Iterator[Told]:
    """SUMS; the learning rate is 30 times as large in step 80 alone."""
    folder = tmp_path_factory.mktemp("spike")
    lines = (f"{a} plus {b} is {a + b}.\n" for a in range(60) for b in range(60))
    (folder / "sums.txt").write_bytes("".join(lines).encode())
    data = Data(source="file", path=str(folder / "sums.txt"))
    model = {"depth": 2, "width": 32, "context": 24}
    run = config(data, model, steps=160, lr=5e-3, batch_size=8)

    def kick(step, settings):
        return lr_at(step, settings) * (TIMES if step == AT else 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "lr_at", kick)
        yield told(folder / "run", run)


def test_a_jump_that_is_made_good_is_spiked_and_neither_diverged_nor_lost(kicked):
    assert kicked.row["verdict"] == "spiked" and kicked.row["status"] == "finished"
    assert kicked.row["first_bad_step"] is None and "exploding" not in kicked.causes
    losses = kicked.numbers("loss")
    assert max(losses[AT + 1 : AT + 4]) > losses[AT] + 0.3 > losses[-1] + 0.3


def test_the_spike_is_told_with_its_step_and_how_far_it_rose(kicked):
    words = kicked.row["evidence"]
    steps = [int(word) for word in words.replace(",", " ").split() if word.isdigit()]
    assert "jumped by" in words and any(AT < step <= AT + 3 for step in steps)
    assert "spike" in kicked.explained.diagnosis


def test_the_update_rises_in_the_step_before_the_loss_and_says_in_which_layers(kicked):
    updates, losses = kicked.numbers("update_norm"), kicked.numbers("loss")
    usual = sorted(updates[AT - 20 : AT])[10]
    first = next(step for step, norm in enumerate(updates) if step > 20 and norm > 5 * usual)
    assert first == AT and losses[AT] < 1.3 * losses[AT - 1]
    rows = [r for r in kicked.table("layers") if r["update_norm"]]
    by_place = {(r["step"], r["layer"], r["part"]): float(r["update_norm"]) for r in rows}
    places = {(layer, part) for _, layer, part in by_place}
    assert len(places) >= 6
    for layer, part in places:
        ratio = by_place[str(AT), layer, part] / by_place[str(AT - 1), layer, part]
        assert ratio > 10 and math.isfinite(ratio)
