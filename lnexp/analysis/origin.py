"""Where the first non-finite value was born, as the tables and events tell it."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lnexp.analysis.table import column, numbers

ROLES = ("origin", "", "propagated")  # whom to believe first; empty: not examined


@dataclass(frozen=True)
class Origin:
    """The first non-finite value."""

    step: int
    place: str = ""  # "inf in backward, blocks.3.mlp (aten.mul)"; empty: no event tells


def find_origin(
    steps: pd.DataFrame, events: pd.DataFrame, recorded: int | None, dynamic_scaling: bool
) -> Origin | None:
    """The first NaN or Inf in a loss, gradient or parameter; `recorded`: what status.json says."""
    step = column(steps, "step").to_numpy()
    loss = numbers(column(steps, "loss"))
    bad = ~np.isfinite(loss) & column(steps, "loss").notna().to_numpy()
    # What dynamic loss scaling skips is its search for a scale, as long as the loss is a number.
    skipped = dynamic_scaling & (numbers(column(steps, "skipped")) == 1) & ~bad
    # A norm can overflow over finite elements: then only NaN counts.
    kinds = column(events, "kind")
    overflow = bool((kinds == "norm_overflow").any())
    elements = column(steps, "nonfinite_grads")
    for name in ("grad_norm", "weight_norm", "update_norm"):
        values = numbers(column(steps, name))
        wrong = np.isnan(values) if overflow else ~np.isfinite(values)
        wrong &= column(steps, name).notna().to_numpy()
        if name == "grad_norm":
            wrong = np.where(elements.notna().to_numpy(), numbers(elements) > 0, wrong)
        bad |= wrong & ~skipped
    told = events.to_dict("records")
    # Skips in a row that ended the run were no search: then what they hid counts.
    ended = [event["step"] for event in told if event["kind"] == "skips_in_a_row"]
    unskipped = [
        event
        for event in told
        if event["kind"] in ("nan", "inf")
        and (
            ended
            or event["step"] == recorded
            or not (event["phase"] == "backward" and event["step"] in step[skipped])
        )
    ]
    known = [*step[bad][:1], *ended, *(event["step"] for event in unskipped)]
    if recorded is None and not known:
        return None
    at = int(min(known) if recorded is None else recorded)
    if not unskipped:
        return Origin(at)
    first = min(unskipped, key=lambda e: (e["step"] != at, ROLES.index(e["role"]), e["step"]))
    where = f", {first['module']}" if first["module"] else ""
    op = f" ({first['op']})" if first["op"] else ""
    return Origin(at, f"{first['kind']} in {first['phase']}{where}{op}")
