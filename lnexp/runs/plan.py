"""From a sweep to the runs it stands for on this machine; everything is checked before run 1."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from lnexp.config.names import find, run_name
from lnexp.config.rules import show
from lnexp.config.schema import Data, Model, RunConfig, Train
from lnexp.config.sweep import Point, Sweep, load_sweep
from lnexp.data import Corpus, load, short_splits
from lnexp.messages import UserError, refusal
from lnexp.model.check import Architecture, architecture
from lnexp.train.blocks import compile_problem
from lnexp.train.precision import SLOW, device_problem, precision_problem, resolve_device, slowness

T = TypeVar("T")


@dataclass(frozen=True)
class PlannedRun:
    name: str  # of its folder
    point: Point
    corpus: Corpus
    architecture: Architecture
    device: str

    @property
    def config(self) -> RunConfig:
        return self.point.config

    def entry(self) -> dict[str, Any]:
        """Its line in points.json."""
        return {
            "run": self.name,
            "seed_init": self.config.seed.init,
            "seed_data": self.config.seed.data,
            "settings": self.point.settings,
        }


@dataclass(frozen=True)
class Plan:
    sweep: Sweep
    runs: list[PlannedRun]
    notes: list[str]

    def folder(self, out: Path) -> Path:
        return out / self.sweep.name

    def index(self) -> dict[str, Any]:
        """points.json: the runs that the sweep holds now, in grid order."""
        return {
            "schema": 1,
            "name": self.sweep.name,
            "question": self.sweep.question,
            "axes": list(self.sweep.axes),
            "runs": [run.entry() for run in self.runs],
        }


def plans(configs: list[str], overrides: Sequence[str]) -> list[Plan]:
    """The plans of all configs, each checked whole. Raises UserError with all problems."""
    problems: list[str] = []
    planned: list[Plan] = []
    for path in find(configs):
        try:
            planned.append(make_plan(load_sweep(path, overrides)))
        except UserError as error:
            problems += error.problems
    firsts: dict[str, Sweep] = {}
    for sweep in (plan.sweep for plan in planned):
        first = firsts.setdefault(sweep.name.casefold(), sweep)
        if first.path != sweep.path:
            named = (
                f"are both named {sweep.name}"
                if first.name == sweep.name
                else f"are named {first.name} and {sweep.name}: one folder where the case of "
                "letters does not count"
            )
            problems.append(
                f"{first.path} and {sweep.path} {named}; write a name: of its own in one of them"
            )
    if problems:
        raise UserError(*problems)
    return planned


def make_plan(sweep: Sweep) -> Plan:
    """Loads each text, builds each distinct model on the meta device, names each run.

    Raises UserError with every problem found.
    """
    problems: list[str] = []

    def attempt(work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return placed(sweep, work, *arguments)
        except UserError as error:
            problems.extend(error.problems)
            return None

    configs = [point.config for point in sweep.points]
    corpora: dict[Data, Corpus | None] = {
        data: attempt(load, data) for data in dict.fromkeys(c.data for c in configs)
    }
    devices = {
        wanted: resolve_device(wanted) for wanted in dict.fromkeys(c.train.device for c in configs)
    }
    refusals, warnings = _of_this_machine(configs, devices)
    for data, context in dict.fromkeys((c.data, c.model.context) for c in configs):
        corpus = corpora[data]
        text = Path(data.path).name if data.source == "file" else f"the {data.source} text"
        for sentence in short_splits(corpus, context, text) if corpus else []:
            refusals.append(f"model.context: {sentence}{_which(data, sweep)}")
    problems += [_placed(why, sweep) for why in refusals]
    shapes = dict.fromkeys(
        (c.model, len(corpus.vocabulary)) for c in configs if (corpus := corpora[c.data])
    )
    built: dict[tuple[Model, int], Architecture] = {
        shape: attempt(architecture, *shape) for shape in shapes
    }
    if problems:
        raise refusal(problems, str(sweep.path))

    notes = [*sweep.notes, *warnings]
    runs: dict[str, PlannedRun] = {}
    for point in sweep.points:
        config = point.config
        corpus = corpora[config.data]
        assert corpus is not None
        device = devices[config.train.device]
        name = run_name(config, corpus.sha256, device)
        if name in runs:
            why = _twice(runs[name].config, config, device)
            notes.append(f"{name} stands for two points of the sweep: {why}")
            continue
        shape = built[config.model, len(corpus.vocabulary)]
        runs[name] = PlannedRun(name, point, corpus, shape, device)
    return Plan(sweep, list(runs.values()), notes)


def _of_this_machine(
    configs: Sequence[RunConfig], devices: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """What cannot be trained here, as 'key: why', and what is slow."""
    refusals, warnings = [], []
    for device in devices.values():
        if why := device_problem(device):
            refusals.append(f"train.device: {device}: {why}")
    if any(config.train.compile for config in configs) and (why := compile_problem()):
        refusals.append(f"train.compile: {why}")
    for precision, device in dict.fromkeys(
        (c.train.precision, devices[c.train.device]) for c in configs
    ):
        if device_problem(device):
            continue
        if why := precision_problem(precision, device):
            refusals.append(f"train.precision: {precision} does not work on {device}: {why}")
        elif (times := slowness(precision, device)) > SLOW:
            warnings.append(
                f"{precision} is slow on this {device}: a matrix product takes {times:.0f} times "
                "fp32's"
            )
    return refusals, warnings


def with_steps(run: PlannedRun, steps: int) -> PlannedRun:
    """The same run, and under a constant schedule the same folder, to more steps."""
    config = run.config
    try:
        longer = Train.model_validate({**config.train.model_dump(), "steps": steps})
    except ValidationError as problem:
        why = problem.errors()[0]["msg"]
        raise UserError(f"--steps: {steps:,} train.steps of {run.name}: {why}") from None
    point = replace(run.point, config=config.model_copy(update={"train": longer}))
    return replace(run, point=point)


def _twice(one: RunConfig, other: RunConfig, device: str) -> str:
    """Why two points are one run."""
    reasons = []
    if one.data != other.data:
        reasons.append("their texts are the same")
    if one.train.device != other.train.device:
        wanted = f"{one.train.device} and {other.train.device}"
        reasons.append(f"train.device {wanted} are both {device} here")
    return "; ".join(reasons)


def _which(data: Data, sweep: Sweep) -> str:
    """Which of a sweep's texts is meant: ' (data.val_fraction 0.1)', or '' if there is one."""
    swept = [key for key in sweep.axes if key.startswith("data.")]
    words = [f"{key} {show(getattr(data, key.removeprefix('data.')))}" for key in swept]
    return f" ({', '.join(words)})" if words else ""


def placed(sweep: Sweep, work: Callable[..., T], *arguments: Any) -> T:
    """What `work` gives; its complaints open with the place of the key that they begin with."""
    try:
        return work(*arguments)
    except UserError as error:
        raise UserError(*(_placed(problem, sweep) for problem in error.problems)) from error


def _placed(problem: str, sweep: Sweep) -> str:
    """'data.path: ...' -> 'FILE:LINE: data.path: ...'"""
    key = problem.split(":", 1)[0]
    return f"{sweep.line(key)}: {problem}"
