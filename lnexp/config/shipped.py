"""The experiments that come with lnexp, by name."""

import os
import re
from difflib import get_close_matches
from pathlib import Path
from shlex import quote

from lnexp.messages import refusal, short

LONGEST = 300  # letters of a word that a complaint repeats


def folder() -> Path:
    """configs/ inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).parent.parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def experiments() -> dict[str, Path]:
    """Name (its path below configs/, without .yaml) -> file."""
    root = folder()
    found = {
        path.relative_to(root).with_suffix("").as_posix(): path for path in root.rglob("*.yaml")
    }
    return dict(sorted(found.items(), key=lambda item: _natural(item[0])))


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
    found: list[Path] = []
    problems: list[str] = []
    for word in words:
        path, known, shown = Path(word), experiments(), short(word, LONGEST)
        name = word.removesuffix(".yaml").removeprefix("configs/")
        below = [file for key, file in known.items() if key.startswith(f"{name.rstrip('/')}/")]
        if not word.strip():  # `lnexp run $CONFIG` with nothing in it; Path("") is this folder
            problems.append('"" names no config; write a file, a folder or an experiment')
        elif os.path.isdir(path):  # unlike Path.is_dir, False for a name too long
            inside = sorted([*path.glob("*.yaml"), *path.glob("*.yml")])
            if not inside:
                problems.append(f"{shown}: no .yaml file in this folder")
            found += inside
        elif os.path.exists(path):
            found.append(path)
        elif name in known:
            found.append(known[name])
        elif below:  # a folder of shipped experiments
            found += below
        elif re.match(r"[\w.]+=", word):
            problems.append(f"{shown}: a setting needs -s before it: -s {quote(shown)}")
        else:
            why = "no such file or folder, and no shipped experiment of that name"
            problems.append(f"{shown}: {why}{unknown(name)}")
    if problems:
        raise refusal(problems, "configs")
    return list(dict.fromkeys(found))
