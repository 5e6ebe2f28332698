"""Each form of `expect` on one cell: which runs count as what, and the sentence that says so."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Any, NamedTuple

from lnexp.claims.claims import (
    Bound,
    CauseShare,
    Counted,
    Difference,
    Less,
    MetricShare,
    Same,
    SlopeBetween,
    VerdictShare,
)
from lnexp.claims.metrics import Metrics
from lnexp.claims.tests import Finding, between, every, log_slope, share, sign_test, within
from lnexp.claims.units import Partners, Run, by_seed
from lnexp.config.rules import show
from lnexp.messages import amount
from lnexp.terminal.sheet import significant

# Verdicts on a run whose learning is open: more steps may still help, or nothing can be learned.
OPEN = ("too_short", "plateau", "nothing_to_learn")
LEARNING = ("lost", "spiked", "learned", "stalled")  # what an open run may turn out to be


class CellFinding(NamedTuple):
    """What a cell gave: its finding, the numbers in words, and what is missing."""

    finding: Finding
    words: str
    missing: list[str]


@dataclass(frozen=True)
class Tools:
    metrics: Metrics
    partners: Partners
    axes: Sequence[str]


def judge_cell(spec: Any, runs: Sequence[Run], tools: Tools) -> CellFinding:
    if isinstance(spec, Counted):
        return _counted(spec, runs, tools)
    if isinstance(spec, SlopeBetween):
        return _slope(spec, runs, tools)
    return _paired(spec, runs, tools)


def _counted(spec: Counted, runs: Sequence[Run], tools: Tools) -> CellFinding:
    states: list[bool | None] = []
    missing: list[str] = []
    unclear: list[str] = []
    for run in runs:
        if run.missing:
            missing.append(run.missing)
            continue
        if isinstance(spec, MetricShare):
            value = tools.metrics.of(run, spec.metric)
            if value is None:
                missing.append(f"{run.name}: {spec.metric} not measured")
                continue
            states.append(Bound(op=spec.op, value=spec.value).met(value))
        else:
            states.append(_state(spec, run))
            unclear += [run.verdict] * (states[-1] is None)
    hits, total = states.count(True), len(states)
    if spec.every:
        finding = every(hits, len(unclear), total, len(missing))
    else:
        finding = share(hits, len(unclear), total, spec.share)
    words = f"{hits} of {total} {_what(spec)}"
    if total:
        words += f", share {_interval(finding)}"
    if unclear:
        listed = ", ".join(f"{count} {word}" for word, count in Counter(unclear).items())
        words += f"; open: {listed}"
    return CellFinding(finding, words, missing)


def _state(spec: Counted, run: Run) -> bool | None:
    """Whether the run is of the named kind; None: more steps might have made it so."""
    by = getattr(spec, "by", None)
    if isinstance(spec, VerdictShare):
        named = run.verdict in spec.verdict
        is_open = run.verdict in OPEN and bool(set(spec.verdict) & set(LEARNING))
    else:
        assert isinstance(spec, CauseShare)
        named, is_open = bool(set(run.causes) & set(spec.cause)), False
    if by is not None:
        born = run.figure("first_bad_step")
        named = named and born is not None and born < by
        is_open = is_open or (born is None and (run.figure("steps_done") or 0) < by)
    return True if named else None if is_open else False


def _what(spec: Counted) -> str:
    if isinstance(spec, MetricShare):
        return f"have {spec.metric} {spec.op} {spec.value:g}"
    words = spec.verdict if isinstance(spec, VerdictShare) else getattr(spec, "cause", ())
    by = getattr(spec, "by", None)
    return " or ".join(words) + (f" before step {by}" if by is not None else "")


def _paired(spec: Less | Difference | Same, runs: Sequence[Run], tools: Tools) -> CellFinding:
    """Differences of runs with equal seed and other settings."""
    metric, other = getattr(spec, spec.leads), other_settings(spec)
    differences: list[float] = []
    missing: list[str] = []
    limit = spec.less_than if isinstance(spec, Difference) else 0.0
    for run in runs:
        try:
            value = _difference(run, other, metric, tools)
            if isinstance(limit, dict):  # a difference of differences, against 0
                value -= _difference(_partner(run, limit, tools), other, metric, tools)
        except _NoPair as why:
            missing.append(str(why))
            continue
        if isnan(value) and isinstance(spec, Less):
            value = 0.0  # neither has an end: a tie
        if isnan(value):
            missing.append(f"{run.name}: no difference of two values that are not finite")
        else:
            differences.append(value)
    if isinstance(spec, Same):
        finding = within(differences, spec.within)
        kind = f"within {spec.within:g}"
    else:
        finding = sign_test(differences, 0.0 if isinstance(limit, dict) else limit)
        kind = "less" if isinstance(spec, Less) else f"difference below {_limit(limit)}"
    words = f"{metric}: {kind} in {finding.hits} of {amount(len(differences), 'pair')}"
    if differences:
        words += f", median difference {_interval(finding)}"
    return CellFinding(finding, words, missing)


def other_settings(spec: Any) -> dict[str, Any]:
    """What the other cells of a comparison have; {} where nothing is compared."""
    names = {Less: "than", Difference: "base", Same: "other"}
    return getattr(spec, names[type(spec)]) if type(spec) in names else {}


def _limit(limit: float | dict[str, Any]) -> str:
    return f"that with {_listed(limit)}" if isinstance(limit, dict) else f"{limit:g}"


def _listed(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} {show(value)}" for key, value in settings.items())


class _NoPair(Exception):
    """Which run is missing, and why."""


def _partner(run: Run, settings: dict[str, Any], tools: Tools) -> Run:
    partner = tools.partners.of(run, settings)
    if partner is None:
        raise _NoPair(
            f"{run.name}: no run of equal seed and other settings with {_listed(settings)}"
        )
    return partner


def _difference(run: Run, other: dict[str, Any], metric: Any, tools: Tools) -> float:
    """metric(run) - metric(partner); NaN where both are infinite or one is no number."""
    values = []
    for one in (run, _partner(run, other, tools)):
        if one.missing:
            raise _NoPair(one.missing)
        value = tools.metrics.of(one, metric)
        if value is None:
            raise _NoPair(f"{one.name}: {metric} not measured")
        if isnan(value):
            raise _NoPair(f"{one.name}: {metric} is NaN")
        values.append(value)
    return values[0] - values[1]


def _slope(spec: SlopeBetween, runs: Sequence[Run], tools: Tools) -> CellFinding:
    """One log-log slope a seed, over the values of the setting that the cell has."""
    values = sorted({float(run.settings[spec.over]) for run in runs})
    slopes: list[float] = []
    missing: list[str] = []
    for seed, members in by_seed(runs).items():
        points: dict[float, float] = {}
        gone = [run.missing for run in members if run.missing]
        for run in members:
            value = None if run.missing else tools.metrics.of(run, spec.slope)
            if value is not None:
                points[float(run.settings[spec.over])] = value
            elif not run.missing:
                gone.append(f"{run.name}: {spec.slope} not measured")
        gone = gone or [f"seed {seed[0]}: not every {spec.over}"] * (len(points) < len(values))
        fit = None if gone else log_slope(list(points), list(points.values()))
        if fit is None:
            missing += gone or [f"seed {seed[0]}: {spec.slope} has no slope in logarithms"]
        else:
            slopes.append(fit)
    finding = between(slopes, *spec.between)
    span = f"{values[0]:g} .. {values[-1]:g} ({amount(len(values), 'value')})"
    words = f"{spec.slope} over {spec.over} {span}: slope of {amount(len(slopes), 'seed')}"
    return CellFinding(finding, f"{words} {_interval(finding)}" if slopes else words, missing)


def _interval(finding: Finding) -> str:
    """'0.90 [0.60, 0.98]'"""
    middle = significant(finding.estimate)
    if finding.low == -inf and finding.high == inf:
        return f"{middle} (too few for an interval)"
    return f"{middle} [{finding.low:.3g}, {finding.high:.3g}]"
