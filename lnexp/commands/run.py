"""lnexp run: train what is not done, then judge it from the CSVs."""

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from ..claimlog import record_claims
from ..console import say
from ..errors import UserError
from ..lab.measure import measure
from ..lines import amount
from ..progress import Progress
from ..runs.execute import is_done, run_plan
from ..runs.interrupt import Interruption, interruptible
from ..runs.local import Executor
from ..runs.lock import locked
from ..runs.plan import Plan, PlannedRun
from ..runs.rundir import Status, read_status
from .choose import Choice
from .plan import plans
from .resumable import resumable


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
    made = plans(configs, overrides)
    todo = {plan.sweep.name: choice.of(plan, out) for plan in made}
    for plan in made:
        _announce(plan, out, todo[plan.sweep.name], choice)
    if dry_run:
        for run in (run for runs in todo.values() for run in runs):
            print(run.name)
        return 0
    failed, unmeasured = list[str](), list[str]()
    with interruptible() as interruption, ExitStack() as locks:
        for plan in made:  # all of them before run 1
            locks.enter_context(locked(plan.folder(out)))
            if plan.sweep.claims:
                record_claims(plan.folder(out), plan.sweep.claims, datetime.now())
        for at, plan in enumerate(made):
            work = todo[plan.sweep.name]
            statuses = _train(
                plan, out, work, jobs, choice.force, fail_fast, executor, interruption
            )
            failed += [name for name, s in statuses.items() if s.status == "failed"]
            if failed and fail_fast:
                made = made[: at + 1]
                say("--fail-fast: a run failed, so the sweep ends here")
                break
            unmeasured += measure(plan, out, jobs, statuses)
    wrong = [claim for plan in made for claim in _judge(plan, out)]
    if wrong and check:
        say(f"--check: refuted: {', '.join(wrong)}")
    if failed:
        count = amount(len(failed), "run")
        say(f"{count} failed; error.txt in each folder says why: {', '.join(failed)}")
    return 1 if failed or unmeasured or (wrong and check) else 0


def _announce(plan: Plan, out: Path, todo: list[PlannedRun], choice: Choice) -> None:
    for note in plan.notes:
        say(f"note: {note}")
    runs = plan.folder(out) / "runs"
    held = {run.name for run in plan.runs}
    dropped = sorted(p.name for p in runs.iterdir() if p.name not in held) if runs.is_dir() else []
    if dropped:
        count = amount(len(dropped), "run")
        say(
            f"note: {count} on disk, no longer in this config, stay as they are: "
            + ", ".join(dropped)
        )
    chosen = {run.name for run in todo}
    done = {
        run.name: status
        for run in plan.runs
        if is_done(run, runs / run.name) and (status := read_status(runs / run.name))
    }
    again = len(done.keys() & chosen)
    if choice.force and again:
        say(f"note: --force trains {amount(again, 'finished run')} again, from step 0")
    kept = {name: status for name, status in done.items() if name not in chosen}
    timed = [name for name, status in kept.items() if status.status == "interrupted"]
    if timed:
        say(
            f"note: {amount(len(timed), 'run')} used up train.max_seconds before the last step; a "
            "larger one goes on"
        )
    steps = {run.name: run.config.train.steps for run in plan.runs}
    longer = [s.steps_done for name, s in kept.items() if s.steps_done > steps[name]]
    if longer:
        say(
            f"note: {amount(len(longer), 'run')} went further than the steps asked for, up to step "
            f"{max(longer)}: tables and verdicts are of all their steps (-s name=... starts apart)"
        )
    what = f"{len(todo)} to extend" if choice.extend else f"{len(todo)} to train"
    finished = len(kept) - len(timed)
    say(f"{plan.sweep.name}: {amount(len(plan.runs), 'run')}, {finished} finished, {what}")


def _train(
    plan: Plan,
    out: Path,
    todo: list[PlannedRun],
    jobs: int,
    force: bool,
    fail_fast: bool,
    executor: Executor,
    interruption: Interruption,
) -> dict[str, Status]:
    with Progress(plan.folder(out), len(plan.runs), todo, jobs) as progress:
        return run_plan(
            plan,
            out,
            executor=executor,
            todo=todo,
            force=force,
            fail_fast=fail_fast,
            watcher=progress,
            interruption=interruption,
        )


def _judge(plan: Plan, out: Path) -> list[str]:
    """Verdicts and claims come from the CSVs alone; then a learned run's snapshot is cut to its
    weights. Returns the refuted claims."""
    from ..analysis.load import load
    from .claims import judged, refuted
    from .read import print_claims, print_tables

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
    from ..runs.checkpoint import cut_to_weights

    try:
        cut_to_weights(folder)
    except (UserError, OSError) as error:  # the results are there; only the snapshot is not cut
        say(f"note: {error}")
