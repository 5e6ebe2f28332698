"""A rescue as a table: what saved the run, for how long, and what it cost."""

from collections.abc import Sequence

from lnexp.lab.schemas import RescueRow
from lnexp.terminal.sheet import Column, Sheet
from lnexp.terminal.summary import figure

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
