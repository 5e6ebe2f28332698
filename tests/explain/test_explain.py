import json
from math import nan

import numpy as np
import pytest

from lnexp.config.schema import KEYS, Measure, Model, RunConfig, Train
from lnexp.explain.explain import explain
from lnexp.messages import UserError
from lnexp.rows import EventRow, LayerRow
from tests.origin.autopsies import autopsy, birth, tensor, update, write_autopsy
from tests.results.folders import ENV, curve, step_rows, write_points, write_run

DEPTH, N = 6, 100
FLAT = np.zeros(N)
LEARNED = -0.6 / (1 + np.exp(-(np.arange(N) - 40) / 8))
NORM_GAINS = [f"blocks.{i}.{half}.before.weight" for i in range(DEPTH) for half in ("attn", "mlp")]
WEIGHTS = [f"w{i}" for i in range(10)]


def config(model=None, train=None, measure=None):
    return RunConfig(
        model=Model(**{"depth": DEPTH, **(model or {})}),
        train=Train(**{"steps": N, **(train or {})}),
        measure=Measure(**(measure or {})),
    )


def layers_of(ratio, steps=N, cosine=None, ratio0=None):
    """Block norms from `ratio` (first) to 1 (last); `ratio0`: at step 0 to 9."""
    for step in range(steps):
        first = ratio if ratio0 is None or step > 9 else ratio0
        norms = np.geomspace(first, 1, DEPTH) if first else np.zeros(DEPTH)
        for layer, norm in enumerate(norms):
            for part, share in (("attn", 0.6), ("mlp", 0.8)):
                yield LayerRow(
                    step, layer, part, grad_norm=float(share * norm), update_norm=1e-3,
                    token_cosine=cosine,
                )  # fmt: skip


class Sweep:
    """One sweep folder; `run` writes one run in it and explains it."""

    def __init__(self, path):
        self.path = path / "demo"
        self.path.mkdir()
        self.count = 0

    def run(self, gap, settings=None, layers=None, said=None, env=None, noise=0.02, **more):
        self.count += 1
        gap = np.asarray(gap, dtype=float)
        loss, unigram = curve(gap, batch_noise=noise, gap_noise=noise / 10)
        columns = more.pop("columns", {"grad_norm": [1.0] * len(gap)})
        rows = step_rows(loss, unigram, **columns)
        folder = write_run(
            self.path, f"run-{self.count}", settings or config(), rows,
            layers_of(0.8) if layers is None else layers, **more,
        )  # fmt: skip
        (folder / "env.json").write_text(json.dumps(ENV | {"norms": 12} | (env or {})))
        if said is not None:
            write_autopsy(folder, said)
        return explain(folder)

    def failed(self, said, step=7, **more):
        """A run whose autopsy says `said`."""
        return self.run(np.full(step + 1, 0.5), said=said, first_bad_step=step, **more)


@pytest.fixture
def sweep(tmp_path):
    return Sweep(tmp_path)


def keys(explanation):
    return [suggestion.key for suggestion in explanation.suggestions]


def tried(explanation):
    return {s.key: s.value for s in explanation.suggestions}


def steady(updates=1e-2, weights=10.0, n=N):
    return {"grad_norm": [1.0] * n, "update_norm": [updates] * n, "weight_norm": [weights] * n}


def test_six_fates_get_six_different_true_answers(sweep):
    healthy = sweep.run(LEARNED)
    stalled = sweep.run(FLAT, layers=layers_of(1e-6))
    diverged = sweep.run(np.linspace(0, 5, N))
    frozen = sweep.run(FLAT, config(train={"lr": 0.0}), unmoved=WEIGHTS)
    warming = sweep.run(FLAT, config(train={"warmup": 1000}))
    bad = sweep.failed(autopsy(birth()))
    told = [e.diagnosis for e in (healthy, stalled, diverged, frozen, warming, bad)]
    assert len(set(told)) == 6
    starts = (
        "Healthy, it learned: loss", "Stalled, the gradient vanishes", "Diverged, with finite",
        "Nothing was trained: 10 of 10", "Still warming up: lr reached", "Inf was born in the for",
    )  # fmt: skip
    assert all(words.startswith(start) for words, start in zip(told, starts, strict=True))
    assert healthy.suggestions == [] and healthy.chain == []


def test_five_losses_that_do_not_move_get_five_one_line_diagnoses(sweep):
    lr_0 = sweep.run(FLAT, config(train={"lr": 0.0}), unmoved=WEIGHTS, columns=steady(0.0))
    slow = sweep.run(FLAT, config(train={"lr": 1e-7}), columns=steady(5e-5))
    dead = sweep.run(FLAT, layers=layers_of(0.0))
    warm = sweep.run(FLAT, config(train={"warmup": 1000}), columns=steady())
    well = sweep.run(LEARNED, columns=steady())
    assert [e.diagnosis for e in (lr_0, slow, dead)] == [
        "Nothing was trained: 10 of 10 weight tensors bit-identical to their start.",
        "Too slow: 100 updates moved the weights by at most 0.05 % of their norm.",
        "No gradient arrives: gradient exactly 0 in 6 of 6 blocks.",
    ]
    assert "warm-up is 1000 steps, 100 were done" in warm.diagnosis
    assert well.diagnosis.startswith("Healthy")
    assert tried(slow) == {"train.lr": 2e-5}  # 200 times: then updates come to 10 %


def test_a_run_with_lr_0_is_frozen_however_the_batches_fell(sweep):
    lucky = np.where(np.arange(N) < 75, 0.2, 0.0)
    lr_0 = sweep.run(lucky, config(train={"lr": 0.0}), unmoved=WEIGHTS)
    assert lr_0.case.judgement.verdict == "stalled"
    assert lr_0.diagnosis.startswith("Nothing was trained")


@pytest.mark.parametrize("nature", ["numerical", "mathematical"])
@pytest.mark.parametrize("phase", ["forward", "loss", "backward", "optimizer"])
@pytest.mark.parametrize("kind", ["inf", "nan"])
def test_the_origin_is_told_with_phase_module_operation_and_kind(sweep, phase, kind, nature):
    explanation = sweep.failed(autopsy(birth(phase=phase, kind=kind), nature))
    first, *rest = explanation.origin
    name = {"inf": "Inf", "nan": "NaN"}[kind]
    where = {
        "forward": "in the forward pass", "loss": "in the loss", "backward": "in the backward pass",
        "optimizer": "in the optimizer's update",
    }[phase]  # fmt: skip
    assert first == (
        f"{name} was born {where} of step 7, in block 3 of 6 (layer 2), MLP, second matrix "
        "(blocks.2.mlp.body.w2), by matrix product (aten.addmm.default)."
    )
    assert "In: float32 8 x 4, all finite, from -1 to 2." in rest
    assert f"Out: float32 8 x 4, finite elements from -1 to 2, 3 of 32 elements {name}." in rest
    wide = [words for words in rest if "fp64" in words]
    assert len(wide) == 1 and wide[0].lower().startswith(nature)
    assert ("precision" in explanation.case.causes) == (nature == "numerical")


def test_a_numerical_failure_shows_what_fp64_makes_of_it(sweep):
    explanation = sweep.failed(autopsy(birth()))
    assert explanation.case.causes["precision"].evidence == (
        "finite in fp64: loss 3.2, gradient norm 1"
    )


def test_a_fully_masked_row_is_told_by_its_softmax(sweep):
    origin = birth(
        kind="nan", module="blocks.1.attn.body", op="aten._softmax.default",
        inputs=[tensor(inf=4)], attention={"largest_score": 2.0},
    )  # fmt: skip
    spread = birth(phase="backward", kind="nan", module="blocks.1.attn.body.wqkv")
    explanation = sweep.failed(
        autopsy(origin, "mathematical", propagated=spread),
        settings=config({"attention": "plain"}),
    )
    assert "fully masked" in explanation.diagnosis and "0/0" in explanation.diagnosis
    assert "block 2 of 6 (layer 1), attention" in explanation.diagnosis
    assert any("the loss was 3.2" in words for words in explanation.origin)
    assert tried(explanation)["model.attention"] == "sdpa"


def test_an_eps_that_its_format_cannot_hold_is_named_with_the_limit(sweep):
    origin = birth(
        kind="nan", module="blocks.0.attn.before", op="aten.div.Tensor",
        inputs=[tensor("float16")], outputs=[tensor("float16", nan=32)],
        norm={"eps": 1e-12, "eps_held": 0.0, "smallest_variance": 0.0},
    )  # fmt: skip
    explanation = sweep.failed(autopsy(origin), settings=config({"eps": 1e-12}))
    assert "eps 1e-12 is not representable in float16" in explanation.diagnosis
    assert "the smallest number above 0 in float16 is 6e-08" in explanation.diagnosis
    assert tried(explanation)["model.eps"] == 1e-5


def test_an_optimizer_that_divides_by_zero_shows_weight_moments_and_eps(sweep):
    origin = birth(
        phase="optimizer", module="blocks.0.attn.body.wqkv.weight", op="AdamW (per tensor)"
    )
    explanation = sweep.failed(autopsy(origin, optimizer=update()))
    said = "\n".join(explanation.origin)
    assert "eps 1e-08 is held as 0" in explanation.diagnosis
    assert "queries, keys and values, weight" in said
    assert (
        "weight[3, 5]: 0.1 -> -inf (gradient 0.0001, first moment 1e-05, second moment 0)" in said
    )
    assert "12 of its 4096 elements went bad; v = 0 and m != 0 in 41% of them" in said
    assert tried(explanation)["train.adam_eps"] == 1e-5


def test_an_update_of_m_over_eps_is_told_apart_from_a_division_by_zero(sweep):
    origin = birth(phase="optimizer", module="head.weight", op="AdamW (fused)")
    explanation = sweep.failed(autopsy(origin, optimizer=update(eps_held=1e-8, kernel="fused")))
    assert "the update is the first moment 1e-05 over eps 1e-08" in explanation.diagnosis


def test_an_exponential_names_the_largest_that_its_format_holds(sweep):
    origin = birth(op="aten.exp.default", module="blocks.0.attn.body", inputs=[tensor(high=123.0)])
    explanation = sweep.failed(autopsy(origin), settings=config({"softmax": "plain"}))
    assert "exponential of 123; float32 holds exp(x) up to x = 88.7" in explanation.diagnosis
    assert tried(explanation)["model.softmax"] == "stable"


def test_an_overflow_names_the_end_of_the_format_in_backward_too(sweep):
    origin = birth(
        phase="backward", module="blocks.5.mlp.body.w1", op="AddmmBackward0/aten.mm.default",
        inputs=[tensor(high=3e38)],
    )  # fmt: skip
    explanation = sweep.run(
        [8.9e13], said=autopsy(origin, step=0), first_bad_step=0, env={"norms": 0},
        settings=config({"placement": "none"}),
    )  # fmt: skip
    assert "ends at 3.4e+38" in explanation.diagnosis
    assert "the largest number that went in was 3e+38" in explanation.diagnosis
    assert "(AddmmBackward0/aten.mm.default)" in explanation.origin[0]
    first = explanation.suggestions[0]
    assert (first.key, first.value) == ("model.placement", "pre")
    assert "the first loss is 8.9e+13" in first.because


def test_attention_in_one_operation_is_told_by_its_queries_and_keys(sweep):
    huge = tensor(low=-3e19, high=3e19)
    origin = birth(
        kind="nan", module="blocks.3.attn.body", inputs=[huge, huge, huge],
        op="aten._scaled_dot_product_flash_attention_for_cpu.default",
    )  # fmt: skip
    wide = {"float64": {"loss": 5.4e20, "grad_norm": 4e22, "finite": True}}
    said = autopsy(origin, step=0, loss="nan", shadow=wide)
    settings = config({"placement": "none"})
    explanation = sweep.run([nan], settings, said=said, first_bad_step=0, env={"norms": 0})
    assert "queries up to 3e+19 times keys up to 3e+19" in explanation.diagnosis
    assert "by attention (aten._scaled" in explanation.origin[0]
    assert "the first loss is 5.4e+20 in fp64" in explanation.suggestions[0].because


def test_a_zero_variance_under_a_root_is_told_in_backward(sweep):
    origin = birth(
        phase="backward", kind="nan", module="blocks.0.mlp.before",
        op="SqrtBackward0/aten.div.Tensor", inputs=[tensor(low=0.0, high=1.0)],
    )  # fmt: skip
    explanation = sweep.failed(autopsy(origin, "mathematical"))
    assert "derivative of a square root at 0 is infinite" in explanation.diagnosis


def test_a_failure_that_the_replay_does_not_show_is_called_not_reproduced(sweep):
    said = autopsy(None, "not reproduced", loss="nan", grad_norm="inf")
    explanation = sweep.failed(said)
    assert "not reproduced" in explanation.diagnosis
    assert explanation.origin[0].startswith("Not reproduced: the replay of the step came out")
    assert "loss nan, gradient norm inf" in explanation.origin[0]
    assert not any("fp64" in words for words in explanation.origin)


def test_without_an_autopsy_the_events_tell_the_origin(sweep):
    events = [EventRow(7, "forward", "inf", "origin", "blocks.2.mlp", "aten.mul")]
    explanation = sweep.run(np.full(8, 0.5), events=events, first_bad_step=7)
    assert explanation.diagnosis == (
        "Non-finite: inf in forward, blocks.2.mlp (aten.mul) at step 7."
    )


def test_a_broken_autopsy_is_noted_and_the_run_is_still_explained(sweep):
    explanation = sweep.failed({"schema": 1})
    assert "autopsy.json: not the autopsy of a run" in explanation.case.notes[0]
    assert explanation.diagnosis.startswith("Non-finite")


def test_the_story_of_fp16_is_read_off_the_records_in_order(sweep):
    """Gradients shrink, second moments underflow, updates are m/eps, weights explode, overflow."""
    n, t = 16, np.arange(16)
    columns = {
        "grad_norm": [1.0] * n,
        "update_norm": np.where(t < 10, 1e-3, 5.0).tolist(),
        "weight_norm": np.where(t < 12, 10.0, 1e4).tolist(),
    }
    events = [
        EventRow(8, "optimizer", "adam_underflow", module="blocks.0", detail="v = 0 ... in 41 %"),
        EventRow(9, "optimizer", "adam_underflow", module="blocks.1", detail="v = 0 ... in 30 %"),
    ]
    origin = birth(op="aten.addmm.default", outputs=[tensor("float16", inf=9)])
    settings = config({"placement": "post"}, {"precision": "fp16", "lr": 8e-4})
    explanation = sweep.run(
        np.full(n, 0.5), settings, layers_of(1e-5, n, ratio0=0.9), autopsy(origin, step=15),
        columns=columns, events=events, first_bad_step=15, adam_underflowed=0.41,
    )  # fmt: skip
    story = [(row["step"], row["series"]) for row in explanation.chain]
    assert story == [
        (8, "adam_underflow"), (10, "grad_norm"), (10, "gradient_ratio"), (10, "update_norm"),
        (12, "weight_norm"),
    ]  # fmt: skip
    words = [row["words"] for row in explanation.chain]
    assert words[0] == "Adam's second moments are 0 under gradients that are not (2 places)"
    assert words[2] == "first/last block gradient fell to 1e-05, below 0.01"
    assert words[3].startswith("update norm per unit of lr rose to 5e+03, 5e+03 times its usual 1")
    assert words[4] == "weight norm rose to 1e+04, 1e+03 times its usual 10"
    cause = explanation.case.causes["adam_underflow"].evidence
    assert cause == (
        "from step 8 on in blocks.0 and 1 more: v = 0 ... in 41 %, "
        "v = 0 and m != 0 in 41% of all elements at the end"
    )
    first = explanation.suggestions[0]
    assert (first.key, first.value) == ("train.adam_eps", 1e-5) and cause in first.because
    assert tried(explanation)["train.loss_scale"] == 256.0


def test_norm_gains_that_never_moved_are_said_of_a_run_that_learned(sweep):
    env = {"tensors": 60, "weights_dtype": "bfloat16"}
    settings = config(train={"precision": "bf16"})
    explanation = sweep.run(LEARNED, settings, env=env, unmoved=NORM_GAINS)
    assert explanation.case.judgement.verdict == "learned"
    assert explanation.diagnosis.endswith(
        "12 of 60 weight tensors bit-identical to their start, among them all norm gains."
    )
    assert tried(explanation) == {"train.precision": "fp32"}
    some = sweep.run(LEARNED, settings, env=env, unmoved=NORM_GAINS[:-1])
    assert "norm gains" not in some.diagnosis and "11 of 60" in some.diagnosis


def test_a_run_that_learned_may_carry_adam_underflow_as_a_warning(sweep):
    explanation = sweep.run(LEARNED, adam_underflowed=0.3, adam_below_eps=0.6)
    assert explanation.diagnosis.startswith("It learned, with a warning: loss")
    assert "v = 0 and m != 0 in 30% of all elements at the end" in explanation.diagnosis
    assert tried(explanation)["train.adam_eps"] == 1e-5
    assert sweep.run(LEARNED, adam_underflowed=0.09, adam_below_eps=0.6).suggestions == []


def test_when_a_ratio_vanished_in_training_the_first_updates_are_to_blame(sweep):
    later = sweep.run(FLAT, layers=layers_of(1e-6, ratio0=0.9))
    assert "was 0.9 at step 0 and below 0.01 by step 10" in later.suggestions[0].because
    assert keys(later)[:2] == ["train.lr", "train.warmup"]
    at_once = sweep.run(FLAT, config({"init": "xavier"}), layers_of(1e-6))
    assert "train.lr" not in keys(at_once)
    assert at_once.suggestions[0].key == "model.init"


def test_what_diverged_with_growing_gradients_is_told_to_take_smaller_steps(sweep):
    n = np.arange(N)
    columns = steady() | {"grad_norm": np.where(n < 60, 1.0, 500.0).tolist()}
    explanation = sweep.run(np.linspace(0, 5, N), columns=columns)
    assert [(r["step"], r["series"]) for r in explanation.chain] == [(60, "grad_norm")]
    assert tried(explanation)["train.clip"] == 1.0
    assert tried(explanation)["train.lr"] == 3e-4


def test_a_plateau_says_that_no_reason_was_measured(sweep):
    explanation = sweep.run(FLAT)
    assert explanation.diagnosis.startswith("Flat, for no reason that was measured: gap")
    assert tried(explanation) == {"train.steps": 200, "measure.level": "full"}


def test_a_run_that_still_fell_is_asked_for_more_steps_though_some_tensors_never_moved(sweep):
    explanation = sweep.run(1 - 0.01 * np.arange(N), unmoved=NORM_GAINS)
    assert explanation.diagnosis.startswith("Too short to tell: gap still fell by 0.2")
    assert tried(explanation)["train.steps"] == 200


def test_level_off_says_how_little_is_known(sweep):
    settings = config(measure={"level": "off"})
    explanation = sweep.run(FLAT, settings, layers=(), columns={})
    assert "little can be said of causes" in explanation.unknown[0]
    assert tried(explanation)["measure.level"] == "light"
    assert explanation.chain == []


@pytest.mark.parametrize(
    "status, start",
    [
        ("failed", "The process failed after 100 steps: MemoryError: out of memory"),
        ("interrupted", "Interrupted after 100 steps"),
        (None, "Interrupted after 100 steps"),
    ],
)
def test_a_process_that_did_not_finish_gets_no_verdict(sweep, status, start):
    error = "MemoryError: out of memory" if status == "failed" else None
    explanation = sweep.run(LEARNED, status=status, error=error)
    assert explanation.diagnosis.startswith(start)
    assert explanation.case.judgement.verdict == ""
    assert tried(explanation) == ({"train.batch_size": 8} if status == "failed" else {})


def test_a_pending_point_is_told_so(sweep):
    write_points(sweep.path, [("not-yet", 3, {"model.depth": 8})])
    explanation = explain(sweep.path / "runs" / "not-yet")
    assert explanation.diagnosis.startswith("Not trained yet")
    assert explanation.case.settings == {"model.depth": 8}
    assert (explanation.suggestions, explanation.chain, explanation.unknown) == ([], [], [])


def test_a_sweep_is_refused_with_some_of_its_runs_named(sweep):
    sweep.run(LEARNED)
    sweep.failed(autopsy(birth()))
    write_points(sweep.path, [(f"run-{i}", i, {"model.depth": DEPTH}) for i in (1, 2, 3)])
    for path in (sweep.path, sweep.path.parent):
        with pytest.raises(UserError) as refused:
            explain(path)
        first, *named = refused.value.problems
        assert first == f"{path}: 3 runs; explain takes one run folder, for example"
        outcomes = [line.split("(")[1] for line in named]
        assert outcomes[0] == "nonfinite)" and set(outcomes[1:]) == {"learned)", "pending)"}
        assert str(sweep.path / "runs" / "run-2") in named[0]


def test_a_path_that_is_no_run_is_told_what_was_looked_for(tmp_path):
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError, match="not a run folder; expected results/SWEEP/runs/RUN"):
            explain(path)


def test_every_suggestion_names_a_config_key_and_changes_something(sweep):
    cases = [
        sweep.run(FLAT, layers=layers_of(1e-6)),
        sweep.run(FLAT, layers=layers_of(0.8, cosine=0.999)),
        sweep.run(FLAT, layers=layers_of(0.0)),
        sweep.run(np.linspace(0, 5, N)),
        sweep.failed(autopsy(birth())),
        sweep.run(FLAT, config(train={"warmup": 1000})),
        sweep.run(FLAT, env={"floor": 3.24}),
    ]
    for explanation in cases:
        for suggestion in explanation.suggestions:
            assert suggestion.key in KEYS
            assert explanation.case.settings[suggestion.key] != suggestion.value
            assert any(character.isdigit() for character in suggestion.because)


def test_the_words_depend_on_what_was_measured_and_never_on_the_placement(sweep):
    """The same numbers under another name get the same diagnosis, evidence and chain."""
    told = []
    for placement in ("pre", "post", "none", "sandwich"):
        settings = config({"placement": placement})
        for layers, gap in ((layers_of(1e-6, ratio0=1.0), FLAT), (layers_of(0.8), LEARNED)):
            explanation = sweep.run(gap, settings, layers)
            told.append((explanation.diagnosis, explanation.evidence, repr(explanation.chain)))
    assert len({repr(item) for item in told}) == 2


def test_a_norm_that_gave_zeros_is_told_though_everything_is_finite(sweep):
    events = [EventRow(4, "forward", "zero_norm_output", module="blocks.3.mlp.before")]
    explanation = sweep.run(FLAT, config(train={"precision": "fp16"}), events=events)
    assert any(
        name == "zero_norm_output" and "block 4 of 6 (layer 3), MLP, norm before it" in figures
        for name, figures, _ in explanation.evidence
    )
    assert tried(explanation)["train.precision"] == "bf16"


def test_skips_of_the_scaler_are_no_instability_until_they_end_the_run(sweep):
    skipped = [0] * N
    skipped[:4] = [1] * 4
    columns = {"skipped": skipped, "grad_norm": [1.0] * N}
    event = EventRow(0, "optimizer", "scaler_skip")
    settings = config(train={"precision": "fp16-mixed"})
    fine = sweep.run(LEARNED, settings, columns=columns, events=[event], skipped=4)
    assert fine.diagnosis.startswith("Healthy") and fine.chain == []
    assert ("skipped", "4 of 100 steps made no update", "") in fine.evidence
    columns = columns | {"skipped": [0] * 60 + [1] * 40}
    events = [event, EventRow(99, "optimizer", "skips_in_a_row", detail="40")]
    ended = sweep.run(LEARNED, settings, columns=columns, events=events, first_bad_step=99)
    assert ended.case.judgement.verdict == "nonfinite"
    assert [(r["step"], r["series"]) for r in ended.chain] == [(60, "skips")]


FLASH = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
INTO = ("gradient of the output", "query", "key", "value", "output", "log-sum")


def fused(layer, high=3e14, **more):
    return birth(
        phase="backward", module=f"blocks.{layer}.attn.body", op=FLASH,
        inputs=[tensor(high=high)] + [tensor() for _ in INTO[1:]],
        outputs=[tensor(inf=3, nan=2)], **more,
    )  # fmt: skip


def test_in_the_last_block_nothing_was_carried_there(sweep):
    first, last = (sweep.failed(autopsy(fused(i))).origin for i in (0, DEPTH - 1))
    assert any("rounding, carried from block to block" in line for line in first)
    words = "rounding inside this block, multiplied by numbers of size 3e+14"
    assert any(words in line for line in last)
    assert not any("carried" in line for line in last)


def test_the_inputs_of_a_fused_attention_have_names(sweep):
    told = sweep.failed(autopsy(fused(2))).origin
    assert [x for x in told if x.startswith("In: ")] == [
        f"In: {name}, float32 8 x 4, all finite, from -1 to {high}."
        for name, high in zip(INTO, ("3e+14", *"22222"), strict=True)
    ]
    forward = birth(op=FLASH.replace("_backward", ""), inputs=[tensor()] * 3)
    names = [x.split(",")[0] for x in sweep.failed(autopsy(forward)).origin if "In: " in x]
    assert names == ["In: query", "In: key", "In: value"]
    assert "In: float32 8 x 4, all finite, from -1 to 2." in sweep.failed(autopsy(birth())).origin


def test_beyond_1e10_the_fused_kernel_is_named_and_doubted(sweep):
    far = sweep.failed(autopsy(fused(5)))
    assert any("recomputes exp(score - log-sum)" in line for line in far.origin)
    assert tried(far)["model.attention"] == "plain"
    assert tried(far)["train.precision"] == "fp64"
    near = sweep.failed(autopsy(fused(5, high=1e9)))
    assert not any("recomputes" in line for line in near.origin)
    assert "model.attention" not in tried(near)
    both = sweep.failed(autopsy(fused(5), nature="mathematical"))
    assert "train.precision" not in tried(both)


def test_inf_and_nan_are_both_named_where_both_came_out(sweep):
    explanation = sweep.failed(autopsy(fused(5)))
    assert explanation.diagnosis.startswith("Inf and NaN were born in the backward pass")
    assert explanation.origin[0].startswith("Inf and NaN were born")
    assert sweep.failed(autopsy(birth())).diagnosis.startswith("Inf was born")


def test_before_step_0_there_was_nothing(sweep):
    said = sweep.failed(autopsy(birth(), step=0), step=0)
    assert "It happened at step 0: there is nothing before it." in said.unknown
    assert not any("What led to it" in line for line in said.unknown)


def test_forward_readings_stand_in_the_evidence_of_a_healthy_run(sweep):
    rows = [
        LayerRow(step, layer, "attn", 1.0, act_rms=1.0 + layer, norm_input_rms=2.0 + layer,
                 token_cosine=0.1 * layer, attn_logit_max=3.0 + step)
        for step in (0, 10) for layer in range(DEPTH)
    ]  # fmt: skip
    said = {name: figures for name, figures, _ in sweep.run(LEARNED, layers=rows).evidence}
    assert (
        said["RMS of the residual stream"] == "1 in the first block, 6 in the last block at step 10"
    )
    assert said["RMS of a norm's input"] == "2 in the first block, 7 in the last block at step 10"
    assert said["cosine between tokens"] == "0 in the first block, 0.5 in the last block at step 10"
    assert said["largest attention score"].startswith("13 in the first block, 13 in")
    assert not set(said) & {e[0] for e in sweep.run(LEARNED).evidence if "RMS" in e[0]}


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_a_plateau_names_a_learning_rate_that_was_gone(sweep, schedule):
    columns = steady()
    said = sweep.run(FLAT, config(train={"schedule": schedule}), columns=columns)
    assert "lr" not in {e[0] for e in said.evidence}  # these rows hold a constant rate
    folder = said.case.folder
    lines = (folder / "steps.csv").read_text().splitlines()
    at = lines[0].split(",").index("lr")
    for i, line in enumerate(lines[1:]):
        cells = line.split(",")
        cells[at] = repr(1e-3 * (1 - i / (N - 1)))
        lines[i + 1] = ",".join(cells)
    (folder / "steps.csv").write_text("\n".join(lines) + "\n")
    gone = explain(folder)
    figures = next(f for name, f, _ in gone.evidence if name == "lr")
    assert figures == (
        f"lr had fallen to 0 by the last step (train.schedule: {schedule}, peak 0.001)"
    )
    assert gone.diagnosis.startswith("Flat, under a learning rate that was gone")
