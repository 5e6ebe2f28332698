"""Results from disk: one row a run, and tidy step, layer and event frames read when asked for.

points.json says which runs a sweep holds now; its types are checked before anything uses it.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from lnexp.config.document import LARGEST
from lnexp.config.names import wrong_name
from lnexp.messages import UserError
from lnexp.records import BrokenRecord
from lnexp.results.run_folder import DEFAULTS, TABLES, read_config
from lnexp.results.runs_csv import Row, frame, is_locked, row_of, save, sweep_rows
from lnexp.results.tables import many_tables
from lnexp.rows import header

NAMED = 5  # runs that are named where several fit
ANEW = "`lnexp run` of the sweep's config writes it anew"


@dataclass
class Results:
    """Runs of one or more sweeps, in grid order."""

    runs: pd.DataFrame  # sweep, folder, then the columns of runs.csv
    axes: dict[str, list[str]]  # of each sweep, dotted
    questions: dict[str, str]
    dropped: list[Path] = field(default_factory=list)  # on disk, no longer a point of the sweep
    notes: list[str] = field(default_factory=list)  # what was left out or could not be read

    def steps(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        return self._table("steps", columns)

    def layers(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        return self._table("layers", columns)

    def events(self) -> pd.DataFrame:
        return self._table("events", None)

    def _table(self, name: str, columns: Sequence[str] | None) -> pd.DataFrame:
        """All runs' rows with `run` and `sweep` first; only the asked columns are parsed."""
        row_type = TABLES[name]
        if unknown := set(columns or []) - set(header(row_type)):
            raise KeyError(f"{name}.csv has no column {', '.join(sorted(unknown))}")
        asked = None if columns is None else list(columns)
        files = [Path(folder) / f"{name}.csv" for folder in self.runs["folder"]]
        rows, lengths, notes = many_tables(files, row_type, asked)
        self.notes += [note for note in dict.fromkeys(notes) if note not in self.notes]
        codes = pd.Series(range(len(lengths)), dtype="int64").repeat(lengths).to_numpy()
        for at, key in enumerate(("run", "sweep")):
            labels = pd.Categorical(self.runs[key])
            rows.insert(at, key, labels.take(codes))
        return rows


@dataclass(frozen=True)
class Frames:
    """What lnexp.load gives: results as tables, each read when it is first asked for.

    Columns: docs/notebook.md.
    """

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


def load(path: str | Path) -> Results:
    """results/ (many sweeps), one sweep folder or one run folder."""
    path = Path(path)
    if not os.path.exists(path):  # Path.exists raises where a name is too long
        expected = "expected results/, a sweep folder or a run folder"
        raise UserError(f"{path}: not found; {_below_results(path) or expected}")
    if (path / "points.json").is_file():
        return _collect([path])
    if (path / "config.yaml").is_file():
        return _one_run(path)
    sweeps = sorted(file.parent for file in path.glob("*/points.json"))
    if not sweeps:
        raise UserError(
            f"{path}: no results here: neither points.json (a sweep), config.yaml (a run) "
            "nor sweep folders" + _sweep_above(path)
        )
    return _collect(sweeps)


def find_run(path: str | Path) -> Path:
    """The run folder that SWEEP/NAME means: a whole name, the beginning or a part of one.

    A path that is there, and one that no sweep explains, come back as they are.
    """
    path = Path(path)
    if os.path.exists(path):
        return path
    sweep = path.parent.parent if path.parent.name == "runs" else path.parent
    if not (sweep / "points.json").is_file():
        if hint := _below_results(path):
            raise UserError(f"{path}: not found; {hint}")
        return path
    points = read_points(sweep)
    names = [point["run"] for point in points["runs"]]
    left_out = sorted(folder.name for folder in _dropped(sweep, points))
    fits = _named(path.name, names) or _named(path.name, left_out)
    if len(fits) == 1:
        return sweep / "runs" / fits[0]
    if not fits:
        raise UserError(f"{path}: no run of {sweep} has {path.name} in its name")
    rest = len(fits) - NAMED
    raise UserError(
        f"{path}: {len(fits)} runs of {sweep} fit; write more of one's name:",
        *(f"  {name}" for name in fits[:NAMED]),
        *([f"  and {rest} more"] * (rest > 0)),
    )


def _named(words: str, names: list[str]) -> list[str]:
    """The name itself, else those that begin with the words, else those that hold them."""
    if words in names:
        return [words]
    return [n for n in names if n.startswith(words)] or [n for n in names if words in n]


def _below_results(path: Path) -> str:
    """'did you mean results/quickstart?' where only the folder of all results is missing."""
    inside = Path("results") / path
    whole = not path.is_absolute() and os.path.exists(inside)
    return f"did you mean {inside}?" if whole else ""


def _sweep_above(path: Path) -> str:
    """'; the sweep folder is results/quickstart' where the path is inside one."""
    for above in path.resolve().parents[:2]:
        if (above / "points.json").is_file():
            return f"; the sweep folder is {above}"
    return ""


def _collect(sweeps: list[Path]) -> Results:
    results = Results(frame([]), {}, {})
    parts: list[tuple[Path, list[Row]]] = []
    for sweep in sweeps:
        try:
            points = read_points(sweep)
        except UserError as problem:
            if len(sweeps) == 1:
                raise
            results.notes += problem.problems
            continue
        rows, notes, changed = sweep_rows(sweep, points)
        if changed:
            with suppress(OSError):  # it saves time; a folder that may only be read is still read
                save(sweep, rows, points)
        _add(results, sweep, points, notes)
        results.dropped += sorted(_dropped(sweep, points))
        parts.append((sweep, rows))
    results.runs = _runs(parts)
    return results


def _one_run(folder: Path) -> Results:
    """A run folder, with its sweep's axes where it still lies in one."""
    folder = folder.resolve()
    sweep = folder.parent.parent
    results = Results(frame([]), {}, {})
    points: dict[str, Any] = {"question": "", "axes": [], "later": [], "runs": []}
    if folder.parent.name == "runs" and (sweep / "points.json").is_file():
        points = read_points(sweep)
    point = next((point for point in points["runs"] if point["run"] == folder.name), None)
    config = None
    if point is None:  # dropped from its sweep, or copied somewhere: its config says it all
        try:
            config = read_config(folder)
        except BrokenRecord as problem:
            raise UserError(str(problem)) from None
        point = {**config[1], "settings": {}}
    row, notes = row_of(folder, point, is_locked(sweep), config)
    _add(results, sweep, points, notes)
    results.runs = _runs([(sweep, [row])])
    results.runs["folder"] = str(folder)
    return results


def _add(results: Results, sweep: Path, points: dict[str, Any], notes: list[str]) -> None:
    """A sweep's axes and question, and what its readers noted."""
    results.axes[sweep.name] = points["axes"]
    results.questions[sweep.name] = points["question"]
    if points["later"]:
        later = ", ".join(points["later"])
        results.notes.append(f"{sweep}: axes that this version does not know: {later}")
    results.notes += notes


def _runs(parts: list[tuple[Path, list[Row]]]) -> pd.DataFrame:
    runs = frame([row for _, rows in parts for row in rows])
    sweeps = [sweep for sweep, rows in parts for _ in rows]
    runs.insert(0, "sweep", pd.Series([sweep.name for sweep in sweeps], dtype=str))
    folders = [str(sweep / "runs" / run) for sweep, run in zip(sweeps, runs["run"], strict=True)]
    runs.insert(1, "folder", pd.Series(folders, dtype=str))
    return runs


def _dropped(sweep: Path, points: dict[str, Any]) -> Iterator[Path]:
    """Run folders that are no points of the sweep any more."""
    names = {point["run"] for point in points["runs"]}
    for folder in (sweep / "runs").glob("*"):
        if folder.is_dir() and folder.name not in names:
            yield folder


def read_points(sweep: Path) -> dict[str, Any]:
    """The file's entries; axes that this version does not know are apart, under "later"."""
    path = sweep / "points.json"
    try:
        points = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UserError(f"{path}: {problem.strerror}; expected a sweep folder") from None
    except (ValueError, RecursionError):
        points = None
    if not isinstance(points, dict):
        raise UserError(f"{path}: not a list of points; {ANEW}")
    points = {"question": "", **points}
    for name, fits in ENTRIES.items():
        if not fits(points.get(name)):
            raise UserError(f"{path}: {name} is not what a sweep holds there; {ANEW}")
    known = [axis for axis in points["axes"] if axis in DEFAULTS]
    later = [axis for axis in points["axes"] if axis not in DEFAULTS]
    return {**points, "axes": known, "later": later}


def _point(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("run"), str)
        and not wrong_name(value["run"])
        and all(_whole(value.get(key)) and value[key] >= 0 for key in ("seed_init", "seed_data"))
        and isinstance(value.get("settings"), dict)
        and all(map(_setting, value["settings"].values()))
    )


def _setting(value: Any) -> bool:
    """A plain value, or a list of them (betas)."""
    values = value if isinstance(value, list) else [value]
    return all(isinstance(v, (str, bool, float)) or _whole(v) for v in values)


def _whole(value: Any) -> bool:
    return type(value) is int and abs(value) <= LARGEST


def _all(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, value))


ENTRIES: dict[str, Callable[[Any], bool]] = {
    "question": lambda value: isinstance(value, str),
    "axes": lambda value: _all(value, lambda axis: isinstance(axis, str)),
    "runs": lambda value: _all(value, _point),
}
