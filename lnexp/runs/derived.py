"""A sweep made from another: the same cells with other settings, in a folder of its own."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lnexp.config.rules import hashable
from lnexp.config.sweep import Sweep, dump, load_sweep
from lnexp.runs.execute import earlier_run
from lnexp.runs.plan import Plan, PlannedRun, make_plan

Settings = dict[str, Any]  # dotted key -> value
Train = Callable[[Plan, Sequence[PlannedRun]], Any]  # trains these runs of the plan


def cells(sweep: Sweep) -> list[Settings]:
    """The settings of each cell on the sweep's axes, in grid order."""
    met = {
        tuple(hashable(value) for value in point.settings.values()): point.settings
        for point in sweep.points
    }
    return list(met.values())


def derive(sweep: Sweep, suffix: str, cases: Sequence[Settings], **top: Any) -> Plan:
    """The plan of NAME-suffix: these cases in place of the sweep's grid, without its claims.

    `top` are further keys of the document, such as seeds. Raises UserError with the problems of
    the settings that cannot be.
    """
    left_out = ("sweep", "cases", "claims")
    rest = {key: value for key, value in sweep.document.items() if key not in left_out}
    document = {**rest, "name": f"{sweep.name}-{suffix}", **top, "cases": list(cases)}
    return make_plan(read(document, sweep.path.name))


def read(document: Mapping[str, Any], file: str, overrides: Sequence[str] = ()) -> Sweep:
    """A config as data, checked like one that stands in a file of that name."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / file
        path.write_text(dump(dict(document)), encoding="utf-8")
        return load_sweep(path, overrides)


def words(settings: Settings) -> str:
    """'model.placement=post, model.depth=32'"""
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "all runs"


def part(plan: Plan, runs: Sequence[PlannedRun]) -> Plan:
    """The same plan with fewer runs."""
    return Plan(plan.sweep, list(runs), plan.notes)


def missing(runs: Sequence[PlannedRun], folder: Path) -> list[PlannedRun]:
    """Those that are not done yet in the sweep's folder."""
    return [run for run in runs if not earlier_run(run, folder / "runs" / run.name).done]
