"""Writes docs/settings.md from the settings themselves: python scripts/settings.py"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from lnexp.claims.claims import FORMS
from lnexp.config.hints import describe
from lnexp.config.rules import DEFAULTS, show
from lnexp.config.schema import KEYS, SECTIONS
from lnexp.model.catalog import INITS, NORMS, PLACEMENTS, POSITION_STD

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"

INTRODUCTION = """\
# Settings

Every key of a config with its default, what it takes and what it means. In a file a key stands
under its section (`model: {depth: 4}`); under `sweep:`, under `cases:` and after `-s` it is
written with a dot (`model.depth`). `.inf` means no limit. `lnexp schema` prints the same for an
editor. This page is written by `scripts/settings.py`.
"""

FORMS_OF_A_SWEEP = f"""\
## What stands beside the sections

- `name:` the folder below `results/`; default: the file's name.
- `question:` text, repeated in tables and plots.
- `sweep: {{model.depth: [2, 8], model.norm: [layernorm, rmsnorm]}}`: every combination runs.
- `cases: [{{model.placement: pre, train.lr: 1e-3}}, {{model.placement: post, train.lr: 1e-4}}]`:
  settings that belong together; each case runs with every combination of the sweep.
- `seeds: [0, 1, 2]`: each seed draws weights, batches and dropout; default [0].
- `seeds: {{init: [0, 1], data: [0]}}`: of weights, and of batches and dropout; every pair runs.
- `claims:` what the sweep is expected to show, each with `id`, `says`, `where` and `expect`
  (led by {", ".join(f"`{form}`" for form in FORMS)}); `lnexp show RESULTS --claims` judges them.
"""


def page() -> str:
    parts = [INTRODUCTION]
    for section, model in SECTIONS.items():
        rows = [_setting(f"{section}.{leaf}") for leaf in model.model_fields]
        parts.append(f"## {section}\n\n" + _table(("key", "default", "takes", "meaning"), rows))
    equations = (
        ("Placements", "N blocks, R = 2N residual sublayers F, h the residual stream.", PLACEMENTS),
        ("Norms", "x one token's features; mean and var over them; g gain, b bias.", NORMS),
    )
    for title, letters, known in equations:
        rows = [(f"`{name}`", item.equation, item.source) for name, item in known.items()]
        table = _table(("name", "equation", "source"), rows)
        parts.append(f"## {title}\n\n{letters}\n\n{table}")
    inits = [
        (f"`{name}`", f"{i.equation} ({i.source})" if i.source else i.equation, show(i.embed_std))
        for name, i in INITS.items()
    ]
    parts.append(
        f"## Inits\n\nN(0, s): normal of standard deviation s. Position embeddings: "
        f"N(0, {POSITION_STD}). `model.init_scale` multiplies the blocks' matrices.\n\n"
        + _table(("name", "weights", "embed_std auto"), inits)
    )
    parts.append(FORMS_OF_A_SWEEP)
    return "\n".join(parts)


def _setting(key: str) -> tuple[str, ...]:
    default = DEFAULTS[key]
    return (
        f"`{key}`",
        f"`{show(default)}`" if default != "" else "",
        describe(key),
        KEYS[key].description,
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |\n" for line in lines
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
