"""Which claims the planned seeds cannot decide, however the runs come out."""

from collections.abc import Sequence

from lnexp.analysis.claimforms import other_settings
from lnexp.analysis.claims import select
from lnexp.analysis.claimtests import Outcome, median_interval, share
from lnexp.analysis.claimunits import planned
from lnexp.claimspec import Claim, Counted, SlopeBetween
from lnexp.lines import amount
from lnexp.sweep import Point

MOST_SEEDS = 1000


def undecidable(claims: Sequence[Claim], points: Sequence[Point]) -> list[str]:
    """A line for each claim that cannot hold, be refuted, or either."""
    runs = planned(points)
    axes = list(dict.fromkeys(key for point in points for key in point.settings))
    lines = []
    for claim in claims:
        selection = select(claim, runs, axes)
        if selection.problem:
            lines.append(f"claim {claim.id}: cannot be decided: {selection.problem}")
            continue
        other = other_settings(claim.expect)
        if other:
            paired = [[r for r in c if selection.partners.of(r, other)] for c in selection.cells]
        else:
            paired = selection.cells
        seeds = min(len({run.seed for run in cell}) for cell in paired)
        if not seeds:
            lines.append(f"claim {claim.id}: cannot be decided: some cell has no partner")
            continue
        if problem := _problem(claim, seeds):
            lines.append(f"claim {claim.id}: {problem}")
    return lines


def _problem(claim: Claim, seeds: int) -> str:
    can = possible(claim, seeds)
    given = amount(seeds, "seed") + (" to judge" if claim.expect.best_over else "")
    if can >= {"holds", "refuted"}:
        return ""
    both = (n for n in range(seeds + 1, MOST_SEEDS) if possible(claim, n) >= {"holds", "refuted"})
    enough = next(both, None)
    more = f"; {enough} seeds can decide it both ways" if enough else ""
    if not can:
        return f"{given} cannot decide it{more}"
    if "holds" not in can:
        return f"{given} can refute it, but it cannot hold{more}"
    return f"{given} can show that it holds, but cannot refute it{more}" if enough else ""


def possible(claim: Claim, seeds: int) -> set[Outcome]:
    """The outcomes other than undecided that so many seeds of one cell can have."""
    spec = claim.expect
    if isinstance(spec, Counted):
        if spec.every:
            return {"holds", "refuted"} if seeds else set()
        found: set[Outcome] = {share(k, 0, seeds, spec.share).outcome for k in (0, seeds)}
        found.discard("undecided")
        return found
    if isinstance(spec, SlopeBetween):
        return {"holds", "refuted"} if seeds > 1 else set()
    decided = median_interval([0.0] * seeds) != median_interval([])
    return {"holds", "refuted"} if decided else set()
