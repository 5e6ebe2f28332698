"""lnexp run: train what is not done, then judge it from the CSVs."""

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from ..claimlog import record_claims
from ..console import say
from ..errors import UserError
from ..lines import amount
from ..progress import Progress
from ..runs.execute import is_done, locked, run_plan
from ..runs.interrupt import interruptible
from ..runs.plan import Plan
from ..runs.rundir import Status, read_status
from .plan import plans

INTERRUPTED = 130


def run(
    configs: list[str],
    out: Path,
    overrides: Sequence[str],
    jobs: int,
    force: bool,
    dry_run: bool,
    check: bool,
) -> int:
    """Exit code: 0 done, 1 a run failed to execute or --check found a claim refuted, 130
    interrupted."""
    made = plans(configs, overrides)
    todo = {plan.sweep.name: _todo(plan, out, force) for plan in made}
    for plan in made:
        _announce(plan, out, todo[plan.sweep.name], force)
    if dry_run:
        for name in (name for names in todo.values() for name in names):
            print(name)
        return 0
    failed: list[str] = []
    try:
        with interruptible(), ExitStack() as locks:
            for plan in made:  # all of them before run 1
                locks.enter_context(locked(plan.folder(out)))
                if plan.sweep.claims:
                    record_claims(plan.folder(out), plan.sweep.claims, datetime.now())
            for plan in made:
                statuses = _train(plan, out, todo[plan.sweep.name], jobs, force)
                failed += [name for name, s in statuses.items() if s.status == "failed"]
    except KeyboardInterrupt:
        say("interrupted: what is finished is kept; the same command goes on")
        return INTERRUPTED
    wrong = [claim for plan in made for claim in _judge(plan, out)]
    if wrong and check:
        say(f"--check: refuted: {', '.join(wrong)}")
    if failed:
        count = amount(len(failed), "run")
        say(f"{count} failed; error.txt in each folder says why: {', '.join(failed)}")
    return 1 if failed or (wrong and check) else 0


def _todo(plan: Plan, out: Path, force: bool) -> list[str]:
    runs = plan.folder(out) / "runs"
    return [run.name for run in plan.runs if force or not is_done(run, runs / run.name)]


def _announce(plan: Plan, out: Path, todo: list[str], force: bool) -> None:
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
    finished = [run for run in plan.runs if is_done(run, runs / run.name)]
    if force and finished:
        say(f"note: --force trains {amount(len(finished), 'finished run')} again, from step 0")
    longer = [
        status.steps_done
        for run in finished
        if run.name not in todo
        and (status := read_status(runs / run.name)) is not None
        and status.steps_done > run.config.train.steps
    ]
    if longer:
        say(
            f"note: {amount(len(longer), 'run')} went further than the steps asked for, up to step "
            f"{max(longer)}: tables and verdicts are of all their steps (-s name=... starts apart)"
        )
    done = len(plan.runs) - len(todo)
    say(
        f"{plan.sweep.name}: {amount(len(plan.runs), 'run')}, {done} finished, {len(todo)} to train"
    )


def _train(plan: Plan, out: Path, todo: list[str], jobs: int, force: bool) -> dict[str, Status]:
    steps = {run.name: run.config.train.steps for run in plan.runs}
    with Progress(plan.folder(out), len(plan.runs), len(todo), jobs, steps) as progress:
        return run_plan(plan, out, jobs=jobs, force=force, watcher=progress)


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
