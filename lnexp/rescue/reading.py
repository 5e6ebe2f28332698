"""What `lnexp rescue` found out about a run: the change that prevented its failure is its cause."""

import csv
from collections.abc import Iterator
from pathlib import Path

from lnexp.lab.schemas import RescueRow
from lnexp.rows import header


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
