"""Causes that rest on status.json, events and the autopsy; those of the tables: test_verdicts."""

from dataclasses import replace
from math import nan

import numpy as np
import pandas as pd
import pytest

from lnexp.records import Autopsy, Status
from lnexp.results.causes import all_gains
from lnexp.results.verdicts import Facts, judge
from tests.origin.autopsies import autopsy, birth, update
from tests.results.folders import curve
from tests.results.test_verdicts import (
    FACTS,
    HEALTHY,
    LEARNING,
    NO_EVENTS,
    NO_LAYERS,
    names,
    steps_of,
)

FLAT = np.zeros(100)  # no fall at all, beside the noise of test_verdicts
EVENT_COLUMNS = [*NO_EVENTS, "detail"]


def judged(gap, updates=None, weights=10.0, events=(), facts=FACTS, said=None, noise=0.0, **status):
    loss, unigram = curve(np.asarray(gap, dtype=float), batch_noise=noise, gap_noise=noise / 10)
    more = {}
    if updates is not None:
        more = {"update_norm": updates, "weight_norm": [None if u is None else weights
                                                        for u in updates]}  # fmt: skip
    frame = pd.DataFrame(list(events), columns=EVENT_COLUMNS)
    outcome = Status(**{"status": "finished", "steps_done": len(loss), **status})
    parsed = None if said is None else Autopsy.of(said)
    return judge(steps_of(loss, unigram, **more), NO_LAYERS, frame, facts, outcome, parsed)


def test_updates_that_moved_the_weights_by_less_than_a_percent_are_too_slow():
    slow = judged(FLAT, [5e-5] * 100)
    assert (slow.verdict, names(slow)) == ("plateau", ["too_slow"])
    assert slow.evidence.endswith(
        "too_slow: 100 updates moved the weights by at most 0.05 % of their norm"
    )
    assert names(judged(FLAT, [1.1e-3] * 100)) == []


def test_thinned_readings_stand_for_all_updates():
    updates = [5e-5 if step % 10 == 0 else None for step in range(100)]
    assert judged(FLAT, updates).evidence.endswith("by about 0.05 % of their norm")


@pytest.mark.parametrize("seed", range(5))
def test_a_large_enough_step_is_never_called_slow_for_its_movement(seed):
    rng = np.random.default_rng(seed)
    updates = (1e-2 * rng.uniform(0.5, 2, size=100)).tolist()
    assert names(judged(FLAT, updates)) == []


def test_few_updates_or_none_at_all_say_nothing_of_speed():
    assert names(judged(np.zeros(19), [1e-6] * 19)) == []
    assert names(judged(FLAT, [0.0] * 100)) == []
    assert names(judged(FLAT)) == []


def test_weights_that_never_moved_are_frozen_and_not_slow():
    weights = [f"w{i}" for i in range(10)]
    lucky = 0.5 - 1e-3 * np.arange(100)  # a fall that only the batches made
    judgement = judged(lucky, [0.0] * 100, unmoved=weights)
    assert (judgement.verdict, names(judgement)) == ("stalled", ["frozen"])
    slight = 0.5 - 5e-5 * np.arange(100)
    assert names(judged(slight)) == ["too_slow"]
    assert names(judged(slight, unmoved=weights)) == ["frozen"]


def test_second_moments_of_zero_are_a_cause_above_a_tenth_of_all_elements():
    judgement = judged(FLAT, adam_underflowed=0.41, adam_below_eps=0.6)
    assert names(judgement) == ["adam_underflow"]
    assert judgement.evidence.endswith(
        "v = 0 and m != 0 in 41% of all elements at the end, sqrt(v) below eps in 60%"
    )
    assert judgement.verdict == "plateau"  # a figure of the optimizer is no reason to stall
    assert names(judged(FLAT, adam_underflowed=0.1, adam_below_eps=0.9)) == []
    assert names(judged(FLAT)) == []


def test_the_first_block_that_underflowed_is_named_by_its_event():
    events = [
        (9, "optimizer", "adam_underflow", "", "blocks.5", "", "late"),
        (3, "optimizer", "adam_underflow", "", "blocks.1", "", "v = 0 and m != 0 in 41 % of 9"),
    ]
    judgement = judged(FLAT, events=events, adam_underflowed=0.0)
    assert judgement.evidence.endswith(
        "adam_underflow: from step 3 on in blocks.1 and 1 more: v = 0 and m != 0 in 41 % of 9"
    )


def test_a_learned_run_carries_underflow_as_a_warning():
    judgement = judged(LEARNING, adam_underflowed=0.41)
    assert (judgement.verdict, names(judgement)) == ("learned", ["adam_underflow"])


def test_precision_is_a_cause_only_where_fp64_is_finite():
    def causes_of(said):
        return names(judged(np.full(8, 0.5), said=said, first_bad_step=7))

    assert causes_of(autopsy(birth())) == ["nonfinite_origin", "precision"]
    assert causes_of(autopsy(birth(), "mathematical")) == ["nonfinite_origin"]
    assert causes_of(autopsy(None, "not reproduced")) == ["nonfinite_origin"]
    shadow = {"float64": {"loss": None, "grad_norm": None, "finite": True}}
    redone = judged(
        np.full(8, 0.5), said=autopsy(birth(), optimizer=update(), shadow=shadow), first_bad_step=7
    )
    assert redone.evidence.endswith("precision: finite in fp64")


def test_all_norm_gains_are_all_that_the_model_has():
    gains = ["blocks.0.attn.before.weight", "blocks.0.mlp.after.weight", "norm.weight",
             "blocks.0.attn.body.q_norm.weight", "blocks.1.attn.inside.weight"]  # fmt: skip
    others = ["norm.bias", "head.weight", "blocks.0.attn.body.wo.weight", "embed.token.weight"]
    assert all_gains([*gains, *others], 5)
    assert not all_gains([*gains, *others], 6)
    assert not all_gains(others, 0) and not all_gains(others, None)


def test_a_model_without_learned_gains_has_none_to_freeze():
    settings = {
        "train.loss_scale": "auto", "train.precision": "bf16", "model.depth": 2, "train.lr": 1e-3,
        "train.warmup": 0, "model.affine": False,
    }  # fmt: skip
    env = {"ln_v": 4, "h1": 3, "floor": 2, "norms": 5}
    assert Facts.of(settings, env).gains == 0
    assert Facts.of(settings | {"model.affine": True}, env).gains == 5
    assert Facts.of(settings, {k: env[k] for k in ("ln_v", "h1", "floor")}).gains is None


def test_an_examined_origin_is_believed_before_what_the_norms_said():
    events = [
        (3, "backward", "nan", "", "head.weight", "", ""),
        (3, "backward", "nan", "propagated", "blocks.2.mlp", "", ""),
        (3, "forward", "nan", "origin", "blocks.1.attn", "aten._softmax", ""),
    ]
    judgement = judged(np.full(4, 0.5), events=events, first_bad_step=3)
    assert judgement.evidence == (
        "nonfinite_origin: nan in forward, blocks.1.attn (aten._softmax) at step 3"
    )


def test_skips_in_a_row_that_ended_a_run_are_a_failure_and_single_skips_are_not():
    scaled = replace(FACTS, dynamic_scaling=True)
    loss, unigram = curve(LEARNING)
    skipped = [0] * 190 + [1] * 10
    steps = steps_of(loss, unigram, skipped=skipped, nonfinite_grads=[9 * s for s in skipped])
    row = (195, "backward", "inf", "origin", "blocks.1.mlp", "", "")
    end = (199, "optimizer", "skips_in_a_row", "", "", "", "10")
    for rows, verdict in (([row], "learned"), ([row, end], "nonfinite")):
        events = pd.DataFrame(rows, columns=EVENT_COLUMNS)
        judgement = judge(steps, HEALTHY, events, scaled, Status("finished", steps_done=200))
        assert judgement.verdict == verdict


def test_an_autopsy_tells_words_from_numbers():
    parsed = Autopsy.of(
        autopsy(birth(kind="inf"), loss="nan", grad_norm="-inf", optimizer=update())
    )
    assert parsed.origin is not None and parsed.origin.kind == "inf"
    assert parsed.loss is not None and np.isnan(parsed.loss)
    assert (parsed.grad_norm, parsed.optimizer.weight_after) == (-np.inf, -np.inf)
    assert parsed.optimizer.element == [3, 5] and nan != parsed.loss


@pytest.mark.parametrize("wrong", [{}, {"step": "x"}, {"origin": 3}, {"shadow": {"float64": {}}}])
def test_what_is_no_autopsy_is_refused(wrong):
    whole = autopsy(birth()) | wrong if wrong else {"schema": 1}
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        Autopsy.of(whole)
