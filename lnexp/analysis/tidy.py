"""lnexp.load: results as four tidy tables, for notebooks and scripts."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from lnexp.analysis.load import Results, load


@dataclass(frozen=True)
class Frames:
    """Results as tables; each is read when it is first asked for. Columns: docs/notebook.md."""

    results: Results

    @property
    def runs(self) -> pd.DataFrame:
        """One row a run: sweep, folder, then the columns of runs.csv."""
        return self.results.runs

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row a run and step: run, sweep, then the columns of steps.csv."""
        return self.results.steps()

    @cached_property
    def layers(self) -> pd.DataFrame:
        """One row a run, step, layer and part: run, sweep, then the columns of layers.csv."""
        return self.results.layers()

    @cached_property
    def events(self) -> pd.DataFrame:
        """One row an event: run, sweep, then the columns of events.csv."""
        return self.results.events()

    @property
    def axes(self) -> dict[str, list[str]]:
        """What each sweep varies, as columns of `runs`."""
        return self.results.axes

    @property
    def notes(self) -> list[str]:
        """What was left out or could not be read so far."""
        return self.results.notes


def frames(path: str | Path) -> Frames:
    return Frames(load(path))
