"""A wrong config is refused with file, line, key, what was read and what to write: all at once."""

import re
import subprocess
import sys
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lnexp.config.hints import ALIASES, FOREIGN, LEAVES, TOP, check, describe, nearest
from lnexp.config.schema import KEYS, NormName, PlacementName
from lnexp.config.sweep import dump, load_sweep
from lnexp.messages import UserError


@pytest.fixture
def wrong(tmp_path):
    """The lines of complaint, with the file called exp.yaml."""

    def wrong(text: str, *overrides: str) -> list[str]:
        file = tmp_path / "exp.yaml"
        file.write_text(text, encoding="utf-8")
        with pytest.raises(UserError) as caught:
            load_sweep(file, overrides)
        return [line.replace(str(tmp_path) + "/", "") for line in caught.value.problems]

    return wrong


def only(lines: list[str]) -> str:
    assert len(lines) == 1, lines
    return lines[0]


# ------------------------------------------------------------------- values (B1, B2, B4)

NORMS = "write one of " + ", ".join(get_args(NormName))
NO_NORM = "; for no norm write model.placement: none"
WHOLE = "write a whole number, at least 1, at most 5000"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("norm: no", f"model.norm: no reads as false; {NORMS}{NO_NORM}"),
        ("norm: off", f"model.norm: off reads as false; {NORMS}{NO_NORM}"),
        ("norm: none", f"model.norm: none does not fit; {NORMS}{NO_NORM}"),
        ("norm: None", f"model.norm: None does not fit; {NORMS}{NO_NORM}"),
        ("norm:", f"model.norm: is empty; {NORMS}, or leave it out{NO_NORM}"),
        ("norm: ~", f"model.norm: is empty; {NORMS}, or leave it out{NO_NORM}"),
        ("norm: layer", f"model.norm: layer does not fit; {NORMS} (did you mean layernorm?)"),
        ("norm: groupnorm", f"model.norm: groupnorm does not fit; {NORMS}"),
        (
            'residual: "false"',
            'model.residual: "false" reads as text (quoted; write false); write true or false',
        ),
        ("residual: 1", "model.residual: 1 does not fit; write true or false"),
        ("depth: 010", f"model.depth: 010 reads as text (a leading 0; write 10); {WHOLE}"),
        ("depth: 08", f"model.depth: 08 reads as text (a leading 0; write 8); {WHOLE}"),
        ("depth: 1_000", f"model.depth: 1_000 reads as text (an underscore; write 1000); {WHOLE}"),
        ("depth: 0x10", f"model.depth: 0x10 reads as text (write 16); {WHOLE}"),
        ("depth: 0o9", f"model.depth: 0o9 does not fit; {WHOLE}"),
        ("depth: '4'", f"model.depth: '4' reads as text (quoted; write 4); {WHOLE}"),
        (
            "depth: 1:30",
            f"model.depth: 1:30 reads as text (YAML's base 60 is not read here); {WHOLE}",
        ),
        ("depth: 6.0", f"model.depth: 6.0 is no whole number (write 6); {WHOLE}"),
        ("depth: 6.5", f"model.depth: 6.5 does not fit; {WHOLE}"),
        ("depth: true", f"model.depth: true does not fit; {WHOLE}"),
        ("depth: yes", f"model.depth: yes reads as true; {WHOLE}"),
        ("depth: 5001", f"model.depth: 5001 does not fit; {WHOLE}"),
        ("depth: 1e30", f"model.depth: 1e30 does not fit; {WHOLE}"),
        ("depth: -0.0", f"model.depth: -0.0 does not fit; {WHOLE}"),
        ("depth: '-4'", f"model.depth: '-4' reads as text (quoted); {WHOLE}"),
        ("depth: '1e999'", f"model.depth: '1e999' reads as text (quoted); {WHOLE}"),
        ("depth: 0x1388", f"model.depth: 0x1388 reads as text (write 5000); {WHOLE}"),
        ("depth: 0x1389", f"model.depth: 0x1389 reads as text; {WHOLE}"),
        ("depth: 0", f"model.depth: 0 does not fit; {WHOLE}"),
        ("depth: -2", f"model.depth: -2 does not fit; {WHOLE}"),
        ("depth: []", f"model.depth: is a list; {WHOLE} (several values go under sweep:)"),
        ("depth: {a: 1}", f"model.depth: is a group of keys; {WHOLE}"),
        ("eps: inf", "model.eps: inf does not fit; write a number, at least 0"),
        ("eps: .inf", "model.eps: .inf does not fit; write a number, at least 0"),
        ("eps: .nan", "model.eps: .nan does not fit; write a number, at least 0"),
        ("eps: -1e-5", "model.eps: -1e-5 does not fit; write a number, at least 0"),
        ("dropout: 1", "model.dropout: 1 does not fit; write a number, at least 0, below 1"),
        (
            "embed_std: big",
            "model.embed_std: big does not fit; write auto, or a number, at least 0",
        ),
    ],
)
def test_a_wrong_value_says_what_was_read_and_what_to_write(wrong, line, says):
    assert only(wrong(f"model:\n  {line}\n")) == f"exp.yaml:2: {says}"


@pytest.mark.parametrize(
    ("key", "foreign", "ours"),
    [
        ("model.placement", "Pre-LN", "pre"), ("model.placement", "postln", "post"),
        ("model.norm", "RMSNorm", "rmsnorm"), ("model.norm", "rms", "rmsnorm"),
        ("train.precision", "float16", "fp16"), ("train.precision", "bfloat16", "bf16"),
        ("train.precision", "torch.float32", "fp32"), ("train.precision", "FP32", "fp32"),
        ("train.precision", "16", "fp16"), ("model.init", "xavier_uniform", "xavier"),
        ("data.source", "txt", "file"), ("train.optimizer", "AdamW", "adamw"),
    ],
)  # fmt: skip
def test_a_value_of_another_spelling_leads_to_ours(wrong, key, foreign, ours):
    assert only(wrong("seeds: [0]", f"{key}={foreign}")).endswith(f"(did you mean {ours}?)")
    assert not check(key, ours, ours, ("", ""))[1]


def test_every_alias_is_a_value_of_some_key():
    words = " ".join(describe(key) for key in KEYS).replace(",", " ").split()
    assert set(ALIASES.values()) <= set(words)
    assert all(re.fullmatch("[a-z0-9]+", name) for name in ALIASES)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model:\n  width:32\n", "exp.yaml:2: a space is missing after 'width:'"),
        ("model:\n  width: 32\n   context:64\n", "exp.yaml:3: a space is missing after "
         "'context:'"),
        ("train: {device: cuda:0}\n", "exp.yaml:1: train.device: cuda:0 does not fit; write one of "
         "auto, cpu, cuda, mps (did you mean cuda?)"),
        ("train:\n  lr: 1e-3, 3e-4\n", "exp.yaml:2: train.lr: 1e-3, 3e-4 does not fit; write a "
         "number, at least 0 (for several values write train.lr: [1e-3, 3e-4] under sweep:)"),
    ],
)  # fmt: skip
def test_a_slip_of_the_keyboard_is_found_in_its_own_line(wrong, text, says):
    assert only(wrong(text)).startswith(says)


def test_limits_take_inf_but_nan_is_no_limit(wrong):
    assert only(wrong("train: {clip: .nan}")).endswith("write a number, above 0, or .inf")
    assert only(wrong("train: {clip: inf}")).endswith(
        "inf reads as text (write .inf); write a number, above 0, or .inf"
    )


def test_betas_are_two_numbers(wrong):
    for value in ("0.9", "[0.9]", "[0.9, 1]", "[a, b]", "{}"):
        assert "a list of 2, each a number, at least 0, below 1" in only(
            wrong(f"train: {{betas: {value}}}")
        )


def test_text_keys_take_no_numbers(wrong):
    assert only(wrong("name: 2024")) == "exp.yaml:1: name: 2024 does not fit; write text, in quotes"
    assert "write text (in quotes)" in only(wrong("data: {encoding: 8}"))


# ---------------------------------------------------------------------------- keys (B3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model: {dpeth: 4}", "model.dpeth: no such key; did you mean model.depth?"),
        ("train: {depth: 4}", "train.depth: no such key; did you mean model.depth?"),
        ("train: {learning-rate: 1}", "train.learning-rate: no such key; did you mean train.lr?"),
        ("lr: 1e-3", "lr: no such key here; write lr under train: (train.lr)"),
        ("model.depth: 4", "model.depth: no such key here; write depth under model: (model.depth)"),
        ("seed: 1", "seed: no such key; did you mean seeds?"),
        ("modle: {}", "modle: no such key; did you mean model?"),
        ("sweep: {dept: [2, 4]}", "dept: no such key; did you mean model.depth?"),
        ("sweep: {seeds: [1]}", "seeds: no such key here; write seeds: at the top of the file"),
        ("sweep: {model: {depth: [2]}}", "model: write dotted keys here, such as model.depth"),
        ("cases: [{n_layer: 2}]", "n_layer: no such key; did you mean model.depth?"),
        ("seeds: {int: [1]}", "seeds.int: no such key; seeds has init and data"),
        ("zzz: 1", f"zzz: no such key; there are {', '.join(TOP)}"),
        (
            "measure: {zzz: 1}",
            "measure.zzz: no such key; measure has level, every, sample, eval_every, "
            "snapshot_every, keep",
        ),
        ("sweep: {zzz: [1]}", "zzz: no such key; keys are dotted, such as model.depth"),
    ],
)
def test_an_unknown_key_names_the_nearest_valid_one(wrong, text, says):
    assert only(wrong(text)) == f"exp.yaml:1: {says}"


@pytest.mark.parametrize(
    ("foreign", "ours"),
    [
        ("n_layer", "model.depth"), ("n_head", "model.heads"), ("n_embd", "model.width"),
        ("block_size", "model.context"), ("learning_rate", "train.lr"),
        ("learning-rate", "train.lr"), ("max_iters", "train.steps"),
        ("warmup_iters", "train.warmup"), ("batch_size", "train.batch_size"),
        ("dtype", "train.precision"), ("grad_clip", "train.clip"), ("beta1", "train.betas"),
        ("dataset", "data.source"), ("eval_interval", "measure.eval_every"),
        ("norm_type", "model.norm"), ("N_LAYER", "model.depth"),
    ],
)  # fmt: skip
def test_names_of_nangpt_lead_to_ours_wherever_they_stand(foreign, ours):
    assert nearest(foreign, "") == nearest(foreign, "train") == ours


def test_every_hint_is_a_key_that_exists():
    assert all(ours in KEYS or ours in TOP for ours in FOREIGN.values())
    assert len(LEAVES) == len(KEYS)
    assert not set(FOREIGN) & (set(LEAVES) | set(TOP))


def test_every_key_can_say_what_it_takes():
    assert describe("model.placement") == "one of " + ", ".join(get_args(PlacementName))
    assert all(describe(key) for key in KEYS)


# ---------------------------------------------------------------------------- structure


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sweep: {model.depth: []}", "model.depth: nothing to run: the list is empty"),
        ("sweep: {model.depth: 4}", "model.depth: 4 is one value; write a list: [4]"),
        ("sweep: {model.depth: }", "model.depth: is empty; write a list, such as [4], or leave it "
         "out"),
        ("seeds: []", "seeds: nothing to run: the list is empty"),
        ("seeds: 3", "seeds: 3 is one value; write a list: [3] (for 3 seeds write [0, 1, 2])"),
        ("seeds: 2024", "seeds: 2024 is one value; write a list: [2024]"),
        ("seeds: 1", "seeds: 1 is one value; write a list: [1]"),
        ("sweep: {model.depth: [[2]]}", f"model.depth: is a list; {WHOLE}"),
        ("model: {width:32}", "model.width:32: a space is missing after 'width:'"),
        ("name:x\nmodel: {depth: 2}", "a space is missing after 'name:'"),
        ("seeds: abc", "seeds: abc is one value; write a list: [0, 1, 2]"),
        ("seeds: 0..3", "seeds: 0..3 is one value; write a list: [0, 1, 2]"),
        ("seeds: -1", "seeds: -1 is one value; write a list: [0, 1, 2]"),
        ("seeds: {init: 1.5}", "seeds.init: 1.5 is one value; write a list: [0, 1, 2]"),
        ("sweep: {model.depth: abc}", "model.depth: abc is one value; write a list: [4]"),
        ("sweep: {model.norm: rmsnorm}", "model.norm: rmsnorm is one value; write a list: "
         "[rmsnorm]"),
        ("sweep: {data.path: 3}", 'data.path: 3 is one value; write a list: ["..."]'),
        ("cases: 3", "cases: 3 is one value; write a list: [{model.depth: 2}]"),
        ("seeds: [18446744073709551615]", "seeds: 18446744073709551615 is too large; the largest "
         "integer is 9223372036854775807"),
        ("sweep: {model.depth: [1, 1e999]}", "model.depth: 1e999 is too large for a number; write "
         ".inf for no limit"),
        ("seeds: [-1]", "seeds: -1 does not fit; write a whole number, at least 0"),
        ("seeds: [true]", "seeds: true does not fit; write a whole number, at least 0"),
        ("seeds: [1.0]", "seeds: 1.0 is no whole number (write 1); write a whole number, at least "
         "0"),
        ("seeds: {init: []}", "seeds.init: nothing to run: the list is empty"),
        ("cases: []", "cases: nothing to run: the list is empty"),
        ("cases: [3]", "cases: 3 does not fit; write keys and values, such as {model.depth: 2}"),
        ("model:", "model: is empty; write keys and values, such as {depth: ...}, or leave it "
         "out"),
        ("model: [1]", "model: is a list; write keys and values, such as {depth: ...}"),
        ("sweep:", "sweep: is empty; write keys and values, such as {model.depth: [2, 4]}, or "
         "leave it out"),
        ("question:", "question: is empty; write text, in quotes, or leave it out"),
        ("name: a b", "name: 'a b': names use only letters a-z, digits, '.', '_' and '-'"),
        ("name: CON", "name: 'CON': Windows keeps this name for itself"),
        ("claims: 3", "claims: 3 does not fit; write a list"),
        ("sweep: {model.depth: [2]}\ncases: [{model.depth: 3}]", "model.depth: stands under sweep "
         "and under cases; keep one"),
        ("sweep: {train.steps: [100, 200]}", "train.steps: 100, 200 under schedule: constant are "
         "one run, seen earlier and later; write the longest, 200"),
        ("cases: [{train.steps: 100}, {train.steps: 200}]", "train.steps: 100, 200 under schedule: "
         "constant are one run, seen earlier and later; write the longest, 200"),
    ],
)  # fmt: skip
def test_a_wrong_shape_says_what_belongs_there(wrong, text, says):
    assert only(wrong(text)) == f"exp.yaml:1: {says}"


def test_only_the_points_of_a_constant_schedule_forbid_steps_as_an_axis(wrong):
    text = "sweep: {train.steps: [100, 200], train.schedule: [cosine, constant]}"
    assert "write the longest, 200" in only(wrong(text))


def test_all_problems_come_at_once(wrong):
    lines = wrong(
        "nmae: x\n"
        "model:\n  dpeth: 4\n  norm: no\n  width: 10\n"
        "train: {lr: -1}\n"
        "sweep: {model.bias: []}\n"
        "seeds: [a]\n"
    )
    assert [line.split(": ")[:2] for line in lines] == [
        ["exp.yaml:1", "nmae"],
        ["exp.yaml:3", "model.dpeth"],
        ["exp.yaml:4", "model.norm"],
        ["exp.yaml:6", "train.lr"],
        ["exp.yaml:7", "model.bias"],
        ["exp.yaml:8", "seeds"],
        ["exp.yaml:5", "model.width x model.heads"],
    ]


def test_a_bad_value_draws_no_second_complaint_about_what_it_would_mean(wrong):
    assert "model.heads" in only(wrong("model: {width: 6, heads: 0}"))


# ------------------------------------------------------------------ impossible, not yet


def test_every_bad_pair_of_width_and_heads_is_listed_in_one_line(wrong):
    """C9"""
    text = "sweep:\n  model.width: [64, 96, 100]\n  model.heads: [3, 4]\n"
    assert only(wrong(text)) == (
        "exp.yaml:2: model.width x model.heads: 64 x 3, 100 x 3: width must be a multiple of "
        "heads; list the pairs that fit under cases:"
    )


def test_the_same_under_python_without_asserts(tmp_path):
    file = tmp_path / "exp.yaml"
    file.write_text("model: {width: 64, heads: 3}")
    code = (
        "import sys; from pathlib import Path; from lnexp.config.sweep import load_sweep\n"
        "from lnexp.messages import UserError\n"
        "try: load_sweep(Path(sys.argv[1]))\n"
        "except UserError as error: print(error, 'torch' in sys.modules, 'pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-O", "-c", code, str(file)], capture_output=True, text=True, check=True
    )
    assert "64 x 3: width must be a multiple of heads False False" in done.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model: {softmax: plain}", "model.softmax x model.attention: plain x sdpa: softmax plain "
         "needs attention plain"),
        ("data: {source: file}", "data.source x data.path: file x nothing: source file needs a "
         "path, the text to read"),
        ("data: {path: /a.txt}", "data.source x data.path: pydoc x /a.txt: only source file reads "
         "a path; write source: file, or leave path out"),
    ],
)  # fmt: skip
def test_settings_that_exclude_each_other_are_named_together(wrong, text, says):
    assert only(wrong(text)) == f"exp.yaml:1: {says}"


def test_fp16_with_dynamic_scaling_is_led_to_fp16_mixed(wrong):
    lines = wrong("train: {precision: fp16, loss_scale: dynamic}")
    assert "write precision: fp16-mixed" in lines[-1]


def test_a_fixed_loss_scale_is_adams_to_absorb(wrong):
    lines = wrong("train: {precision: fp16, loss_scale: 256, optimizer: sgd}")
    assert "write adamw or adam" in lines[-1]


# ---------------------------------------------------------------------------- overrides


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.dpeth=4", "no such key; did you mean model.depth?"),
        ("lr=3", "no such key; did you mean train.lr?"),
        ("model.depth", "write KEY=VALUE, such as model.depth=4"),
        ("", "write KEY=VALUE, such as model.depth=4"),
        ("model={depth: 4}", "write a dotted key, such as model.depth=4"),
        ("cases=[]", "write a dotted key, such as model.depth=4"),
        ("model.depth=010", f"010 reads as text (a leading 0; write 10); {WHOLE}"),
        ("model.depth=[2, no]", f"no reads as false; {WHOLE}"),
        ("model.depth=[]", "nothing to run: the list is empty"),
        ("model.depth=[2", "a bracket that is not closed, or a missing comma"),
        ("model.depth=", f"is empty; {WHOLE}, or leave it out"),
        ("seeds=3", "3 is one value; write a list: [3] (for 3 seeds write [0, 1, 2])"),
        (
            "model.depth=4,8",
            f"4,8 does not fit; {WHOLE} (for several values write 'model.depth=[4, 8]')",
        ),
        (
            "train.lr=1e-3,3e-4",
            "1e-3,3e-4 does not fit; write a number, at least 0 "
            "(for several values write 'train.lr=[1e-3, 3e-4]')",
        ),
        (
            "train.betas=0.9,0.99",
            "0.9,0.99 does not fit; write a list of 2, each a number, at least 0, below 1 "
            "(write [0.9, 0.99])",
        ),
        ("model.depth=4,x", f"4,x does not fit; {WHOLE}"),
        ("seeds=0..3", "0..3 is one value; write a list: [0, 1, 2]"),
        (
            "seeds=[18446744073709551615]",
            "18446744073709551615 is too large; the largest integer is 9223372036854775807",
        ),
        ("name=a b", "'a b': names use only letters a-z, digits, '.', '_' and '-'"),
        ("model.heads=3", "model.width x model.heads: 64 x 3: width must be a multiple of heads"),
    ],
)
def test_a_wrong_override_is_quoted_as_its_place(wrong, override, says):
    shown = override or '""'
    assert only(wrong("seeds: [0]", override)) == f"-s {shown}: {says}"


def test_wrong_overrides_come_together(wrong):
    assert len(wrong("seeds: [0]", "a=1", "model.depth", "b=[")) == 3


# ---------------------------------------------------------------------- what is advised

NUMBERS = (
    st.integers(-(10**20), 10**20).map(str)
    | st.floats(allow_nan=False).map(repr)
    | st.from_regex(r"-?(0x[0-9a-f]{1,9}|0*[0-9]{1,6}|[0-9]{1,3}_[0-9]{3})", fullmatch=True)
)


@given(
    key=st.sampled_from([key for key in KEYS if "number" in describe(key)]),
    number=NUMBERS,
    quote=st.sampled_from(["", "'"]),
)
@settings(deadline=None, max_examples=300)
def test_what_is_advised_is_taken(tmp_path_factory, key, number, quote):
    """'(write X)' and 'write a list: [X]' are followed, and the key has no complaint then."""
    file = tmp_path_factory.mktemp("advice") / "exp.yaml"

    def complaints(value: str, place: str) -> list[str]:
        file.write_text(f"{place}: {{{key if place == 'sweep' else leaf}: {value}}}")
        try:
            load_sweep(file)
        except UserError as error:
            return [line for line in error.problems if f": {key}: " in line]
        return []

    section, _, leaf = key.partition(".")
    for place in (section, "sweep"):
        for line in complaints(f"{quote}{number}{quote}", place):
            if advice := re.search(r"\((?:.*; )?write ([^()]*)\)|write a list: (.*)$", line):
                followed = complaints(advice[1] or advice[2], place)
                assert not [x for x in followed if "not available" not in x], (line, followed)


def test_a_letter_that_acts_on_the_terminal_is_escaped(wrong):
    assert "exp.yaml:1: \\x1b[31m\\u202ekey: no such key" in only(wrong('"\\e[31m\\u202ekey": 1'))
    assert "model.depth: \\u202e4 does not fit" in only(wrong("model: {depth: \u202e4}"))


def test_five_hundred_problems_are_twenty_lines_and_a_count(wrong):
    for text in ("".join(f"k{i}: 1\n" for i in range(500)), "a:\n" + "- 1e999\n" * 500):
        lines = wrong(text)
        assert len(lines) == 21 and lines[-1] == "exp.yaml: and 480 more"


# ----------------------------------------------------------------------------- anything

words = st.sampled_from([*KEYS, *TOP, *LEAVES, "init", "x"]) | st.text(max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5) | st.floats() | st.text(max_size=3) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


@given(
    document=st.dictionaries(words, values, max_size=5),
    overrides=st.lists(st.tuples(words, values).map(lambda kv: f"{kv[0]}={kv[1]}"), max_size=2),
)
@settings(deadline=None, max_examples=200)
def test_any_document_loads_or_is_refused_line_by_line(tmp_path_factory, document, overrides):
    file = tmp_path_factory.mktemp("any") / "exp.yaml"
    file.write_text(dump(document), encoding="utf-8")
    try:
        sweep = load_sweep(file, overrides)
    except UserError as error:
        assert error.problems
        for line in error.problems:
            assert line.startswith((f"{file}", "-s ")) and "\n" not in line
    else:
        assert sweep.points
