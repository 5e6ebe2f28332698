"""Results in the formats of other tools, by step, a number a key. A new format is one entry of
WRITERS.

Free of torch.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lnexp.exchange.vocabulary import LAYER_KEYS, STEP_KEYS, place
from lnexp.files import plain, strict_json, write_whole
from lnexp.results.load import Results
from lnexp.results.tables import arrow_table, column, numbers


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
    measured = values.notna().to_numpy()
    return pd.DataFrame(
        {
            "sweep": frame["sweep"].to_numpy(dtype=object)[measured],
            "run": frame["run"].to_numpy(dtype=object)[measured],
            "step": frame["step"].to_numpy()[measured],
            "key": key.to_numpy(dtype=object)[measured],
            "value": numbers(values)[measured],
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
    steps: dict[int, dict[str, float]] = {}
    columns = (table[name].tolist() for name in ("step", "key", "value"))
    for step, key, value in zip(*columns, strict=True):
        steps.setdefault(step, {})[key] = value
    return list(steps.items())


def facts(row: dict[str, Any]) -> dict[str, Any]:
    """Settings, status, verdict and figures of a run, without what is not known or only local."""
    known = {key: plain(value) for key, value in row.items() if key != "folder"}
    return {key: value for key, value in known.items() if value is not None and value != ""}


def to_json(results: Results, folder: Path) -> list[Path]:
    """results.json: each run's facts, history and events; strict, NaN and Inf as words."""
    events = results.events()
    runs = []
    for row, steps in by_run(results):
        mine = (events["run"] == row["run"]) & (events["sweep"] == row["sweep"])
        runs.append(
            {
                **facts(row),
                "history": [{"step": step, **values} for step, values in steps],
                "events": events.loc[mine].drop(columns=["run", "sweep"]).to_dict("records"),
            }
        )
    path = folder / "results.json"
    write_whole(path, strict_json({"schema": 1, "runs": runs}, indent=None))
    return [path]


def to_parquet(results: Results, folder: Path) -> list[Path]:
    """runs.parquet, history.parquet (sweep, run, step, key, value), events.parquet."""
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

    runs = results.runs.drop(columns="folder")
    texts = [n for n in runs if runs[n].dtype == object]  # settings of several types, lists
    runs = runs.assign(**{n: runs[n].map(_word).astype("str") for n in texts})
    written = []
    tables = {"runs": runs, "history": history(results), "events": results.events()}
    for name, frame in tables.items():
        for key in ("sweep", "run"):
            frame[key] = frame[key].astype(str)
        path = folder / f"{name}.parquet"
        pq.write_table(arrow_table(frame), path)
        written.append(path)
    return written


def _word(value: Any) -> str:
    return "" if value is None or value is pd.NA else str(value)


def to_tensorboard(results: Results, folder: Path) -> list[Path]:
    """One folder of event files a run: scalars by key, facts as text."""
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore
    from tensorboard.plugins.text.summary_v2 import text_pb  # pyright: ignore[reportMissingImports]
    from tensorboard.summary.writer.event_file_writer import EventFileWriter  # pyright: ignore[reportMissingImports]

    written = []
    for row, steps in by_run(results):
        path = folder / row["sweep"] / row["run"]
        writer = EventFileWriter(str(path))
        end = _time(row)
        last = steps[-1][1].get("train/seconds", 0.0) if steps else 0.0
        lines = [f"| {key} | {value} |" for key, value in facts(row).items()]
        about = text_pb("lnexp/run", "\n".join(["| key | value |", "|---|---|", *lines]))
        writer.add_event(Event(wall_time=end - last, step=0, summary=about))
        for step, values in steps:
            scalars = [Summary.Value(tag=key, simple_value=value) for key, value in values.items()]
            at = end - last + values.get("train/seconds", last)
            writer.add_event(Event(wall_time=at, step=step, summary=Summary(value=scalars)))
        writer.close()
        written.append(path)
    return written


def _time(row: dict[str, Any]) -> float:
    """When the run ended; its own seconds count back from there."""
    try:
        return os.stat(Path(row["folder"]) / "steps.csv").st_mtime
    except OSError:
        return 0.0


def to_wandb(results: Results, folder: Path) -> list[Path]:
    """One W&B run a run, offline (`wandb sync` sends it) unless WANDB_MODE says otherwise."""
    import wandb  # pyright: ignore[reportMissingImports]

    mode: Any = os.environ.get("WANDB_MODE", "offline")
    written = []
    for row, steps in by_run(results):
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
        run = wandb.init(
            project=row["sweep"],
            name=row["run"],
            dir=folder,
            config=facts(row),
            mode=mode,
            settings=settings,
            reinit="finish_previous",
        )
        for step, values in steps:
            run.log(values, step=step)
        run.finish()
        written.append(Path(run.dir).parent)
    return written


@dataclass(frozen=True)
class Writer:
    write: Callable[[Results, Path], list[Path]]
    module: str = ""  # what it needs, where that is no dependency of lnexp
    extra: str = ""


WRITERS = {
    "tensorboard": Writer(to_tensorboard, "tensorboard", "tensorboard"),
    "wandb": Writer(to_wandb, "wandb", "wandb"),
    "parquet": Writer(to_parquet, "pyarrow", "parquet"),
    "json": Writer(to_json),
}
