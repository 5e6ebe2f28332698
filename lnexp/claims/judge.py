"""Claims judged by measurement: holds, refuted or undecided, with counts and intervals; and which
claims the planned seeds cannot decide.

A claim holds if it holds in every cell, is refuted if it is in one, and is undecided else: cells
are never pooled. What the outcomes would be after Holm's adjustment stands beside them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from lnexp.claims.claims import Claim, Counted, SlopeBetween
from lnexp.claims.forms import Tools, judge_cell, other_settings
from lnexp.claims.metrics import Metrics, NoSuchTable
from lnexp.claims.parse import parse_claims, stated
from lnexp.claims.tests import ALPHA, Finding, Outcome, holm, median_interval, share
from lnexp.claims.units import Partners, Run, cells, has, matching, planned, runs_of, tune
from lnexp.config.document import read
from lnexp.config.rules import show
from lnexp.config.sweep import Point
from lnexp.messages import UserError, amount, say
from lnexp.results.load import Results

ROUNDING = 1e-9  # of a p-value at its bound
MOST_SEEDS = 1000


@dataclass(frozen=True)
class CellResult:
    """One cell: n of m, an estimate with its 95 % interval, and what is missing, by name."""

    settings: dict[str, Any]  # of the sweep's axes; the chosen value of best_over too
    steps: str  # the horizon: "60", or "20..60"
    finding: Finding
    words: str
    missing: list[str]

    @property
    def outcome(self) -> Outcome:
        return self.finding.outcome

    @property
    def text(self) -> str:
        """'model.placement post: holds, 9 of 10 nonfinite, share 0.9 [0.596, 0.982], 60 steps'"""
        cell = ", ".join(f"{key} {show(value)}" for key, value in self.settings.items())
        text = f"{cell}: {self.outcome}, {self.words}" if cell else f"{self.outcome}, {self.words}"
        text += f", {self.steps} steps" if self.steps else ""
        return text + (f"; missing: {', '.join(self.missing)}" if self.missing else "")


@dataclass(frozen=True)
class ClaimResult:
    id: str
    says: str
    source: str
    stated: str  # "stated before", "added after"
    outcome: Outcome
    text: str  # "holds in 2 of 3 cells", or why it is undecided
    cells: list[CellResult] = field(default_factory=list)
    p: float | None = None  # two-sided, of the outcome; None: not judged by a test
    p_adjusted: float | None = None
    adjusted: Outcome = "undecided"  # the outcome after Holm's adjustment

    @property
    def judged(self) -> bool:
        """Whether there was anything to judge it by."""
        return any(cell.finding.of for cell in self.cells)


def judged(results: Results, tell: Callable[[str], None] = say) -> dict[str, list[ClaimResult]]:
    """Sweep -> the results of the claims in its sweep.yaml; sweeps without claims are left out.
    Notes go to `tell`."""
    of_sweeps = {}
    firsts = results.runs.drop_duplicates("sweep")
    for sweep, run in zip(firsts["sweep"], firsts["folder"], strict=True):
        if claims := _claims(Path(run).parent.parent / "sweep.yaml", tell):
            of_sweeps[sweep] = judge_claims(results, claims, sweep)
    return of_sweeps


def _claims(path: Path, tell: Callable[[str], None]) -> list[Claim]:
    try:
        document = read(path)
    except UserError as problem:
        tell(f"note: no claims read: {problem}")
        return []
    raw = document.value.get("claims", []) if isinstance(document.value, dict) else []
    claims, problems = parse_claims(
        raw if isinstance(raw, list) else [],
        lambda *at: f"{path}:{document.mark(at).line}",
    )
    for problem in problems:
        tell(f"note: {problem}")
    return claims


def refuted(results: dict[str, list[ClaimResult]]) -> list[str]:
    return [
        claim.id for claims in results.values() for claim in claims if claim.outcome == "refuted"
    ]


def judge_claims(results: Results, claims: Sequence[Claim], sweep: str) -> list[ClaimResult]:
    """All claims of one sweep, in their order."""
    runs = runs_of(results.runs, sweep)
    labels = stated(runs[0].folder.parent.parent, claims) if runs else {}
    metrics = Metrics(results, sweep)
    axes = results.axes.get(sweep, [])
    return _adjusted([_judge(claim, runs, axes, metrics, labels) for claim in claims])


def tally(results: Sequence[ClaimResult]) -> str:
    """How many claims were judged, and what that does to their outcomes."""
    tested = sum(result.p is not None for result in results)
    by_rule = sum(result.judged for result in results) - tested
    text = f"{amount(len(results), 'claim')}: {tested} judged by a test"
    text += f", {by_rule} by a rule without one" if by_rule else ""
    none = len(results) - tested - by_rule
    text += f", {none} not judged" if none else ""
    changed = [r.id for r in results if r.adjusted != r.outcome]
    if not changed:
        return text + "; adjusted for their number (Holm), all outcomes stay."
    return text + f"; adjusted for their number (Holm), undecided: {', '.join(changed)}."


def _judge(
    claim: Claim,
    runs: Sequence[Run],
    axes: Sequence[str],
    metrics: Metrics,
    labels: dict[str, str],
) -> ClaimResult:
    blank = ClaimResult(
        claim.id, claim.says, claim.source, labels.get(claim.id, ""), "undecided", ""
    )
    selection = select(claim, runs, axes)
    if selection.problem:
        return replace(blank, text=selection.problem)
    tools = Tools(metrics, selection.partners, selection.axes)
    try:
        of_cells = [_cell(claim, group, tools) for group in selection.cells]
    except NoSuchTable as why:
        return replace(blank, text=str(why))
    counts = Counter(cell.outcome for cell in of_cells)
    outcome: Outcome = "holds" if counts["holds"] == len(of_cells) else "undecided"
    if counts["refuted"]:
        outcome = "refuted"
    text = ", ".join(
        f"{word} in {counts[word]} of {amount(len(of_cells), 'cell')}"
        for word in ("holds", "refuted", "undecided")
        if counts[word]
    )
    return replace(blank, outcome=outcome, text=text, cells=of_cells, p=_p(outcome, of_cells))


@dataclass(frozen=True)
class Selection:
    """The cells that a claim is about, and where their partners are."""

    cells: list[list[Run]]
    axes: list[str]
    partners: Partners
    problem: str = ""


def select(claim: Claim, runs: Sequence[Run], axes: Sequence[str]) -> Selection:
    spec = claim.expect
    rest = list(axes)
    key = spec.best_over
    if key is not None:
        if key in claim.where:  # the choice is among these values, on both sides
            runs = matching(runs, {key: claim.where[key]})
        tuned = tune(runs, axes, key, spec.tune_seeds)
        if tuned.problem:
            return Selection([], rest, Partners([]), tuned.problem)
        runs, rest = tuned.runs, tuned.axes
    here = matching(runs, claim.where)
    if other := other_settings(spec):
        here = [run for run in here if not has(run, other)]
    if isinstance(limit := getattr(spec, "less_than", None), dict):
        here = [run for run in here if not has(run, limit)]
    problem = "" if here else f"no run of this sweep has {_where(claim)}"
    if isinstance(spec, SlopeBetween):
        rest = [axis for axis in rest if axis != spec.over]
        if not problem and not _numeric(here, spec.over):
            problem = f"{spec.over} takes no two numbers above 0 here"
    return Selection(cells(here, rest), rest, Partners(runs, key), problem)


def _where(claim: Claim) -> str:
    listed = (f"{key} {' or '.join(map(show, v))}" for key, v in claim.where.items())
    return ", ".join(listed) or "other settings than those it is compared with"


def _numeric(runs: Sequence[Run], key: str) -> bool:
    values = {run.settings[key] for run in runs}
    return len(values) > 1 and all(type(v) in (int, float) and 0 < v < inf for v in values)


def _cell(claim: Claim, runs: Sequence[Run], tools: Tools) -> CellResult:
    shown = [*tools.axes, *([claim.expect.best_over] if claim.expect.best_over else [])]
    steps = sorted({int(s) for r in runs if (s := r.figure("steps_done")) is not None})
    span = "" if not steps else f"{steps[0]}" if len(steps) == 1 else f"{steps[0]}..{steps[-1]}"
    settings = {key: runs[0].settings[key] for key in shown}
    return CellResult(settings, span, *judge_cell(claim.expect, runs, tools))


def _p(outcome: Outcome, of_cells: Sequence[CellResult]) -> float | None:
    """Two-sided, of the claim as a whole; None: a rule judged it, or nothing did.

    To hold it must in all m cells, so the largest p counts; to be refuted one will do, so the
    smallest counts, m times.
    """
    tests = [cell.finding for cell in of_cells]
    if not any(test.of for test in tests):
        return None
    holds = [test.p_holds for test in tests if test.p_holds is not None]
    refuted = [test.p_refuted for test in tests if test.p_refuted is not None]
    if not holds or not refuted:
        return None
    against, for_it = len(refuted) * min(refuted), max(holds)
    one_sided = {"holds": for_it, "refuted": against, "undecided": min(for_it, against)}[outcome]
    return min(1.0, 2 * one_sided)


def _adjusted(results: list[ClaimResult]) -> list[ClaimResult]:
    """A decision of a rule stays; one of a test must survive Holm's adjustment."""
    ps = iter(holm([result.p for result in results if result.p is not None]))
    adjusted = []
    for result in results:
        p = next(ps) if result.p is not None else None
        lost = p is not None and p > ALPHA * (1 + ROUNDING)
        outcome: Outcome = "undecided" if lost else result.outcome
        adjusted.append(replace(result, p_adjusted=p, adjusted=outcome))
    return adjusted


# Before any run.


def undecidable(claims: Sequence[Claim], points: Sequence[Point]) -> list[str]:
    """A line for each claim that cannot hold, be refuted, or either, however the runs come out."""
    runs = planned(points)
    axes = list(dict.fromkeys(key for point in points for key in point.settings))
    lines = []
    for claim in claims:
        selection = select(claim, runs, axes)
        if selection.problem:
            lines.append(f"claim {claim.id}: cannot be decided: {selection.problem}")
            continue
        paired = selection.cells
        if other := other_settings(claim.expect):
            paired = [[r for r in c if selection.partners.of(r, other)] for c in paired]
        seeds = min(len({run.seed for run in cell}) for cell in paired)
        if not seeds:
            lines.append(f"claim {claim.id}: cannot be decided: some cell has no partner")
        elif problem := _problem(claim, seeds):
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
        outcomes: set[Outcome] = {share(k, 0, seeds, spec.share).outcome for k in (0, seeds)}
        outcomes.discard("undecided")
        return outcomes
    if isinstance(spec, SlopeBetween):
        return {"holds", "refuted"} if seeds > 1 else set()
    decided = median_interval([0.0] * seeds) != median_interval([])
    return {"holds", "refuted"} if decided else set()
