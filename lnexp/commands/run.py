"""lnexp run: which runs of a plan a call trains and how far, then what the CSVs say of them."""

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from pathlib import Path

from lnexp.claims.parse import record_claims
from lnexp.commands.jobs import resumable
from lnexp.commands.training import Training
from lnexp.lab.measure import measure
from lnexp.messages import UserError, amount, say
from lnexp.results.load import load
from lnexp.results.verdicts import VERDICTS
from lnexp.runs.execute import Earlier, earlier_runs
from lnexp.runs.local import Executor
from lnexp.runs.plan import Plan, PlannedRun, plans, with_steps
from lnexp.runs.rundir import locked
from lnexp.runs.stop import interruptible

RETRY = ("failed", "interrupted", "all")
EXTENDABLE = tuple(verdict for verdict in VERDICTS if verdict != "nonfinite")


@dataclass(frozen=True)
class Choice:
    """What the options say of which runs to train."""

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

    def of(self, plan: Plan, out: Path, earlier: Mapping[str, Earlier]) -> list[PlannedRun]:
        """`earlier`: of each run's name."""
        if self.extend:
            return extended(plan, out, self.verdicts, self.steps)
        return [
            run
            for run in plan.runs
            if self.retry in ("all", earlier[run.name].ended_as)
            and (self.force or not earlier[run.name].done)
        ]


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


@resumable
def run(
    configs: list[str],
    out: Path,
    overrides: Sequence[str],
    jobs: int,
    choice: Choice,
    dry_run: bool,
    check: bool,
    fail_fast: bool,
    executor: Executor,
) -> int:
    """Exit code: 0 done, 1 a run failed to execute or --check found a claim refuted, 130
    interrupted."""
    choice.check()
    planned = plans(configs, overrides)
    earlier = {plan.sweep.name: earlier_runs(plan, out) for plan in planned}
    todo = {p.sweep.name: choice.of(p, out, earlier[p.sweep.name]) for p in planned}
    for plan in planned:
        _announce(plan, out, todo[plan.sweep.name], choice, earlier[plan.sweep.name])
    if dry_run:
        for run in (run for runs in todo.values() for run in runs):
            print(run.name)
        return 0
    unmeasured: list[str] = []
    with interruptible() as interruption, ExitStack() as locks:
        for plan in planned:  # all of them before run 1
            locks.enter_context(locked(plan.folder(out)))
            if plan.sweep.claims:
                record_claims(plan.folder(out), plan.sweep.claims, datetime.now())
        training = Training(out, jobs, interruption, executor)
        for at, plan in enumerate(planned):
            statuses = training.train(
                plan, todo[plan.sweep.name], force=choice.force, fail_fast=fail_fast
            )
            if training.failed and fail_fast:
                planned = planned[: at + 1]
                say("--fail-fast: a run failed, so the sweep ends here")
                break
            unmeasured += measure(plan, out, jobs, statuses)
    wrong = [claim for plan in planned for claim in _judge(plan, out)]
    if wrong and check:
        say(f"--check: refuted: {', '.join(wrong)}")
    if failed := training.failed:
        count = amount(len(failed), "run")
        say(f"{count} failed; error.txt in each folder says why: {', '.join(failed)}")
    return 1 if failed or unmeasured or (wrong and check) else 0


def _announce(
    plan: Plan,
    out: Path,
    todo: list[PlannedRun],
    choice: Choice,
    earlier: Mapping[str, Earlier],
) -> None:
    """What stands beside the runs to train, and how many there are."""
    notes = list(plan.notes)
    runs = plan.folder(out) / "runs"
    names = {run.name for run in plan.runs}
    dropped = sorted(p.name for p in runs.iterdir() if p.name not in names) if runs.is_dir() else []
    if dropped:
        count = amount(len(dropped), "run")
        listed = ", ".join(dropped)
        notes.append(f"{count} on disk, no longer in this config, stay as they are: {listed}")
    chosen = {run.name for run in todo}
    done = {name: run.status for name, run in earlier.items() if run.done and run.status}
    again = len(done.keys() & chosen)
    if choice.force and again:
        notes.append(f"--force trains {amount(again, 'finished run')} again, from step 0")
    resting = {name: status for name, status in done.items() if name not in chosen}
    timed = [name for name, status in resting.items() if status.status == "interrupted"]
    if timed:
        notes.append(
            f"{amount(len(timed), 'run')} used up train.max_seconds before the last step; a larger "
            "one goes on"
        )
    steps = {run.name: run.config.train.steps for run in plan.runs}
    longer = [s.steps_done for name, s in resting.items() if s.steps_done > steps[name]]
    if longer:
        notes.append(
            f"{amount(len(longer), 'run')} went further than the steps asked for, up to step "
            f"{max(longer)}: tables and verdicts are of all their steps (-s name=... starts apart)"
        )
    for note in notes:
        say(f"note: {note}")
    what = f"{len(todo)} to extend" if choice.extend else f"{len(todo)} to train"
    finished = len(resting) - len(timed)
    say(f"{plan.sweep.name}: {amount(len(plan.runs), 'run')}, {finished} finished, {what}")


def _judge(plan: Plan, out: Path) -> list[str]:
    """Verdicts and claims come from the CSVs alone; then a learned run's snapshot is cut to its
    weights. Returns the refuted claims."""
    from lnexp.claims.judge import judged, refuted
    from lnexp.commands.read import print_claims, print_tables

    results = load(plan.folder(out))
    print_tables(results)
    keep = {run.name: run.config.measure.keep for run in plan.runs}
    for folder, verdict in zip(results.runs["folder"], results.runs["verdict"], strict=True):
        if verdict in ("learned", "nothing_to_learn") and keep[Path(folder).name] == "weights":
            _cut(Path(folder))
    claims = judged(results) if plan.sweep.claims else {}
    print_claims(claims)
    return refuted(claims)


def _cut(folder: Path) -> None:
    from lnexp.runs.checkpoint import cut_to_weights

    try:
        cut_to_weights(folder)
    except (UserError, OSError) as error:  # the results are there; only the snapshot is not cut
        say(f"note: {error}")
