"""The number that a claim looks up for one run: in runs.csv, layers.csv or a table of lab/."""

from typing import Any

import pandas as pd

from lnexp.claims.claims import ONE_LAYER, LabMetric, LayerMetric, RunMetric
from lnexp.claims.units import Run
from lnexp.results.load import Results

Metric = RunMetric | LayerMetric | LabMetric


class NoSuchTable(Exception):
    """Why a metric cannot be looked up at all."""


class Metrics:
    """Metrics of one sweep; each table is read once, and only the columns that are asked for."""

    def __init__(self, results: Results, sweep: str) -> None:
        self._results, self._sweep = results, sweep
        self._layers: dict[str, dict[Any, pd.DataFrame]] = {}
        self._lab: dict[str, pd.DataFrame] = {}

    def of(self, run: Run, metric: Metric) -> float | None:
        """None: not measured."""
        if isinstance(metric, RunMetric):
            return run.figure(metric.column)
        if isinstance(metric, LayerMetric):
            return self._layer(metric, run)
        return self._in_lab(metric, run)

    def _layer(self, metric: LayerMetric, run: Run) -> float | None:
        rows = self._layers_of(metric.column).get(run.name)
        if rows is None:
            return None
        rows = rows.loc[rows["part"] == metric.part]
        if metric.part not in ONE_LAYER:
            layer = metric.layer or 0
            layer += run.settings["model.depth"] if layer < 0 else 0
            rows = rows.loc[rows["layer"] == layer]
        if metric.step != "last":
            rows = rows.loc[rows["step"] == metric.step]
        values = rows[metric.column]
        values = values.loc[(~values.isna()).to_numpy()]
        return float(values.iloc[-1]) if len(values) else None

    def _layers_of(self, column: str) -> dict[Any, pd.DataFrame]:
        """The rows of this sweep's runs, by run."""
        if column not in self._layers:
            rows = self._results.layers(["step", "layer", "part", column])
            rows = rows.loc[rows["sweep"] == self._sweep]
            groups = rows.groupby("run", observed=True)
            self._layers[column] = {name: part for name, part in groups}
        return self._layers[column]

    def _in_lab(self, metric: LabMetric, run: Run) -> float | None:
        """The one cell of the run's row."""
        table = self._lab_table(metric.file, run)
        for key in ("run", metric.column, *metric.at):
            if key not in table:
                raise NoSuchTable(f"lab/{metric.file}.csv has no column {key}")
        rows = table.loc[table["run"] == run.name]
        for key, value in metric.at.items():
            rows = rows.loc[[_reads(text, value) for text in rows[key]]]
        if len(rows) > 1:
            raise NoSuchTable(
                f"lab/{metric.file}.csv has {len(rows)} rows for {run.name}; say which: at: {{...}}"
            )
        text = rows[metric.column].iloc[0] if len(rows) else ""
        try:
            return float(text) if text else None
        except ValueError:
            raise NoSuchTable(
                f"lab/{metric.file}.csv: {metric.column} {text} is no number"
            ) from None

    def _lab_table(self, file: str, run: Run) -> pd.DataFrame:
        if file not in self._lab:
            path = run.folder.parent.parent / "lab" / f"{file}.csv"
            try:
                self._lab[file] = pd.read_csv(path, dtype=str, keep_default_na=False)
            except (OSError, ValueError) as problem:
                why = getattr(problem, "strerror", None) or "cannot be read as a table"
                raise NoSuchTable(f"lab/{file}.csv: {why}") from None
        return self._lab[file]


def _reads(text: str, value: Any) -> bool:
    """Whether a cell's text is this value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return text.lower() == str(value).lower()
    try:
        return float(text) == float(value)
    except ValueError:
        return False
