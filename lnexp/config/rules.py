"""What settings mean together: clashes, values that are not available yet, keys without effect.

Each rule is one row of a table. Settings are every key by its dotted name, as
RunConfig.settings() gives them. Free of torch and pandas.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, get_origin

from lnexp.config.schema import KEYS, SECTIONS, RunConfig
from lnexp.model.catalog import INITS, NORMS, OPTIMIZERS, PLACEMENTS

Settings = dict[str, Any]

LISTED = 40  # combinations named in one line

DEFAULTS: Settings = RunConfig().settings()


@dataclass(frozen=True)
class Clash:
    """Values that exclude each other."""

    keys: tuple[str, str]
    bad: Callable[[Any, Any], bool]
    remedy: str
    unless: str = ""  # fine where some point of the sweep has this first value


CLASHES = (
    Clash(
        ("model.width", "model.heads"),
        lambda width, heads: width % heads != 0,
        "width must be a multiple of heads",
    ),
    Clash(
        ("model.softmax", "model.attention"),
        lambda softmax, attention: softmax == "plain" and attention != "plain",
        "softmax plain needs attention plain",
    ),
    Clash(
        ("model.placement", "model.residual"),
        lambda placement, residual: not residual and not PLACEMENTS[placement].drops_skip,
        "this placement is defined by its skip; write residual: true",
    ),
    Clash(
        ("model.norm", "model.width"),
        lambda norm, width: width < NORMS[norm].least_width,
        "one number has no unbiased standard deviation; write a width of 2 or more",
    ),
    Clash(
        ("model.norm", "train.precision"),
        lambda norm, precision: NORMS[norm].running_gradient and precision == "fp16-mixed",
        "powernorm keeps a running gradient, which a changing loss scale spoils; "
        "write bf16-mixed or fp32",
    ),
    Clash(
        ("data.source", "data.path"),
        lambda source, path: source == "file" and not path,
        "source file needs a path, the text to read",
    ),
    Clash(
        ("data.source", "data.path"),
        lambda source, path: source != "file" and path != "",
        "only source file reads a path; write source: file, or leave path out",
        unless="file",
    ),
    Clash(
        ("train.precision", "train.loss_scale"),
        lambda precision, scale: precision == "fp16" and scale == "dynamic",
        "dynamic scaling needs fp32 master weights; write precision: fp16-mixed",
    ),
    Clash(
        ("train.optimizer", "train.loss_scale"),
        lambda optimizer, scale: (
            not isinstance(scale, str) and not OPTIMIZERS[optimizer].absorbs_scale
        ),
        "a fixed loss scale is Adam's to absorb; write adamw or adam, or loss_scale: none",
    ),
)


def clashes(grid: list[Settings], unclear: Iterable[str]) -> Iterable[tuple[Clash, str]]:
    """Every rule that some point breaks, with all its bad combinations in one line.

    Rules about an `unclear` key, one that has a complaint already, are left out.
    """
    for rule in CLASHES:
        first, second = rule.keys
        if first in unclear or second in unclear:
            continue
        pairs = dict.fromkeys((point[first], point[second]) for point in grid)
        bad = [pair for pair in pairs if rule.bad(*pair)]
        if bad and not any(pair[0] == rule.unless for pair in pairs):
            listed = ", ".join(f"{show(a)} x {show(b)}" for a, b in bad[:LISTED])
            listed += f" and {len(bad) - LISTED} more" if len(bad) > LISTED else ""
            some = "; list the pairs that fit under cases:" if len(pairs) > len(bad) else ""
            yield rule, f"{first} x {second}: {listed}: {rule.remedy}{some}"


@dataclass(frozen=True)
class Idle:
    """Keys that change nothing at points where `when` holds, because of the key `because`."""

    because: str
    when: Callable[[Settings], bool]
    keys: tuple[str, ...]


def _is(registry: Mapping[str, Any], name: Any, check: Callable[[Any], bool]) -> bool:
    """Of a name of a later version, as a result may have it, nothing is known."""
    return name in registry and check(registry[name])


IDLE = (
    Idle(
        "model.placement",
        lambda s: (
            _is(PLACEMENTS, s["model.placement"], lambda placement: not placement.has_norm)
            and not s["model.qk_norm"]
        ),
        ("model.norm", "model.eps", "model.affine"),
    ),
    Idle(
        "model.norm",
        lambda s: _is(NORMS, s["model.norm"], lambda norm: norm.beside_eps is None),
        ("model.eps",),
    ),
    Idle(
        "train.optimizer",
        lambda s: _is(OPTIMIZERS, s["train.optimizer"], lambda one: not one.reads_betas),
        ("train.betas", "train.adam_eps"),
    ),
    Idle(
        "train.optimizer",
        lambda s: _is(OPTIMIZERS, s["train.optimizer"], lambda one: not one.reads_momentum),
        ("train.momentum",),
    ),
    Idle(
        "train.precision",
        lambda s: s["train.precision"] not in ("fp16", "fp16-mixed"),
        ("train.loss_scale",),
    ),
    Idle("measure.level", lambda s: s["measure.level"] != "full", ("measure.sample",)),
    Idle(
        "measure.level",
        lambda s: s["measure.level"] == "off",
        ("measure.every", "measure.eval_every"),
    ),
    Idle("data.val_fraction", lambda s: s["data.val_fraction"] == 0, ("measure.eval_every",)),
    Idle("data.source", lambda s: s["data.source"] != "file", ("data.path", "data.encoding")),
    Idle(
        "data.source",
        lambda s: s["data.source"] != "markov",
        ("data.order", "data.symbols", "data.length", "data.chain_seed"),
    ),
)


def canonical(settings: Settings) -> Settings:
    """The same run in its one spelling: keys without effect at their defaults."""
    plain = dict(settings)
    for rule in IDLE:
        if rule.when(settings):
            for key in rule.keys:
                plain[key] = DEFAULTS[key]
    if settings["model.embed_std"] == INITS[settings["model.init"]].embed_std:
        plain["model.embed_std"] = "auto"
    return plain


def build(settings: Settings, seed: dict[str, int]) -> RunConfig:
    nested: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for key, value in settings.items():
        section, _, leaf = key.partition(".")
        nested[section][leaf] = value
    return RunConfig.model_validate({**nested, "seed": seed})


def idle_notes(grid: list[Settings]) -> list[str]:
    """A sentence for every key whose written values change nothing."""
    notes: dict[str, None] = {}
    for rule in IDLE:
        keys = [key for key in rule.keys if any(point[key] != DEFAULTS[key] for point in grid)]
        if not keys:
            continue
        written: dict[tuple[str, str], dict[str, None]] = {}
        for point in grid:
            if rule.when(point):
                cause = f"{rule.because} {show(point[rule.because])}"
                for key in keys:
                    written.setdefault((cause, key), {})[show(point[key])] = None
        for (cause, key), values in written.items():
            if len(values) > 1:
                listed = ", ".join(values)
                notes[f"{cause}: {len(values)} values of {key} are one run ({listed})"] = None
            elif show(DEFAULTS[key]) not in values:
                notes[f"{cause}: {key} {next(iter(values))} has no effect"] = None
    for point in grid:
        std, init = point["model.embed_std"], point["model.init"]
        if std == INITS[init].embed_std:
            notes[f"model.init {init}: model.embed_std {show(std)} is what auto stands for"] = None
    return list(notes)


def caveats(norms: Iterable[Any]) -> list[str]:
    """What runs with these norms must be labelled with."""
    return [
        f"{norm} is not causal: in training a prediction has seen later letters of its batch."
        for norm in dict.fromkeys(norm for norm in norms if isinstance(norm, str))
        if norm in NORMS and not NORMS[norm].causal
    ]


def show(value: Any) -> str:
    """A setting as YAML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return (
            ".inf"
            if value == inf
            else f"{value:g}"
            if float(f"{value:g}") == value
            else repr(value)
        )
    return "nothing" if value == "" else str(value)


def is_list(key: str) -> bool:
    """Whether one value of this key is itself a list (train.betas)."""
    return get_origin(KEYS[key].annotation) is list


def hashable(value: Any) -> Any:
    return tuple(value) if type(value) is list else value
