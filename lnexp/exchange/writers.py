"""Results in the formats of other tools. A new format is one entry of WRITERS. Free of torch."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lnexp.analysis.load import Results
from lnexp.exchange.history import by_run, facts, history, plain


def to_json(results: Results, folder: Path) -> list[Path]:
    """results.json: each run's facts, history and events; strict, NaN and Inf as words."""
    events = results.events()
    runs = []
    for row, steps in by_run(results):
        mine = (events["run"] == row["run"]) & (events["sweep"] == row["sweep"])
        told = [{"step": step, **{key: plain(v) for key, v in got.items()}} for step, got in steps]
        happened = events.loc[mine].drop(columns=["run", "sweep"]).to_dict("records")
        runs.append({**facts(row), "history": told, "events": happened})
    text = json.dumps({"schema": 1, "runs": runs}, allow_nan=False, ensure_ascii=False)
    path = folder / "results.json"
    path.write_text(text + "\n", encoding="utf-8")
    return [path]


def to_parquet(results: Results, folder: Path) -> list[Path]:
    """runs.parquet, history.parquet (sweep, run, step, key, value), events.parquet."""
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

    runs = results.runs.drop(columns="folder")
    texts = [n for n in runs if runs[n].dtype == object]  # settings of several types, lists
    runs = runs.assign(**{n: runs[n].map(_word).astype("str") for n in texts})
    written = []
    for name, frame in (
        ("runs", runs),
        ("history", history(results)),
        ("events", results.events()),
    ):
        for column in ("sweep", "run"):
            frame[column] = frame[column].astype(str)
        path = folder / f"{name}.parquet"
        # A column's own mask says what was not measured; NaN stays NaN.
        columns = {column: pa.array(frame[column], from_pandas=False) for column in frame}
        pq.write_table(pa.table(columns), path)
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
        for step, found in steps:
            values = [Summary.Value(tag=key, simple_value=value) for key, value in found.items()]
            at = end - last + found.get("train/seconds", last)
            writer.add_event(Event(wall_time=at, step=step, summary=Summary(value=values)))
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
        for step, found in steps:
            run.log(found, step=step)
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
