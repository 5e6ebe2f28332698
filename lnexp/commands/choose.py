"""Which runs of a plan a call of `lnexp run` trains, and how far."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from ..analysis.load import load
from ..analysis.verdicts import VERDICTS
from ..console import say
from ..errors import UserError
from ..lines import amount
from ..runs.execute import is_done
from ..runs.plan import Plan, PlannedRun, with_steps
from ..runs.rundir import read_status

RETRY = ("failed", "interrupted", "all")


@dataclass(frozen=True)
class Choice:
    force: bool = False
    retry: str = "all"
    extend: str = ""  # verdicts, with commas
    steps: str = ""  # 2x or 500

    def check(self) -> None:
        """Raises UserError where the options do not go together."""
        if self.retry not in RETRY:
            raise UserError(f"--retry {self.retry}: one of {', '.join(RETRY)}")
        if bool(self.extend) != bool(self.steps):
            raise UserError("--extend and --steps go together: --extend too_short --steps 2x")
        if self.extend and (self.force or self.retry != "all"):
            other = "--force" if self.force else "--retry"
            raise UserError(f"--extend goes on with finished runs; write it without {other}")
        for verdict in self.verdicts:
            if verdict not in EXTENDABLE:
                known = ", ".join(EXTENDABLE)
                raise UserError(f"--extend {verdict}: not a verdict to go on from ({known})")
        if self.extend:
            _target(self.steps, 1)

    @property
    def verdicts(self) -> list[str]:
        return self.extend.split(",") if self.extend else []

    def of(self, plan: Plan, out: Path) -> list[PlannedRun]:
        if self.extend:
            return extended(plan, out, self.verdicts, self.steps)
        runs = plan.folder(out) / "runs"
        return [
            run
            for run in plan.runs
            if self.retry in ("all", ended_as(runs / run.name))
            and (self.force or not is_done(run, runs / run.name))
        ]


EXTENDABLE = tuple(verdict for verdict in VERDICTS if verdict != "nonfinite")


def ended_as(folder: Path) -> str:
    """finished, failed, interrupted; pending where the run never began."""
    if status := read_status(folder):
        return status.status
    return "interrupted" if folder.exists() else "pending"


def extended(plan: Plan, out: Path, verdicts: Sequence[str], steps: str) -> list[PlannedRun]:
    """Finished runs with such a verdict, and those whose extension was interrupted, which go on
    to where they were going."""
    folder = plan.folder(out)
    if not (folder / "points.json").exists():
        raise UserError(f"{folder}: nothing here to extend; train it first, without --extend")
    table = load(folder).runs
    fields = ("run", "status", "verdict")
    counts = (table[name].fillna(0).astype(int) for name in ("train.steps", "steps_done"))
    rows = zip(*(table[name] for name in fields), *counts, strict=True)
    known = {run.name: run for run in plan.runs}
    chosen: list[PlannedRun] = []
    refused: list[PlannedRun] = []
    for name, status, verdict, asked, done in rows:
        if (run := known.get(name)) is None:
            continue
        if status == "finished" and verdict in verdicts:
            target = _target(steps, done)
        elif status in ("failed", "interrupted") and asked > run.config.train.steps:
            target = asked
        else:
            continue
        if run.config.train.schedule != "constant":
            refused.append(run)
        elif target > done:
            chosen.append(with_steps(run, target))
    if refused:
        schedules = ", ".join(dict.fromkeys(run.config.train.schedule for run in refused))
        why = (
            f"{plan.sweep.name}: {amount(len(refused), 'run')} with train.schedule {schedules} "
            "cannot be extended: the learning rate was planned for its steps, so more steps are "
            "another run; write train.steps in the config"
        )
        if not chosen:
            raise UserError(why)
        say(f"note: {why}")
    return chosen


def _target(steps: str, done: int) -> int:
    """2x: twice the steps done; 500: so many in all."""
    if not re.fullmatch(r"\d+|\d+(\.\d+)?x", steps):
        raise UserError(f"--steps {steps}: write a factor on the steps done (2x) or a number (500)")
    if not steps.endswith("x"):
        return int(steps)
    if (factor := float(steps[:-1])) <= 1:
        raise UserError(f"--steps {steps}: write a factor above 1")
    return ceil(factor * done)
