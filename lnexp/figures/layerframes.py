"""Readings by layer, as frames: the chosen steps of a profile, three blocks over time."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from lnexp.figures.frames import measured, split
from lnexp.results.axes import DEPTH
from lnexp.rows import MATRIX_PARTS

AT_STEPS = (0, 5, 20, 60, 120)  # and the last; early steps are where a profile moves
LAST = -1  # stands for each run's own last reading


def layer_totals(layers: pd.DataFrame, column: str = "grad_norm") -> pd.DataFrame:
    """run, step, layer, value = root of the summed squares of the layer's norms in `column`."""
    rows = measured(layers, column, ["run", "step", "layer", "part"])
    rows = rows[~rows["part"].isin(MATRIX_PARTS)]  # a matrix is already part of attn or mlp
    if not len(rows):
        return pd.DataFrame(columns=["run", "step", "layer", "value"], dtype=object)
    rows = rows.sort_values(["run", "step", "layer"], kind="stable", ignore_index=True)
    first = ~rows.duplicated(["run", "step", "layer"])
    starts = np.flatnonzero(first)
    values = rows["value"].to_numpy(dtype=float)
    totals = np.hypot.reduceat(values, starts)
    # hypot(inf, nan) is inf; a layer with a NaN in it is NaN.
    totals[np.logical_or.reduceat(np.isnan(values), starts)] = np.nan
    return rows.loc[first, ["run", "step", "layer"]].assign(value=totals).reset_index(drop=True)


def update_ratios(layers: pd.DataFrame) -> pd.DataFrame:
    """run, step, layer, value = norm of the layer's update over the norm of its weights.

    A layer whose weights are exactly 0 has no ratio, and no row.
    """
    keys = ["run", "step", "layer"]
    both = layer_totals(layers, "update_norm").merge(
        layer_totals(layers, "weight_norm"), on=keys, suffixes=("", "_weights")
    )
    both = both[both["value_weights"] != 0].reset_index(drop=True)
    top, below = (both[name].to_numpy(dtype=float) for name in ("value", "value_weights"))
    with np.errstate(invalid="ignore", over="ignore"):
        return both[keys].assign(value=top / below)


def sublayer(column: str, part: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """run, step, layer, value: one reading a layer, in blocks that of this part (attn or mlp)."""

    def values(layers: pd.DataFrame) -> pd.DataFrame:
        rows = measured(layers, column, ["run", "step", "layer", "part"])
        rows = rows[rows["part"].isin([part, "embed", "norm", "head"])]
        # Of a block this part, not its norms; a norm and the head behind it are one place: the
        # first of them that was read.
        own = (rows["part"] == part).to_numpy(dtype=bool)
        rows = pd.concat([rows[own], rows[~own]])
        rows = rows.drop_duplicates(["run", "step", "layer"])
        return rows[["run", "step", "layer", "value"]].reset_index(drop=True)

    return values


def depths(runs: pd.DataFrame, layers: pd.DataFrame) -> pd.Series:
    """Blocks of each run; where the setting is not known, as many as left readings."""
    stated = pd.Series(dtype=float)
    if DEPTH in runs:
        values, known = split(runs[DEPTH])
        stated = pd.Series(values, index=list(runs["run"]))[known & np.isfinite(values)]
    if len(stated) < len(runs):
        seen = measured(layers, "grad_norm", ["run", "layer", "part"])
        blocks = seen[seen["part"].isin(["attn", "mlp"])].groupby("run")["layer"].max() + 1
        stated = stated.combine_first(blocks.astype(float))
    return stated.astype("int64")


def chosen_steps(
    layers: pd.DataFrame, wanted: Sequence[int] | None = None, column: str = "grad_norm"
) -> list[int]:
    """The recorded steps nearest to those wanted."""
    recorded = np.unique(measured(layers, column, ["step"])["step"].to_numpy())
    if not len(recorded):
        return []
    wanted = AT_STEPS if wanted is None else wanted
    within = [step for step in wanted if step <= recorded[-1]] or [int(recorded[-1])]
    return sorted({int(recorded[np.abs(recorded - step).argmin()]) for step in within})


def profiles(
    layers: pd.DataFrame,
    steps: Sequence[int],
    column: str = "grad_norm",
    values: Callable[[pd.DataFrame], pd.DataFrame] = layer_totals,
) -> pd.DataFrame:
    """run, when, step, layer, value: what `values` makes of the layers at these steps.

    `when` is the step, or LAST for a run's own last reading of `column` where that is none of them.
    """
    if not len(layers):
        return layer_totals(layers).assign(when=[])
    last = measured(layers, column, ["run", "step"]).groupby("run")["step"].max()
    step = split(layers["step"])[0]
    is_last = step == layers["run"].astype(object).map(last).to_numpy(dtype=float)
    rows = values(layers[np.isin(step, list(steps)) | is_last])
    return rows.assign(when=rows["step"].where(rows["step"].isin(list(steps)), LAST))


def three_blocks(layers: pd.DataFrame, depth: pd.Series) -> pd.DataFrame:
    """run, step, where (first, middle, last), value: gradient norms of three blocks.

    A network of two blocks has no middle one, and of one block only a first.
    """
    if not len(layers):
        return layer_totals(layers).assign(where=[])
    at = split(layers["layer"])[0]
    blocks = layers["run"].astype(object).map(depth)
    parts = []
    for where, layer in three_layers(blocks).items():
        rows = layer_totals(layers[at == layer.to_numpy(dtype=float)])
        parts.append(rows.drop(columns="layer").assign(where=where))
    return pd.concat(parts, ignore_index=True)


def three_layers(blocks: pd.Series) -> dict[str, pd.Series]:
    """Layer of the first, middle and last block of a network of so many blocks."""
    return {
        "first": blocks * 0,
        "middle": (blocks // 2).where(blocks > 2),
        "last": (blocks - 1).where(blocks > 1),
    }


def blocks_in_words(depth: int) -> dict[str, str]:
    """{'first': 'block 1 of 24 (layer 0)', ...}"""
    layers = three_layers(pd.Series([depth]))
    return {
        where: f"block {int(layer.iloc[0]) + 1} of {depth} (layer {int(layer.iloc[0])})"
        for where, layer in layers.items()
        if layer.notna().iloc[0]
    }


def nonfinite_counts(profile: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """How many readings are NaN or Inf: the keys, kind, n."""
    value = profile["value"].to_numpy(dtype=float)
    rows = profile.assign(kind=np.where(np.isnan(value), "NaN", "Inf"))[~np.isfinite(value)]
    return rows.groupby([*keys, "kind"], sort=False).size().reset_index(name="n")
