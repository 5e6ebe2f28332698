"""The sweep's axes in words and in order, which of them becomes colour, line style or panel, and
what the gap of its runs is measured from.

Values are compared by their exact text, so that 1e-5 and 0.00001 are one value, and lists and
booleans are values like any other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
import pandas as pd

from lnexp.messages import UserError
from lnexp.results.tables import column

DEPTH = "model.depth"
PLACEMENT = "model.placement"
STYLES = 6  # line styles that can be told apart; an axis with more values gets panels instead


@dataclass(frozen=True)
class Look:
    """Which axis is colour, which is line style; the others get a panel for each combination."""

    colour: str | None = None
    style: str | None = None
    facets: tuple[str, ...] = ()


def value_text(value: Any) -> str:
    """A setting's value as YAML would write it, numbers as short as they read back: 1e-05, 24."""
    if value is None or value is pd.NA:
        return "not set"
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (float, np.floating)):
        if isnan(value):
            return "not set"
        short = f"{value:.6g}"
        return short if float(short) == float(value) else repr(float(value))
    if isinstance(value, (list, tuple, np.ndarray)):
        return "[" + ", ".join(map(value_text, value)) + "]"
    return str(value)


def short_key(key: str) -> str:
    return key.rsplit(".", 1)[-1]


def setting_text(key: str, text: str) -> str:
    """'depth 24', 'post', 'without residual': a setting in words."""
    if text in ("true", "false"):
        return f"{'with' if text == 'true' else 'without'} {short_key(key)}"
    names_itself = key in (PLACEMENT, "model.norm", "train.optimizer", "train.precision")
    return text if names_itself else f"{short_key(key)} {text or repr('')}"


def as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def in_order(texts: Iterable[str]) -> list[str]:
    """Distinct values: numbers by size, then words as they first appear (the grid's order)."""
    distinct = list(dict.fromkeys(texts))
    numbers = [text for text in distinct if as_number(text) is not None]
    words = [text for text in distinct if as_number(text) is None]
    return sorted(numbers, key=float) + words


def is_numeric(texts: Iterable[str]) -> bool:
    return all((number := as_number(text)) is not None and np.isfinite(number) for text in texts)


def axis_texts(runs: pd.DataFrame, key: str | None) -> list[str]:
    """One text a run; an axis that is not there has the one value ''."""
    if key is None or key not in runs:
        return [""] * len(runs)
    return [value_text(value) for value in runs[key]]


def find_axis(name: str, axes: Sequence[str], option: str) -> str:
    """The dotted axis that `depth` or `model.depth` names."""
    for axis in axes:
        if name in (axis, short_key(axis)):
            return axis
    have = ", ".join(axes) if axes else "nothing"
    raise UserError(f"{option} {name}: no axis of this sweep; it varies {have}")


def varying(runs: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    return [axis for axis in dict.fromkeys(axes) if len(set(axis_texts(runs, axis))) > 1]


def choose_look(
    runs: pd.DataFrame,
    axes: Sequence[str],
    by: str | None = None,
    style: str | None = None,
    taken: str | None = None,
    facet: str | None = None,
) -> Look:
    """Colour: depth, else the axis with most values. Style: placement, else the one with fewest.

    `taken` is an axis that the picture already draws along x; `facet` gets panels.
    """
    panels = tuple(axis for axis in varying(runs, axes) if axis == facet != taken)
    free = [axis for axis in varying(runs, axes) if axis not in (taken, facet)]
    if not free:
        return Look(facets=panels)
    count = {axis: len(set(axis_texts(runs, axis))) for axis in free}
    colour = by if by in free else style if style in free and len(free) == 1 else None
    if colour is None:
        colour = _preferred(DEPTH, [axis for axis in free if axis != style] or free, count, max)
    if style in free:
        dash = style
    else:
        rest = [axis for axis in free if axis != colour and count[axis] <= STYLES]
        dash = _preferred(PLACEMENT, rest, count, min) if rest else None
        # One axis alone gets both, so that few values stay readable in grey print.
        if len(free) == 1 and count[colour] <= STYLES:
            dash = colour
    rest = tuple(axis for axis in free if axis not in (colour, dash))
    return Look(colour, dash, panels + rest)


def _preferred(favourite: str, among: list[str], count: dict[str, int], pick: Any) -> str:
    return favourite if favourite in among else pick(among, key=lambda axis: count[axis])


def dress(runs: pd.DataFrame, look: Look) -> pd.DataFrame:
    """One row a run: run, status, hue and dash (values), facet and series (in words), in order."""
    frame = pd.DataFrame({"run": list(runs["run"]) if "run" in runs else []}, dtype=object)
    frame["status"] = axis_texts(runs, "status")
    frame["hue"], frame["dash"] = axis_texts(runs, look.colour), axis_texts(runs, look.style)
    frame["facet"] = in_words(runs, look.facets)
    shown = [axis for axis in dict.fromkeys((look.colour, look.style)) if axis]
    frame["series"] = [words or "all runs" for words in in_words(runs, shown)]
    keys = pd.DataFrame({axis: _ranks(runs, axis) for axis in (*look.facets, *shown)})
    if not len(keys.columns):
        return frame
    order = keys.sort_values(list(keys.columns), kind="stable").index
    return frame.loc[order].reset_index(drop=True)


def _ranks(runs: pd.DataFrame, axis: str) -> list[int]:
    texts = axis_texts(runs, axis)
    rank = {text: i for i, text in enumerate(in_order(texts))}
    return [rank[text] for text in texts]


def in_words(runs: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """Each run's values on these axes: 'depth 24, post, without residual'."""
    columns = [[setting_text(axis, text) for text in axis_texts(runs, axis)] for axis in axes]
    return [", ".join(row) for row in zip(*columns, strict=True)] or [""] * len(runs)


def combinations(runs: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """The values that these axes take together, in words, in the order of the values."""
    return list(dict.fromkeys(dress(runs, Look(facets=tuple(axes)))["facet"]))


def map_axes(runs: pd.DataFrame, axes: Sequence[str], look: Look) -> tuple[list[str], list[str]]:
    """The axes that go down and those that go across in a map of the grid."""
    free = varying(runs, axes)
    down = [axis for axis in free if axis == look.colour]
    across = sorted((axis for axis in free if axis not in down), key=lambda a: a != PLACEMENT)
    if len(combinations(runs, across)) > max(8, len(combinations(runs, down))):
        return across, down  # a long table reads better than a wide one
    return down, across


# Named in a picture's subtitle where they hold for all its runs, in this order.
COMMON = (
    (DEPTH, "depth {}"),
    (PLACEMENT, "{}"),
    ("model.norm", "{}"),
    ("model.width", "width {}"),
    ("model.context", "context {}"),
    ("model.init", "init {}"),
    ("train.lr", "lr {}"),
    ("train.warmup", "warm-up {}"),
    ("train.steps", "{} steps"),
    ("train.batch_size", "batch {}"),
    ("train.precision", "{}"),
    ("model.residual", None),
)


def common_settings(runs: pd.DataFrame) -> str:
    """The settings that hold for every run, and its seeds: what a picture is true for."""
    parts = []
    for key, form in COMMON:
        # A pending run has no settings yet but those of the axes.
        texts = set(axis_texts(runs, key)) - {"not set"} if key in runs else set()
        if len(texts) == 1:
            text = texts.pop()
            parts.append(form.format(text) if form else setting_text(key, text))
    # Of other people's loops no seed is known.
    seeds = {
        key: axis_texts(runs.loc[runs[key].notna()], key)
        for key in ("seed_init", "seed_data")
        if key in runs
    }
    if len(seeds) == 2 and seeds["seed_init"] == seeds["seed_data"]:
        seeds = {"seed": seeds["seed_init"]}
    for key, texts in seeds.items():
        distinct = in_order(texts)
        shown = ", ".join(distinct) if len(distinct) <= 8 else f"{distinct[0]} to {distinct[-1]}"
        name = {"seed_init": "init seed", "seed_data": "data seed"}.get(key, key)
        parts += [f"{name}{'s' * (len(distinct) > 1)} {shown}"] if distinct else []
    return " · ".join(parts)


# What a gap is measured from: letter frequencies in lnexp's own runs; in watched and imported runs
# the baseline that their user gave, or nothing. The seed is known of own runs alone.
LETTERS, GIVEN = "guessing by letter frequency", "the baseline that was given"


def seed_texts(runs: pd.DataFrame) -> list[str]:
    """'3', or '3/5' where the seed of the data differs; '' where it is not known."""
    pairs = zip(column(runs, "seed_init"), column(runs, "seed_data"), strict=True)
    return ["/".join(dict.fromkeys(str(s) for s in pair if not pd.isna(s))) for pair in pairs]


def all_foreign(runs: pd.DataFrame) -> bool:
    """Whether all of them are other people's loops, watched or imported."""
    return bool(len(runs)) and not any(seed_texts(runs))


def gap_words(runs: pd.DataFrame) -> str:
    """What the gap of these runs is."""
    if all(seed_texts(runs)):
        return f"loss minus that of {LETTERS}"
    known = pd.concat([column(runs, "h1"), column(runs, "end_gap")]).notna().any()
    if not all_foreign(runs):
        return f"loss minus that of {LETTERS}, of watched and imported runs minus {GIVEN}"
    return f"loss minus {GIVEN}" if known else "none, since no baseline was given"


def level_words(runs: pd.DataFrame) -> str:
    """The name of the line at H1."""
    return GIVEN if all_foreign(runs) else f"{LETTERS} (H1)"


def as_good_as(runs: pd.DataFrame) -> dict[str, float]:
    """The line at a gap of 0, by its name."""
    return {f"as good as {GIVEN if all_foreign(runs) else 'letter frequencies'}": 0.0}
