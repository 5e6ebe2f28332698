"""A run's tables as other tools keep them: by step, a number a key. Free of torch."""

from collections.abc import Iterator
from math import isfinite
from typing import Any

import numpy as np
import pandas as pd

from lnexp.analysis.load import Results
from lnexp.analysis.table import column, numbers
from lnexp.exchange.names import LAYER_KEYS, STEP_KEYS, place


def history(results: Results) -> pd.DataFrame:
    """sweep, run, step, key, value; a row for everything that was measured, NaN and Inf too."""
    steps, layers = results.steps(), results.layers()
    parts = [
        _long(steps, name, pd.Series(key, index=steps.index)) for name, key in STEP_KEYS.items()
    ]
    parts += [_long(layers, name, key + "/" + _places(layers)) for name, key in LAYER_KEYS.items()]
    whole = pd.concat(parts, ignore_index=True)
    return whole.sort_values(["sweep", "run", "step"], kind="stable", ignore_index=True)


def _places(layers: pd.DataFrame) -> pd.Series:
    pairs = list(zip(layers["layer"], layers["part"], strict=True))
    words = {pair: place(*pair) for pair in set(pairs)}
    return pd.Series([words[pair] for pair in pairs], index=layers.index, dtype=str)


def _long(frame: pd.DataFrame, name: str, key: pd.Series) -> pd.DataFrame:
    values = column(frame, name)
    there = values.notna().to_numpy()
    return pd.DataFrame(
        {
            "sweep": frame["sweep"].to_numpy(dtype=object)[there],
            "run": frame["run"].to_numpy(dtype=object)[there],
            "step": frame["step"].to_numpy()[there],
            "key": key.to_numpy(dtype=object)[there],
            "value": numbers(values)[there],
        }
    )


def by_run(results: Results) -> Iterator[tuple[dict[str, Any], list[tuple[int, dict[str, float]]]]]:
    """Each run's row of runs.csv, and per step what was measured, by key."""
    whole = history(results)
    tables = dict(iter(whole.groupby(["sweep", "run"], sort=False)))
    for row in results.runs.to_dict("records"):
        table = tables.get((row["sweep"], row["run"]))
        yield (
            {str(key): value for key, value in row.items()},
            [] if table is None else _steps(table),
        )


def _steps(table: pd.DataFrame) -> list[tuple[int, dict[str, float]]]:
    found: dict[int, dict[str, float]] = {}
    columns = (table[name].tolist() for name in ("step", "key", "value"))
    for step, key, value in zip(*columns, strict=True):
        found.setdefault(step, {})[key] = value
    return list(found.items())


def plain(value: Any) -> Any:
    """For JSON: null where not measured, a non-finite number as nan, inf or -inf."""
    if value is None or value is pd.NA:
        return None
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    value = value.item() if isinstance(value, np.generic) else value
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def facts(row: dict[str, Any]) -> dict[str, Any]:
    """Settings, status, verdict and figures of a run, without what is not known or only local."""
    known = {key: plain(value) for key, value in row.items() if key != "folder"}
    return {key: value for key, value in known.items() if value is not None and value != ""}
