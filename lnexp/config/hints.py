"""One value through its field, and the words for a key or value that does not fit: what was read,
what to write, what another project's name for it is here.

What a key takes stands at its field alone (config/schema.py); the words are read off it. Free of
torch and pandas, so that both halves may import it.
"""

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import cache
from math import inf
from typing import Any

from pydantic import ValidationError

from lnexp.config.document import plain, spaceless
from lnexp.config.schema import KEYS, SECTIONS
from lnexp.messages import short

# What other projects, nanoGPT first, call our keys.
FOREIGN = {
    "n_layer": "model.depth",
    "n_layers": "model.depth",
    "num_layers": "model.depth",
    "layers": "model.depth",
    "n_head": "model.heads",
    "n_heads": "model.heads",
    "num_heads": "model.heads",
    "n_embd": "model.width",
    "d_model": "model.width",
    "hidden_size": "model.width",
    "block_size": "model.context",
    "seq_len": "model.context",
    "context_length": "model.context",
    "norm_type": "model.norm",
    "norm_placement": "model.placement",
    "norm_eps": "model.eps",
    "layer_norm_eps": "model.eps",
    "layer_norm_epsilon": "model.eps",
    "max_iters": "train.steps",
    "max_steps": "train.steps",
    "iterations": "train.steps",
    "batch": "train.batch_size",
    "learning_rate": "train.lr",
    "warmup_iters": "train.warmup",
    "warmup_steps": "train.warmup",
    "decay_lr": "train.schedule",
    "lr_decay_iters": "train.schedule",
    "min_lr": "train.schedule",
    "lr_schedule": "train.schedule",
    "beta1": "train.betas",
    "beta2": "train.betas",
    "grad_clip": "train.clip",
    "max_grad_norm": "train.clip",
    "dtype": "train.precision",
    "dataset": "data.source",
    "eval_interval": "measure.eval_every",
    "eval_iters": "measure.eval_every",
    "log_interval": "measure.every",
    "seed": "seeds",
    "grid": "sweep",
}

# What others call our values, in small letters and digits; used where the key has the value.
ALIASES = {
    "prelayernorm": "pre",
    "prenorm": "pre",
    "postlayernorm": "post",
    "postnorm": "post",
    "rms": "rmsnorm",
    "ln": "layernorm",
    "bn": "batchnorm",
    "dynamictanh": "dyt",
    "float": "fp32",
    "float32": "fp32",
    "single": "fp32",
    "32": "fp32",
    "float64": "fp64",
    "double": "fp64",
    "64": "fp64",
    "float16": "fp16",
    "half": "fp16",
    "16": "fp16",
    "amp": "fp16-mixed",
    "bfloat": "bf16",
    "bfloat16": "bf16",
    "xavieruniform": "xavier",
    "xaviernormal": "xavier",
    "glorot": "xavier",
    "pytorch": "torch",
    "default": "torch",
    "txt": "file",
    "text": "file",
    "gpu": "cuda",
}

TOP = ("name", "question", *SECTIONS, "sweep", "cases", "seeds", "claims")
LEAVES = {key.partition(".")[2]: key for key in KEYS}  # 'depth' -> 'model.depth'; all distinct

NO_NORM = "; for no norm write model.placement: none"


def check(
    key: str, value: Any, written: str, place: tuple[str, str] = ("", "sweep")
) -> tuple[Any, str]:
    """(the value as its field holds it, "") or (None, what is wrong with it).

    `place`: where it stands ('-s ...' or a file and line) and the group it stands in.
    """
    try:
        return _validated(key, value), ""
    except ValidationError:
        problem = refuse(value, written, describe(key), lambda other: takes(key, other))
        return None, problem + _aside(key, value, written, *place)


def _aside(key: str, value: Any, written: str, place: str, group: str) -> str:
    """What was probably meant."""
    if key == "model.norm" and value in (None, False, "none", "None"):
        return NO_NORM
    if isinstance(value, list):
        return "" if group == "sweep" else " (several values go under sweep:)"
    if isinstance(value, str) and "," in value:
        return _several(key, value, place, group)
    meant = _meant(key, value) if isinstance(value, str | int) and value is not False else ""
    return f" (did you mean {meant}?)" if meant else ""


def _several(key: str, value: str, place: str, group: str) -> str:
    """For `1e-3,3e-4`: how a list is written."""
    parts = [part.strip() for part in value.split(",")]
    listed = f"[{', '.join(parts)}]"
    try:
        values = [plain(part) for part in parts]
    except OverflowError:
        return ""
    if takes(key, values):
        return f" (write {listed})"
    if not all(takes(key, one) for one in values):
        return ""
    if place.startswith("-s "):
        return f" (for several values write '{key}={listed}')"
    return "" if group == "sweep" else f" (for several values write {key}: {listed} under sweep:)"


def _meant(key: str, value: str | int) -> str:
    """The word among a key's that is most like this one, or ''."""
    words = {_letters(word): word for word in _enumerated(_schema(key))}
    name = _letters(str(value).removeprefix("torch."))
    if ALIASES.get(name) in words.values():
        return ALIASES[name]
    alike = get_close_matches(name, words, n=1, cutoff=0.65)
    return words[alike[0]] if alike else ""


def _letters(word: str) -> str:
    return re.sub("[^a-z0-9]", "", word.lower())


@cache
def _schema(key: str) -> dict[str, Any]:
    section, _, leaf = key.partition(".")
    return SECTIONS[section].model_json_schema()["properties"][leaf]


def _enumerated(schema: dict[str, Any]) -> Iterator[str]:
    for choice in schema.get("anyOf", [schema]):
        yield from choice.get("enum", [choice["const"]] if "const" in choice else [])


def takes(key: str, value: Any) -> bool:
    """Whether the key takes this value."""
    try:
        _validated(key, value)
    except ValidationError:
        return False
    return True


def _validated(key: str, value: Any) -> Any:
    section, _, leaf = key.partition(".")
    return getattr(SECTIONS[section].model_validate({leaf: value}), leaf)


def refuse(
    value: Any, written: str, wanted: str, fits: Callable[[Any], bool] = lambda value: False
) -> str:
    """One clause for what was read, one for what to write; what does not fit is not advised."""
    shown = short(written)
    if value is None:
        return f"is empty; write {wanted}, or leave it out"
    if isinstance(value, list) and not wanted.startswith("a list"):
        return f"is a list; write {wanted}"
    if isinstance(value, dict):
        return f"is a group of keys; write {wanted}"
    if isinstance(value, bool):
        truth = str(value).lower()
        read = "does not fit" if shown.lower() == truth else f"reads as {truth}"
        return f"{shown} {read}; write {wanted}"
    if isinstance(value, str) and (hint := _hint(value, written, wanted)):
        why, instead = hint
        parts = [why] * bool(why) + [f"write {instead}"] * _reads_and_fits(instead, fits)
        aside = f" ({'; '.join(parts)})" if parts else ""
        return f"{shown} reads as text{aside}; write {wanted}"
    if isinstance(value, float) and value.is_integer() and _reads_and_fits(f"{int(value)}", fits):
        return f"{shown} is no whole number (write {int(value)}); write {wanted}"
    return f"{shown} does not fit; write {wanted}"


def _reads_and_fits(text: str, fits: Callable[[Any], bool]) -> bool:
    try:
        return text != "" and fits(plain(text))
    except OverflowError:
        return False


def _hint(value: str, written: str, wanted: str) -> tuple[str, str] | None:
    """Why text that looks like a number or a truth value is text, and how to write it."""
    if "number" in wanted:
        if written[:1] in "'\"" and re.fullmatch(r"[-+.\deE]+", value):
            return "quoted", value
        if padded := re.fullmatch(r"([-+]?)0+([1-9]\d*)", value):
            return "a leading 0", f"{padded[1]}{padded[2]}"
        if re.fullmatch(r"\d+(:\d+)+", value):
            return "YAML's base 60 is not read here", ""
        if re.fullmatch(r"[-+]?\d+(_\d+)+(\.\d+)?", value):
            return "an underscore", value.replace("_", "")
        if re.fullmatch(r"0x[\da-fA-F]{1,15}|0o[0-7]{1,20}|0b[01]{1,62}", value):
            return "", str(int(value, 0))
        if ".inf" in wanted and value.lower() in ("inf", "infinity"):
            return "", ".inf"
    if "true or false" in wanted and value.lower() in ("true", "false"):
        return "quoted", value.lower()
    return None


def describe(key: str) -> str:
    """What a key takes, in words: 'a whole number, at least 1'."""
    return _words(_schema(key)) + (", or .inf" if KEYS[key].default == inf else "")


def _words(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return ", or ".join(map(_words, schema["anyOf"]))
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    if schema["type"] == "array":
        return f"a list of {schema['minItems']}, each {_words(schema['items'])}"
    if schema["type"] == "boolean":
        return "true or false"
    if schema["type"] == "string":
        return "text (in quotes)"
    bounds = [
        f"{words} {schema[bound]}"
        for bound, words in {
            "minimum": "at least",
            "exclusiveMinimum": "above",
            "maximum": "at most",
            "exclusiveMaximum": "below",
        }.items()
        if bound in schema
    ]
    number = "a whole number" if schema["type"] == "integer" else "a number"
    return ", ".join([number, *bounds])


def unknown_top(key: str) -> str:
    """A key that no config has at its top level."""
    if slip := spaceless(key):
        return slip[1]
    near = nearest(key, "")
    section, _, leaf = near.partition(".")
    if leaf:
        return f"no such key here; write {leaf} under {section}: ({near})"
    return f"no such key; {f'did you mean {near}?' if near else 'there are ' + ', '.join(TOP)}"


def unknown(key: str, section: str) -> str:
    """A key that a section, or (section empty) sweep, cases and -s, do not know."""
    if slip := spaceless(key):
        return slip[1]
    if not section and key in SECTIONS:
        return f"write dotted keys here, such as {next(k for k in KEYS if k.startswith(key))}"
    near = nearest(key, section)
    if near in TOP:
        return f"no such key here; write {near}: at the top of the file"
    if near:
        return f"no such key; did you mean {near}?"
    if section:
        return f"no such key; {section} has {', '.join(SECTIONS[section].model_fields)}"
    return "no such key; keys are dotted, such as model.depth"


@cache
def nearest(key: str, section: str) -> str:
    """The key that was probably meant: exact elsewhere, another project's, else alike; or ''."""
    name = key.strip().lower().replace("-", "_").replace(" ", "_")
    leaf = name.rpartition(".")[2]
    if name in KEYS:
        return name
    if ours := FOREIGN.get(leaf) or LEAVES.get(leaf) or (leaf if leaf in TOP else ""):
        return ours
    if section:
        own = get_close_matches(leaf, SECTIONS[section].model_fields, n=1)
        if own:
            return f"{section}.{own[0]}"
    elif top := get_close_matches(name, TOP, n=1, cutoff=0.75):
        return top[0]
    alike = get_close_matches(leaf, LEAVES, n=1)
    return LEAVES[alike[0]] if alike else ""
