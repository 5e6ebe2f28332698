"""What each picture draws, as frames: every statistic is made here, with its n of m.

In the frames made here NaN and Inf are measured values; what was not measured has no row.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from lnexp.messages import amount
from lnexp.results.axes import as_number, axis_texts, level_words
from lnexp.results.cells import horizon, outcomes
from lnexp.results.tables import column

NONFINITE = ("NaN", "Inf", "non-finite")
STOPPED = ("failed", "interrupted", "running")


def split(series: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Values as float64, and which were measured: NaN is a measured value, <NA>, None, '' not."""
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "fiub":
        return series.to_numpy(dtype=float), np.ones(len(series), dtype=bool)
    if isinstance(series.dtype, np.dtype) or pd.api.types.is_string_dtype(series.dtype):
        cells = [_number(cell) for cell in series.astype(object)]
        return (
            np.array([np.nan if cell is None else cell for cell in cells], dtype=float),
            np.array([cell is not None for cell in cells], dtype=bool),
        )
    known = ~series.isna().to_numpy(dtype=bool)
    return series.to_numpy(dtype=float, na_value=np.nan), known


def _number(cell: object) -> float | None:
    if cell is None or cell is pd.NA or cell == "":
        return None
    return cell if isinstance(cell, float) else as_number(str(cell))


def measured(frame: pd.DataFrame, name: str, keys: Sequence[str]) -> pd.DataFrame:
    """The rows in which the column `name` was measured: keys and value."""
    if name not in frame or not len(frame):
        return pd.DataFrame(columns=[*keys, "value"], dtype=object)
    values, known = split(frame[name])
    out = frame.loc[known, list(keys)].copy()
    out["value"] = values[known]
    if "run" in keys:
        out["run"] = out["run"].astype(object)  # a categorical would keep runs that have no rows
    for key in keys:
        if key in ("step", "layer"):
            out[key] = out[key].astype("int64")
    return out.reset_index(drop=True)


def endings(runs: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Runs that did not go finite to their end: run, kind (NaN, Inf, failed, ...), step.

    The kind is read from the recorded numbers; 'non-finite' where none of them shows which.
    """
    last = measured(steps, "loss", ["run", "step"]).groupby("run")["step"].max()
    births, known = split(column(runs, "first_bad_step"))
    born = dict(zip(column(runs, "run")[known], births[known], strict=True))
    bad = _first_nonfinite(steps, born)
    words = (axis_texts(runs, key) for key in ("status", "verdict"))
    rows = []
    for run, status, verdict in zip(column(runs, "run"), *words, strict=True):
        recorded = np.isfinite(born.get(run, np.nan))
        if recorded or run in bad.index or verdict == "nonfinite":
            kind = bad.loc[run, "kind"] if run in bad.index else "non-finite"
            seen = bad.loc[run, "step"] if run in bad.index else last.get(run, np.nan)
            rows.append((run, kind, born[run] if recorded else seen))
        elif status in STOPPED:
            rows.append((run, status, last.get(run, np.nan)))
    frame = pd.DataFrame(rows, columns=["run", "kind", "step"])
    return frame.astype({"run": object, "kind": object, "step": float})


def _first_nonfinite(steps: pd.DataFrame, born: dict[str, float]) -> pd.DataFrame:
    """Indexed by run: the first step with a non-finite number, and whether it was NaN or Inf.

    A step that loss scaling skipped is none; the one at which a run stopped made no update either.
    """
    parts = []
    for order, name in enumerate(("loss", "grad_norm", "update_norm", "weight_norm")):
        keys = ["run", "step", "skipped"] if "skipped" in steps else ["run", "step"]
        rows = measured(steps, name, keys)
        rows = rows[~np.isfinite(rows["value"].to_numpy(dtype=float))]
        if "skipped" in rows:
            skipped, known = split(rows["skipped"])
            early = ~(rows["step"] >= rows["run"].map(born).astype(float))  # or not born at all
            rows = rows[~(known & (skipped == 1) & early)]
        parts.append(rows[["run", "step", "value"]].assign(order=order))
    rows = pd.concat(parts).sort_values(["step", "order"], kind="stable").drop_duplicates("run")
    kinds = np.where(np.isnan(rows["value"].to_numpy(dtype=float)), "NaN", "Inf")
    return rows.assign(kind=kinds).set_index("run")[["step", "kind"]]


def over_seeds(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Median, smallest and largest of the finite values per key; n finite of m measured."""
    if not len(frame):
        return pd.DataFrame(columns=[*keys, "median", "low", "high", "n", "m"], dtype=object)
    finite = frame["value"].where(np.isfinite(frame["value"].to_numpy(dtype=float)))
    groups = frame.assign(value=finite).groupby(list(keys), sort=False, observed=True)["value"]
    names = {"median": "median", "min": "low", "max": "high", "count": "n", "size": "m"}
    return groups.agg(list(names)).rename(columns=names).reset_index()


def marks(values: pd.DataFrame, ended: pd.DataFrame, line: Sequence[str] = ()) -> pd.DataFrame:
    """Where each ended run was last finite: run, line keys, step, value, kind, bad_step.

    The value is NaN where the run never had a finite one: drawn above the scale, not dropped.
    """
    keys = ["run", *line]
    rows = values.merge(ended.rename(columns={"step": "bad_step"}), on="run")
    rows = rows[~(rows["step"] > rows["bad_step"])].sort_values("step", kind="stable")
    finite = rows[np.isfinite(rows["value"].to_numpy(dtype=float))]
    last = finite.drop_duplicates(keys, keep="last")
    never = rows.drop_duplicates(keys, keep="last").merge(
        last[keys], on=keys, how="left", indicator=True
    )
    never = never[never["_merge"] == "left_only"].drop(columns="_merge").assign(value=np.nan)
    return pd.concat([f for f in (last, never) if len(f)] or [last]).reset_index(drop=True)


def tally(dressed: pd.DataFrame, ended: pd.DataFrame, shown: Iterable[str], key: str) -> dict:
    """Per series (or cell) in words: '3 of 4 to the end; NaN at step 7 (1 run)'."""
    have = set(shown)
    end = ended.set_index("run")
    words = {}
    for name, group in dressed.groupby(key, sort=False):
        whole = [run for run in group["run"] if run in have and run not in end.index]
        parts = [f"{len(whole)} of {len(group)} to the end"]
        early = end.loc[[run for run in group["run"] if run in have and run in end.index]]
        for kind, rows in early.groupby("kind", sort=False):
            when = "after" if kind in STOPPED else "at"
            parts.append(f"{kind} {when} {steps_text(rows['step'])} ({amount(len(rows), 'run')})")
        lacking = group[~group["run"].isin(have)]
        parts += [f"{amount(n, 'run')} {why}" for why, n in _reasons(lacking).items()]
        words[name] = "; ".join(parts)
    return words


def steps_text(steps: pd.Series) -> str:
    known = steps[np.isfinite(steps.to_numpy(dtype=float))]
    if not len(known):
        return "an unknown step"
    low, high = int(known.min()), int(known.max())
    return f"step {low}" if low == high else f"steps {low} to {high}"


def _reasons(lacking: pd.DataFrame) -> dict[str, int]:
    why = ["not measured" if s in ("finished", "", "not set") else s for s in lacking["status"]]
    return {reason: why.count(reason) for reason in dict.fromkeys(why)}


def not_shown(dressed: pd.DataFrame, shown: Iterable[str]) -> str:
    """'2 of 36 runs not shown: 2 pending', or '' when every run is in the picture."""
    lacking = dressed[~dressed["run"].isin(set(shown))]
    if not len(lacking):
        return ""
    reasons = ", ".join(f"{n} {why}" for why, n in _reasons(lacking).items())
    return f"{len(lacking)} of {amount(len(dressed), 'run')} not shown: {reasons}."


def outcome_counts(runs: pd.DataFrame, rows: list[str], columns: list[str]) -> pd.DataFrame:
    """row, column, outcome, n: how often each outcome came up in each cell of the grid."""
    frame = pd.DataFrame({"row": rows, "column": columns, "outcome": outcomes(runs)}, dtype=object)
    return frame.groupby(["row", "column", "outcome"], sort=False).size().reset_index(name="n")


def outcome_words(runs: pd.DataFrame) -> dict[str, str]:
    """Each outcome with the steps that it holds for: 'stalled within 200 steps: 8 runs'."""
    named = np.array(outcomes(runs), dtype=object)
    words = {}
    for outcome in dict.fromkeys(named):
        these = runs[named == outcome]
        steps = split(column(these, "steps_done"))[0]
        done = steps[np.isfinite(steps)].astype(int).tolist()
        words[outcome] = f"{horizon(outcome, done)}: {amount(len(these), 'run')}".replace("_", " ")
    return words


def levels(runs: pd.DataFrame, *keys: str) -> dict[str, list[float]]:
    """What `ln_v` and `h1` are called, each with the values that the sweep's texts have."""
    names = {"ln_v": "ln V, a uniform guess", "h1": level_words(runs)}
    values = {key: split(column(runs, key))[0] for key in keys}
    return {
        names[key]: sorted({round(float(v), 4) for v in some[np.isfinite(some)]})
        for key, some in values.items()
    }


def references(runs: pd.DataFrame, *keys: str) -> dict[str, float]:
    """The same as lines of a picture: each value by its name."""
    named = levels(runs, *keys)
    return {f"{name}: {level:.3g}": level for name, some in named.items() for level in some}


def points(
    runs: pd.DataFrame, dressed: pd.DataFrame, x: Sequence[str], name: str, ended: pd.DataFrame
) -> pd.DataFrame:
    """One row a run in which `name` was measured: x, value, kind ('' where it went to its end).

    `ended` names the runs whose value is none of a whole run: shown, never in a median.
    """
    frame = measured(runs.assign(x=list(x)), name, ["run", "x"])
    frame = dressed[["run", "hue", "dash", "facet", "series"]].merge(frame, on="run")
    frame["kind"] = frame["run"].map(ended.set_index("run")["kind"]).astype(object)
    value = frame["value"].to_numpy(dtype=float)
    own = np.where(np.isnan(value), "NaN", np.where(np.isinf(value), "Inf", ""))
    frame["kind"] = frame["kind"].where(frame["kind"].notna(), own)
    return frame


def counted(points: pd.DataFrame, dressed: pd.DataFrame) -> dict[str, str]:
    """Per series: '11 of 12 runs; 1 NaN', those in the medians and why the others are not."""
    words = {}
    for name, group in dressed.groupby("series", sort=False):
        kinds = points.loc[points["series"] == name, "kind"]
        lacking = group[~group["run"].isin(points["run"])]
        others = kinds[kinds != ""].value_counts(sort=False).to_dict() | _reasons(lacking)
        parts = [f"{n} {why}" for why, n in others.items()]
        words[name] = "; ".join([f"{(kinds == '').sum()} of {amount(len(group), 'run')}", *parts])
    return words
