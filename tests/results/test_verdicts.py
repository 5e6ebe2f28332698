from dataclasses import replace
from math import inf, nan

import numpy as np
import pandas as pd
import pytest

from lnexp.records import Status
from lnexp.results.tables import empty_table, nullable
from lnexp.results.verdicts import Facts, judge
from lnexp.rows import EventRow, LayerRow
from tests.results.folders import curve

FACTS = Facts(ln_v=4.36, h1=3.25, floor=2.48, depth=4, lr=1e-3, tensors=10)
NO_LAYERS = empty_table(LayerRow, None)
NO_EVENTS = empty_table(EventRow, ["step", "phase", "kind", "role", "module", "op"])
DROP = 1.1 * np.exp(-np.arange(200) / 10)  # from ln V to letter frequencies, then flat
FLAT = DROP
LEARNING = DROP - 0.6 / (1 + np.exp(-(np.arange(200) - 100) / 15))
BATCH_NOISE, GAP_NOISE = (0.07, 0.16), (0.006, 0.023)


def steps_of(loss, unigram, **more):
    columns = {"loss": loss, "unigram_loss": unigram, "lr": np.full(len(loss), 1e-3), **more}
    frame = {"step": np.arange(len(loss))}
    for name, values in columns.items():
        empty = np.array([v is None for v in values])
        frame[name] = nullable(np.array([nan if v is None else v for v in values]), empty)
    return pd.DataFrame(frame)


def layers_of(grads, updates=None, cosine=None):
    """`grads[reading][block]`: each block's norm, split over attn and mlp as 3 : 4 : 5."""
    rows = []
    for step, blocks in enumerate(grads):
        rows.append((step, -1, "embed", 7.0, 7.0, nan))
        for layer, grad in enumerate(blocks):
            update = grad if updates is None else updates[step][layer]
            rows.append((step, layer, "attn", 0.6 * grad, 0.6 * update, nan))
            rows.append((step, layer, "mlp", 0.8 * grad, 0.8 * update, cosine or nan))
            rows.append((step, layer, "wq", 1e9, 1e9, nan))
        rows.append((step, len(blocks), "head", 7.0, 7.0, nan))
    names = ["step", "layer", "part", "grad_norm", "update_norm", "token_cosine"]
    frame = pd.DataFrame(rows, columns=names)
    for name in names[3:]:
        values = frame[name].to_numpy()
        frame[name] = nullable(values, np.isnan(values) & (name == "token_cosine"))
    return frame


def judged(steps, layers=NO_LAYERS, events=NO_EVENTS, facts=FACTS, **outcome):
    said = Status(**{"status": "finished", "steps_done": len(steps), **outcome})
    return judge(steps, layers, events, facts, said)


def of_gap(gap, seed=0, layers=NO_LAYERS, facts=FACTS, **noise):
    return judged(steps_of(*curve(gap, seed, **noise)), layers, facts=facts)


def names(judgement):
    return [cause.name for cause in judgement.causes]


HEALTHY = layers_of(np.full((200, 4), 0.5))
VANISHED = layers_of(np.tile([1e-6, 1e-4, 1e-2, 1.0], (200, 1)), np.tile([0.3, 1, 1, 1], (200, 1)))


@pytest.mark.parametrize("batch_noise", BATCH_NOISE)
@pytest.mark.parametrize("gap_noise", GAP_NOISE)
@pytest.mark.parametrize("seed", range(10))
def test_every_noise_of_a_real_run_leaves_the_verdict_alone(seed, batch_noise, gap_noise):
    noise = {"batch_noise": batch_noise, "gap_noise": gap_noise}
    assert of_gap(LEARNING, seed, HEALTHY, **noise).verdict == "learned"
    assert of_gap(FLAT, seed, HEALTHY, **noise).verdict == "plateau"
    assert of_gap(FLAT, seed, VANISHED, **noise).verdict == "stalled"
    forgot = np.where(np.arange(200) < 120, LEARNING - 0.3, 0.0)
    assert of_gap(forgot, seed, VANISHED, **noise).verdict == "lost"


def letter_frequency_predictor(batch_size, seed, steps=200, context=64, letters=40):
    """Its loss is the unigram loss of the batch, but for rounding and a trace of noise."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(letters))
    draws = rng.choice(letters, size=(steps, batch_size * context), p=p)
    unigram = -np.log(p)[draws].mean(axis=1)
    h1 = float(-(p * np.log(p)).sum())
    facts = replace(FACTS, ln_v=float(np.log(letters)), h1=h1, floor=h1 - 0.77)
    return steps_of(unigram + 1e-3 * rng.normal(size=steps), unigram), facts


@pytest.mark.parametrize("batch_size", [1, 8, 64])
def test_guessing_by_letter_frequency_is_never_learning(batch_size):
    for seed in range(40):
        steps, facts = letter_frequency_predictor(batch_size, seed)
        for layers in (HEALTHY, VANISHED, NO_LAYERS):
            verdict = judged(steps, layers, facts=facts).verdict
            assert verdict == ("stalled" if layers is VANISHED else "plateau")


def test_a_stalled_run_shows_its_gradient_and_update_ratios_and_its_horizon():
    judgement = of_gap(FLAT, layers=VANISHED)
    assert judgement.verdict == "stalled" and names(judgement) == ["vanishing"]
    assert judgement.evidence == "vanishing: first/last block gradient 1e-06, update 0.3"
    assert judgement.horizon == "within 200 steps"
    ends = ("grad_ratio_step0", "grad_ratio_end", "update_ratio_end")
    assert [judgement.numbers[n] for n in ends] == pytest.approx([1e-6, 1e-6, 0.3])


def test_a_run_with_live_gradients_that_learns_nothing_is_a_plateau():
    judgement = of_gap(FLAT, layers=HEALTHY)
    assert (judgement.verdict, names(judgement)) == ("plateau", [])


def test_without_gradient_readings_nothing_is_said_about_gradients():
    judgement = of_gap(FLAT)
    assert (judgement.verdict, names(judgement)) == ("plateau", [])
    assert judgement.numbers["grad_ratio_end"] is None


def test_the_bar_is_a_fifth_of_what_there_is_to_learn():
    def quiet(gap):
        return of_gap(np.full(200, gap), batch_noise=0, gap_noise=0).verdict

    assert FACTS.baseline(np.ones(1), np.ones(1)).bar == pytest.approx(-0.154)
    assert quiet(-0.1541) == "learned"
    assert quiet(-0.1539) == "plateau"


def test_a_run_that_still_falls_is_too_short():
    judgement = of_gap(1.1 - 0.005 * np.arange(200), layers=VANISHED)
    assert judgement.verdict == "too_short"
    assert judgement.reason.startswith("gap still fell by 0.2")


def test_fewer_than_twenty_steps_are_too_short_but_may_have_learned():
    quiet = {"batch_noise": 0, "gap_noise": 0, "layers": VANISHED}
    assert of_gap(np.zeros(19), **quiet).verdict == "too_short"
    assert of_gap(np.zeros(20), **quiet).verdict == "stalled"
    assert of_gap(np.full(12, -0.5)).verdict == "learned"
    assert judged(steps_of([], [])).verdict == "too_short"


def test_a_coin_allows_no_verdict():
    assert of_gap(FLAT, facts=replace(FACTS, floor=3.21)).verdict == "nothing_to_learn"
    assert of_gap(FLAT, facts=replace(FACTS, floor=3.19)).verdict == "plateau"


def test_diverged_is_finite_and_above_where_it_began():
    assert of_gap(np.linspace(1.1, 6, 200)).verdict == "diverged"
    start = np.r_[20.0, np.full(199, 6.0)]  # high, but it came down
    assert of_gap(start).verdict == "plateau"


def test_a_spike_in_a_learned_run_is_found_with_its_step():
    gap = LEARNING.copy()
    gap[180] += 0.4
    judgement = of_gap(gap)
    assert judgement.verdict == "spiked"
    assert "at step 180" in judgement.evidence
    gap = FLAT.copy()
    gap[180] += 0.4
    assert of_gap(gap).verdict == "plateau"


def test_one_lucky_batch_is_not_learning_that_was_lost():
    gap = FLAT.copy()
    gap[100:105] = -1.0
    assert of_gap(gap).verdict == "plateau"


@pytest.mark.parametrize("name", ["loss", "grad_norm", "weight_norm", "update_norm"])
@pytest.mark.parametrize("value", [nan, inf])
def test_a_nonfinite_number_in_one_step_alone_is_enough(name, value):
    loss, unigram = curve(LEARNING)
    column = loss if name == "loss" else np.ones(200)
    column[14] = value
    more = {} if name == "loss" else {name: column}
    judgement = judged(steps_of(loss, unigram, **more))
    assert judgement.verdict == "nonfinite"
    assert judgement.numbers["first_bad_step"] == 14


def test_a_validation_loss_is_no_training_value_so_measuring_it_changes_no_verdict():
    loss, unigram = curve(LEARNING)
    val = np.ones(200)
    val[14] = nan
    assert judged(steps_of(loss, unigram, val_loss=val)).verdict == "learned"


def test_a_skip_of_dynamic_loss_scaling_is_healthy_and_any_other_is_not():
    loss, unigram = curve(LEARNING)
    skipped, elements = [0] * 200, [0] * 200
    skipped[3], elements[3] = 1, 5
    steps = steps_of(loss, unigram, skipped=skipped, nonfinite_grads=elements)
    event = pd.DataFrame([(3, "backward", "inf", "", "", "")], columns=list(NO_EVENTS))
    scaled = replace(FACTS, dynamic_scaling=True)
    assert judged(steps, events=event, facts=scaled).verdict == "learned"
    assert judged(steps, events=event, facts=scaled, first_bad_step=3).verdict == "nonfinite"
    assert judged(steps, events=event).verdict == "nonfinite"
    assert judged(steps).verdict == "nonfinite"


def test_a_norm_that_overflows_over_finite_elements_is_no_nonfinite_value():
    loss, unigram = curve(LEARNING)
    norm = [1.0] * 199 + [inf]
    steps = steps_of(loss, unigram, grad_norm=norm, nonfinite_grads=[0] * 200, weight_norm=norm)
    event = pd.DataFrame([(199, "backward", "norm_overflow", "", "", "")], columns=list(NO_EVENTS))
    assert judged(steps, events=event).verdict == "learned"


def test_the_origin_of_a_nonfinite_value_is_named_not_where_it_spread():
    loss, unigram = curve(np.full(4, 1.1))
    loss[3] = nan
    events = pd.DataFrame(
        [
            (3, "loss", "nan", "propagated", "", ""),
            (3, "forward", "inf", "origin", "blocks.2.mlp", "aten.mul"),
        ],
        columns=list(NO_EVENTS),
    )
    judgement = judged(steps_of(loss, unigram), events=events, first_bad_step=3)
    assert judgement.verdict == "nonfinite"
    assert judgement.evidence == (
        "nonfinite_origin: inf in forward, blocks.2.mlp (aten.mul) at step 3"
    )
    assert np.isnan(judgement.numbers["end_loss"])


def test_a_nonfinite_update_is_known_from_its_event_alone():
    events = pd.DataFrame(
        [(1, "optimizer", "inf", "origin", "head.weight", "")], columns=list(NO_EVENTS)
    )
    judgement = judged(steps_of([3.0, 3.0], [3.2, 3.2]), events=events)
    assert (judgement.verdict, judgement.numbers["first_bad_step"]) == ("nonfinite", 1)


@pytest.mark.parametrize("status", ["failed", "interrupted", "running", "pending"])
def test_a_process_that_did_not_finish_has_numbers_but_no_verdict(status):
    steps = steps_of(*curve(LEARNING))
    judgement = judged(steps, VANISHED, status=status, first_bad_step=4, error="out of memory")
    assert (judgement.verdict, judgement.causes) == ("", [])
    assert judgement.numbers["end_gap"] == pytest.approx(-0.6, abs=0.05)
    assert judgement.evidence == "out of memory"


def test_gradients_that_are_exactly_zero_are_counted_not_divided():
    judgement = of_gap(FLAT, layers=layers_of(np.tile([0, 0, 0, 0.0], (200, 1))))
    assert judgement.verdict == "stalled" and names(judgement) == ["zero_gradient"]
    assert "0 in 4 of 4 blocks" in judgement.evidence
    assert judgement.numbers["grad_ratio_end"] is None
    judgement = of_gap(FLAT, layers=layers_of(np.tile([0, 1, 1, 1.0], (200, 1))))
    assert names(judgement) == ["vanishing", "zero_gradient"]
    judgement = of_gap(FLAT, layers=layers_of(np.tile([1, 1, 1, 0.0], (200, 1))))
    assert names(judgement) == ["zero_gradient"]
    assert judgement.numbers["grad_ratio_end"] == inf


def test_one_block_has_no_ratio():
    facts = replace(FACTS, depth=1)
    judgement = of_gap(FLAT, layers=layers_of(np.full((200, 1), 1e-9)), facts=facts)
    assert judgement.numbers["grad_ratio_end"] is None
    assert judgement.verdict == "plateau"


def test_the_ratio_is_judged_at_the_end_not_on_the_way():
    grads = np.ones((200, 4))
    grads[:150, 0] = 1e-6
    assert names(of_gap(FLAT, layers=layers_of(grads))) == []
    grads = np.ones((200, 4))
    grads[150:, 0] = 1e-6
    assert names(of_gap(FLAT, layers=layers_of(grads))) == ["vanishing"]


def test_a_nonfinite_gradient_never_makes_a_ratio_of_zero():
    judgement = of_gap(FLAT, layers=layers_of(np.tile([1, 1, 1, inf], (200, 1))))
    assert np.isnan(judgement.numbers["grad_ratio_end"])
    assert names(judgement) == []


def test_rank_collapse_is_said_only_where_it_was_measured():
    grads = np.full((200, 4), 0.5)
    assert names(of_gap(FLAT, layers=layers_of(grads, cosine=0.999))) == ["rank_collapse"]
    assert of_gap(FLAT, layers=layers_of(grads, cosine=0.999)).verdict == "stalled"
    assert names(of_gap(FLAT, layers=layers_of(grads, cosine=0.9))) == []


def test_five_losses_that_do_not_move_have_five_reasons():
    quiet = {"batch_noise": 0.02, "gap_noise": 0.002}
    steps = steps_of(*curve(np.full(100, 1.1), **quiet))
    healthy, zero = layers_of(np.full((100, 4), 0.5)), layers_of(np.zeros((100, 4)))
    weights = [f"w{i}" for i in range(10)]
    lr_0 = judged(steps, healthy, unmoved=weights)
    assert (lr_0.verdict, names(lr_0)) == ("stalled", ["frozen"])
    assert "10 of 10 weight tensors bit-identical" in lr_0.evidence
    slow = judged(steps_of(*curve(1.1 - 5e-5 * np.arange(100), **quiet)), healthy)
    assert (slow.verdict, names(slow)) == ("plateau", ["too_slow"])
    dead = judged(steps, zero)
    assert (dead.verdict, names(dead)) == ("stalled", ["zero_gradient"])
    warm = judged(steps, healthy, facts=replace(FACTS, warmup=1000))
    assert (warm.verdict, names(warm)) == ("plateau", ["warming_up"])
    assert "warm-up is 1000 steps, 100 were done" in warm.evidence
    well = judged(steps_of(*curve(LEARNING[:150])), layers_of(np.full((150, 4), 0.5)))
    assert (well.verdict, names(well)) == ("learned", [])


def test_some_tensors_that_never_moved_are_a_warning_not_a_reason_to_stall():
    steps = steps_of(*curve(LEARNING))
    judgement = judged(steps, HEALTHY, unmoved=["blocks.0.norm.gain"])
    assert (judgement.verdict, names(judgement)) == ("learned", ["frozen"])
    judgement = judged(steps_of(*curve(FLAT)), HEALTHY, unmoved=["blocks.0.norm.gain"])
    assert (judgement.verdict, names(judgement)) == ("plateau", ["frozen"])


def test_exploding_is_measured_through_depth_and_through_time():
    deep = layers_of(np.tile([1e6, 1e4, 1e2, 1.0], (200, 1)))
    assert names(of_gap(np.linspace(1.1, 6, 200), layers=deep)) == ["exploding"]
    loss, unigram = curve(np.linspace(1.1, 6, 200))
    judgement = judged(steps_of(loss, unigram, grad_norm=np.geomspace(1, 1e5, 200)))
    assert judgement.evidence.endswith("exploding: gradient norm grew 1e+05 times")


def test_facts_tell_dynamic_scaling_from_settings():
    env = {"ln_v": 4, "h1": 3, "floor": 2}
    base = {"model.depth": 2, "train.lr": 1e-3, "train.warmup": 0}
    for scale, precision, dynamic in [
        ("auto", "fp32", False), ("auto", "fp16-mixed", True), ("dynamic", "bf16", True),
        (128.0, "fp16", False), ("none", "fp16-mixed", False),
    ]:  # fmt: skip
        settings = base | {"train.loss_scale": scale, "train.precision": precision}
        assert Facts.of(settings, env).dynamic_scaling is dynamic
