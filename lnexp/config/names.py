"""Names: a run's identity and folder, a sweep's folder, the experiments that come with lnexp.
Nothing ever parses them.

Free of torch and pandas.
"""

import json
import os
import re
import unicodedata
from difflib import get_close_matches
from hashlib import sha256
from math import isfinite
from pathlib import Path
from shlex import quote
from typing import Any

from lnexp.config.rules import DEFAULTS, canonical
from lnexp.config.schema import KEYS, NO_ROW, RunConfig
from lnexp.messages import refusal, short
from lnexp.model.catalog import SCHEDULES

LONGEST = 100
CLEAN = re.compile(r"[A-Za-z0-9._-]+")
WINDOWS = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)

LONGEST_WORD = 300  # letters of a word that a complaint repeats

# What a run leaves on disk besides its rows, and how many of them; it changes none.
NOT_IDENTITY = tuple(key for key, field in KEYS.items() if NO_ROW in field.metadata)


def identity(config: RunConfig, text_sha256: str, device: str) -> str:
    """8 hex characters over what differs from the defaults: a new key orphans no old run."""
    settings = canonical(config.settings())
    known: dict[str, Any] = {
        key: _portable(value)
        for key, value in settings.items()
        if value != DEFAULTS[key]
        and key not in NOT_IDENTITY
        and (not key.startswith("data.") or key == "data.val_fraction")
    }
    if not SCHEDULES[config.train.schedule].reads_steps:  # more steps go on from the same run
        known.pop("train.steps", None)
    known |= {"data.sha256": text_sha256, "train.device": device, "seed": config.seed.model_dump()}
    text = json.dumps(known, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(text.encode()).hexdigest()[:8]


def _portable(value: Any) -> Any:
    """JSON has no infinity."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def run_name(config: RunConfig, text_sha256: str, device: str) -> str:
    """<placement>-<norm>-d<depth>-w<width>-s<seed>-<hash8>"""
    model, seed = config.model, config.seed
    seeds = f"{seed.init}" if seed.init == seed.data else f"{seed.init}.{seed.data}"
    stem = f"{model.placement}-{model.norm}-d{model.depth}-w{model.width}-s{seeds}"
    return f"{stem[: LONGEST - 9]}-{identity(config, text_sha256, device)}"


def wrong_name(name: str) -> str:
    """Why a name cannot be a folder on every system; '' if it can."""
    if not CLEAN.fullmatch(name):
        return "names use only letters a-z, digits, '.', '_' and '-'"
    if len(name) > LONGEST:
        return f"names have at most {LONGEST} characters"
    if name.endswith("."):
        return "names do not end in '.'"
    if WINDOWS.fullmatch(name):
        return "Windows keeps this name for itself"
    return ""


def clean_name(stem: str) -> str:
    """A file's stem as a folder name; a stem without one clean letter is named by its hash."""
    parts = unicodedata.normalize("NFKD", stem)
    letters = "".join(part for part in parts if not unicodedata.combining(part))
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", letters).strip("_.")[:LONGEST].rstrip(".")
    return name or f"sweep-{sha256(stem.encode('utf-8', 'replace')).hexdigest()[:8]}"


def folder() -> Path:
    """configs/ inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).parent.parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def experiments() -> dict[str, Path]:
    """Name (its path below configs/, without .yaml) -> file."""
    root = folder()
    files = {
        path.relative_to(root).with_suffix("").as_posix(): path for path in root.rglob("*.yaml")
    }
    return dict(sorted(files.items(), key=lambda item: _natural(item[0])))


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """L3 before L10; an experiment at the top before those in folders."""
    parts = re.split(r"(\d+)", ("" if "/" not in name else "~") + name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def unknown(name: str) -> str:
    """'; did you mean lessons/L3?', or how to list what there is."""
    known = experiments()
    near = get_close_matches(name, known, n=1) or [
        full for full in known if full.rpartition("/")[2].casefold() == name.casefold()
    ]
    return f"; did you mean {near[0]}?" if near else "; lnexp configs lists them"


def question(path: Path) -> str:
    """The first comment line of an experiment: what it asks."""
    first = path.read_text(encoding="utf-8").split("\n", 1)[0]
    return first.lstrip("# ").strip()


def find(words: list[str]) -> list[Path]:
    """Config files behind files, folders and names of shipped experiments, in order, once each."""
    paths: list[Path] = []
    problems: list[str] = []
    known = experiments()
    for word in words:
        path, shown = Path(word), short(word, LONGEST_WORD)
        name = word.removesuffix(".yaml").removeprefix("configs/")
        below = [file for key, file in known.items() if key.startswith(f"{name.rstrip('/')}/")]
        if not word.strip():  # `lnexp run $CONFIG` with nothing in it; Path("") is this folder
            problems.append('"" names no config; write a file, a folder or an experiment')
        elif os.path.isdir(path):  # unlike Path.is_dir, False for a name too long
            inside = sorted([*path.glob("*.yaml"), *path.glob("*.yml")])
            if not inside:
                problems.append(f"{shown}: no .yaml file in this folder")
            paths += inside
        elif os.path.exists(path):
            paths.append(path)
        elif name in known:
            paths.append(known[name])
        elif below:  # a folder of shipped experiments
            paths += below
        elif re.match(r"[\w.]+=", word):
            problems.append(f"{shown}: a setting needs -s before it: -s {quote(shown)}")
        else:
            why = "no such file or folder, and no shipped experiment of that name"
            problems.append(f"{shown}: {why}{unknown(name)}")
    if problems:
        raise refusal(problems, "configs")
    return list(dict.fromkeys(paths))
