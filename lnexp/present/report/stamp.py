"""What tells whether results changed: sizes and times of the files that a page is made from."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lnexp.analysis.load import Results

OF_SWEEP = ("points.json", "sweep.yaml", "claims.json")
OF_RUN = (
    "config.yaml", "env.json", "steps.csv", "layers.csv", "events.csv", "status.json",
    "autopsy.json",
)  # fmt: skip


@dataclass(frozen=True)
class Stamp:
    text: str
    newest: float  # seconds since 1970; of no file: 0


def stamp_of(results: Results, folders: Mapping[str, Path]) -> Stamp:
    """`folders`: of each sweep."""
    files = [folder / name for folder in folders.values() for name in OF_SWEEP]
    files += [file for folder in folders.values() for file in sorted(folder.glob("lab/*.csv"))]
    files += [Path(run) / name for run in results.runs["folder"] for name in OF_RUN]
    seen = [signature(file) for file in files]
    facts = repr([*seen, *results.runs["run"], *results.runs["status"]])
    newest = max((time for time, _ in seen), default=0)
    return Stamp(hashlib.sha256(facts.encode()).hexdigest()[:16], newest / 1e9)


def signature(path: Path) -> tuple[int, int]:
    """Time and size; zeros where there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
