"""Names: a run's identity and folder, a sweep's folder. Nothing ever parses them.

Free of torch and pandas.
"""

import json
import re
import unicodedata
from hashlib import sha256
from math import isfinite
from typing import Any

from lnexp.config.rules import DEFAULTS, canonical_config
from lnexp.config.schema import RunConfig

LONGEST = 100
CLEAN = re.compile(r"[A-Za-z0-9._-]+")
WINDOWS = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)

# What a run leaves on disk besides its rows, and how many of them; it changes none.
NOT_IDENTITY = (
    "measure.snapshot_every", "measure.keep", "train.max_seconds", "train.checkpointing",
)  # fmt: skip


def identity(config: RunConfig, text_sha256: str, device: str) -> str:
    """8 hex characters over what differs from the defaults: a new key orphans no old run."""
    config = canonical_config(config)
    known: dict[str, Any] = {
        key: _portable(value)
        for key, value in config.settings().items()
        if value != DEFAULTS[key]
        and key not in NOT_IDENTITY
        and (not key.startswith("data.") or key == "data.val_fraction")
    }
    if config.train.schedule == "constant":  # more steps go on from the same run
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
