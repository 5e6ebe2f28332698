"""What `lnexp rescue` found out about a run: the change that prevented its failure is its
cause; and the table of all changes."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from lnexp.lab.schemas import RescueRow
from lnexp.rows import header
from lnexp.terminal.sheet import Column, Sheet
from lnexp.terminal.summary import figure


def rescued(run: Path) -> list[dict[str, str]]:
    """The rows of this run in the table of its sweep's rescue; [] where there is none to read."""
    sweep = run.resolve().parent.parent
    path = sweep.parent / f"{sweep.name}-rescue" / "lab" / "rescue.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error):
        return []
    whole = [row for row in rows if list(row) == header(RescueRow)]
    return [row for row in whole if row["run"] == run.resolve().name]


def is_prevented(outcome: str) -> bool:
    """As rescue/work.py words it, for runs that failed and for those that stayed finite."""
    return outcome.startswith("prevented") or outcome in ("learned instead", "spiked instead")


def is_put_off(outcome: str) -> bool:
    return outcome.startswith("put off")


def rescue_evidence(run: Path) -> Iterator[tuple[str, str, str]]:
    """(name, figures, meaning), as the other evidence of an explanation."""
    rows = rescued(run)
    control = next((row for row in rows if row["change"] == "control"), None)
    if control is None:
        return
    outcomes = [
        f"{row['settings'] or row['change']}: {row['outcome']}"
        for helps in (is_prevented, is_put_off)
        for row in rows
        if helps(row["outcome"])
    ] or [f"none of {len(rows) - 1} changes helped"]
    repeated = control["identical"] == "1" and control["failed_at"] == control["bad_step"]
    meaning = (
        "The same batches again, one change each, one seed: where the failure is gone, what was "
        "changed had a part in it, or moved the run off its narrow path to it."
        if repeated
        else "The control did not repeat the run, so this shows no cause."
    )
    yield "rescue", "; ".join([f"the control: {control['outcome']}", *outcomes]), meaning


COST = (
    "cost: loss in the last step before the failure, minus that of the run itself (nats); loss, "
    "gap: medians of the last 10 % of a run's own steps."
)


def rescue_sheet(rows: Sequence[RescueRow], verdict: str) -> Sheet:
    first = rows[0]
    where = "" if first.bad_step is None else f" at step {first.bad_step}"
    settings = [row.settings if row.change != row.settings else "" for row in rows]
    columns = [
        Column("change", [row.change for row in rows], wraps=True, readable=12),
        Column("setting", settings, rank=3, wraps=True, readable=16),
        Column("outcome", [row.outcome for row in rows], wraps=True, readable=16),
        Column("verdict", [row.verdict for row in rows], rank=1),
        Column("cost", [figure(row.loss_change) for row in rows], number=True, rank=2),
        Column("loss", [figure(row.end_loss) for row in rows], number=True, rank=4),
        Column("gap", [figure(row.end_gap) for row in rows], number=True, rank=5),
    ]
    title = f"{first.run}: {verdict}{where}; again from {from_words(first.from_step)}"
    return Sheet(title, columns, [_control(first), *_from_zero(rows), COST], whole="--json")


def from_words(step: int) -> str:
    return f"the snapshot at step {step}" if step else "the beginning"


def _control(row: RescueRow) -> str:
    if row.identical and row.failed_at == row.bad_step:
        return "The control: the same rows to the bit, and the same end."
    if row.identical:
        return "The control: the same rows to the bit up to the failure, but another end."
    return (
        "The control did NOT repeat the run: other rows. Another machine, thread count or version "
        "computes otherwise, so nothing here shows a cause."
    )


def _from_zero(rows: Sequence[RescueRow]) -> list[str]:
    """Changes that no snapshot can be gone on from."""
    names = [row.change for row in rows if rows[0].from_step and not row.from_step]
    if not names:
        return []
    listed = ", ".join(names)
    return [f"From step 0, as it changes what the weights or Adam's moments mean: {listed}."]
