"""The experiments that come with lnexp, by name."""

import os
import re
from pathlib import Path
from shlex import quote

from .lines import refusal, short

LONGEST = 300  # letters of a word that a complaint repeats


def folder() -> Path:
    """configs/ inside the wheel, or beside the package in a checkout."""
    inside = Path(__file__).parent / "configs"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "configs"


def experiments() -> dict[str, Path]:
    """Name (its path below configs/, without .yaml) -> file."""
    root = folder()
    return {
        path.relative_to(root).with_suffix("").as_posix(): path
        for path in sorted(root.rglob("*.yaml"))
    }


def question(path: Path) -> str:
    """The first comment line of an experiment: what it asks."""
    first = path.read_text(encoding="utf-8").split("\n", 1)[0]
    return first.lstrip("# ").strip()


def find(words: list[str]) -> list[Path]:
    """Config files behind files, folders and names of shipped experiments, in order, once each."""
    found: list[Path] = []
    problems: list[str] = []
    for word in words:
        path, known, shown = Path(word), experiments(), short(word, LONGEST)
        if not word.strip():  # `lnexp run $CONFIG` with nothing in it; Path("") is this folder
            problems.append('"" names no config; write a file, a folder or an experiment')
        elif os.path.isdir(path):  # unlike Path.is_dir, False for a name too long
            inside = sorted([*path.glob("*.yaml"), *path.glob("*.yml")])
            if not inside:
                problems.append(f"{shown}: no .yaml file in this folder")
            found += inside
        elif os.path.exists(path):
            found.append(path)
        elif word.removesuffix(".yaml").removeprefix("configs/") in known:
            found.append(known[word.removesuffix(".yaml").removeprefix("configs/")])
        elif re.match(r"[\w.]+=", word):
            problems.append(f"{shown}: a setting needs -s before it: -s {quote(shown)}")
        else:
            problems.append(
                f"{shown}: no such file or folder, and no shipped experiment of that name; "
                f"shipped: {', '.join(known) or 'none'}"
            )
    if problems:
        raise refusal(problems, "configs")
    return list(dict.fromkeys(found))
