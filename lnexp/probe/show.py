"""The depth profile of each cell as a table, and what theory says beside what was measured."""

from collections.abc import Callable, Iterator, Sequence
from math import isinf
from typing import Any

from lnexp.claims.tests import Spread
from lnexp.messages import amount
from lnexp.probe.laws import Judged
from lnexp.probe.reading import FORMATS, Moment, Profile, Reach
from lnexp.results.axes import setting_text, value_text
from lnexp.terminal.sheet import Column, Sheet, significant

LEGEND = (
    "Means over the seeds [95 % t interval], of ratios and growth in logarithms; n/m: finite in n "
    "of m runs. A seed is an initialisation and a batch. first/last: gradient norm of the first "
    "block over that of the last. Effective depth, smallest to largest: blocks whose skipping "
    "changes the validation loss by more than 0.01 nat, from at most 16 blocks; in the last "
    "column after that step's update."
)
REACH_LEGEND = (
    "forward: the law of the stream's largest element over blocks l, and the depth at which it "
    "overflows fp16, bf16, fp32 (underflows, where it shrinks). backward: that of the RMS of the "
    "stream's gradient, a block toward the input, and the depth at which the first block's does. "
    "Extrapolated; products of such numbers leave earlier. flat: hardly changes; unclear: neither "
    "law fits. A power law is no exponential, and seldom ends below 10^6 blocks."
)
LAW_LEGEND = (
    "met: the interval lies inside the tolerance; not met: outside; else undecided. Slopes are "
    "least squares in logarithms, one a seed; the other figures are means over seeds, at step 0."
)


def spread_text(spread: Spread, digits: int = 3) -> str:
    """'0.522 [0.458, 0.586]', with 4/5 where one of five is not finite or not measured."""
    if spread.mean is None:
        return f"not finite ({spread.nonfinite}/{spread.of})" if spread.nonfinite else "-"
    text = significant(spread.mean, digits)
    if spread.low is not None and spread.high is not None and spread.low < spread.high:
        text += f" [{significant(spread.low, digits)}, {significant(spread.high, digits)}]"
    return text + _some(spread)


def _some(spread: Spread) -> str:
    return "" if spread.n == spread.of else f" {spread.n}/{spread.of}"


def _of(column: str, digits: int = 3) -> Callable[[Moment], str]:
    return lambda moment: spread_text(moment.spreads[column], digits)


def _fitted(exponent: str, r2: str) -> Callable[[Moment], str]:
    """With three decimals: where nothing grows, what rounding leaves is 0.000."""

    def text(moment: Moment) -> str:
        spread = moment.spreads[exponent]
        if spread.mean is None:
            return spread_text(spread)
        ends = f" [{spread.low:.3f}, {spread.high:.3f}]" if spread.low is not None else ""
        fit = f"R2 {significant(moment.spreads[r2].mean)}"
        return f"{spread.mean:.3f}{ends}{_some(spread)}, {fit}"

    return text


def _range(low: str, high: str) -> Callable[[Moment], str]:
    def text(moment: Moment) -> str:
        ends = moment.spreads[low].smallest, moment.spreads[high].largest
        return "-" if None in ends else f"{significant(ends[0])} .. {significant(ends[1])}"

    return text


def _effective(moment: Moment) -> str:
    spread = moment.spreads["effective_depth"]
    if spread.smallest is None or spread.largest is None:
        return ""
    ends = dict.fromkeys((significant(spread.smallest), significant(spread.largest)))
    return f"{' .. '.join(ends)}{_some(spread)} ({moment.skipped} looked at)"


def _reaches(travel: str) -> Iterator[tuple[str, Callable[[Moment], str]]]:
    yield travel, lambda moment: trend_text(moment.reach[travel])
    for kind in FORMATS:
        yield (
            f"  leaves {kind} at depth",
            lambda moment, kind=kind: depth_text(moment.reach[travel], kind),
        )


# A row of a cell's table: its name, and what stands in a step's column.
ROWS: tuple[tuple[str, Callable[[Moment], str]], ...] = (
    ("stream RMS, growth a block", _of("growth_per_block", 4)),
    ("stream RMS ~ l^p: p", _fitted("rms_exponent", "rms_r2")),
    ("variance above start ~ l^p: p", _fitted("variance_exponent", "variance_r2")),
    ("variance added a block", _of("variance_per_block")),
    ("stream RMS, sublayers", _range("rms_min", "rms_max")),
    ("norm input RMS", _range("norm_input_min", "norm_input_max")),
    ("gradient first/last", _of("grad_ratio")),
    ("  a sublayer", _of("grad_per_sublayer", 4)),
    ("  W_Q", _of("wq_ratio")),
    ("  W_V", _of("wv_ratio")),
    ("  W_O", _of("wo_ratio")),
    ("  W1", _of("w1_ratio")),
    ("  W2", _of("w2_ratio")),
    ("W2 of the last block, gradient", _of("w2_last")),
    ("stream gradient first/last", _of("stream_grad_ratio")),
    ("  a sublayer", _of("stream_grad_per_sublayer", 4)),
    ("branch / stream, first", _of("branch_first")),
    ("branch / stream, last", _of("branch_last")),
    ("token cosine, last block", _of("token_cosine_last")),
    ("largest attention score", _of("attn_logit_max")),
    ("LN-inert tokens, share", _of("eps_floor_fraction")),
    ("effective depth", _effective),
    *_reaches("forward"),
    *_reaches("backward"),
)


def sheets(
    name: str, profiles: Sequence[Profile], laws: Sequence[Judged], steps: Sequence[int]
) -> Iterator[Sheet]:
    """One a cell, then that of the laws."""
    for profile in profiles:
        below = [LEGEND, REACH_LEGEND] if profile is profiles[-1] else []
        yield cell_sheet(name, profile, steps, below)
    if laws:
        yield law_sheet(name, laws)


def cell_sheet(name: str, profile: Profile, steps: Sequence[int], below: list[str]) -> Sheet:
    title = f"{name}: {_cell(profile.cell)} ({amount(profile.runs, 'run')})"
    at = {moment.step: moment for moment in profile.moments}
    if not at:
        return Sheet(title, [Column("", ["no reading"])], below, whole="--json")
    lines = [[text(at[s]) if s in at else "-" for s in steps] for _, text in ROWS]
    shown = [i for i, cells in enumerate(lines) if set(cells) - {"", "-"}]
    columns = [Column("", [ROWS[i][0] for i in shown], wraps=True, readable=20)]
    for k, step in enumerate(steps):
        runs = at[step].runs if step in at else 0
        head = f"step {step}" if runs == profile.runs else f"step {step} ({runs}/{profile.runs})"
        cells = [lines[i][k] for i in shown]
        columns.append(Column(head, cells, wraps=True, readable=16, rank=k if k else 0))
    if profile.fit:
        below = [f"Fits: blocks {profile.fit[0]} .. {profile.fit[1]}.", *below]
    return Sheet(title, columns, below, whole="--json")


def _cell(cell: dict[str, Any]) -> str:
    return ", ".join(setting_text(k, value_text(v)) for k, v in cell.items()) or "all runs"


def trend_text(reach: Reach) -> str:
    """'2.31-fold a block, R2 1', 'l^0.53, R2 0.98', 'flat'; 'seeds disagree: ...'."""
    if not reach.agree:
        listed = ", ".join(f"{n} {law or 'too few'}" for law, n in reach.laws.items())
        return f"seeds disagree: {listed}"
    share = f" in {reach.laws[reach.law]} of {sum(reach.laws.values())}" * (len(reach.laws) > 1)
    fit = f"R2 {significant(reach.r2.mean)}"
    match reach.law:
        case "exponential":
            return f"{significant(reach.rate.mean)}-fold a block{share}, {fit}"
        case "power":
            return f"l^{significant(reach.rate.mean)}{share}, {fit}"
        case law:
            return f"{law}{share}" if law else "-"


def depth_text(reach: Reach, kind: str) -> str:
    """'21', '19 .. 22', '19 .. 22 in 3 of 5': of the runs that get there."""
    depths = reach.depths[kind]
    known = [depth for depth in depths if depth is not None]
    if not reach.agree:
        return "-"
    if not known:  # of an unclear trend there are those that were measured
        return "none below 10^6" if reach.law in ("exponential", "power") else "-"
    low, high = min(known), max(known)
    text = str(low) if low == high else f"{low} .. {high}"
    return text if len(known) == len(depths) else f"{text} in {len(known)} of {len(depths)}"


def law_sheet(name: str, laws: Sequence[Judged]) -> Sheet:
    columns = [
        Column("cell", [_cell(law.cell) for law in laws], wraps=True, readable=9),
        Column("what", [law.law.what for law in laws], wraps=True, readable=16),
        Column(
            "expected",
            [f"{law.law.expected} ({law.law.source})" for law in laws],
            wraps=True,
            readable=16,
        ),
        Column("tolerance", [_tolerance(law) for law in laws], rank=1),
        Column("measured", [_measured(law) for law in laws]),
        Column("fit", [law.fit for law in laws], rank=2),
        Column("outcome", [law.outcome for law in laws]),
    ]
    return Sheet(f"{name}: theory and measurement", columns, [LAW_LEGEND], whole="--json")


def _tolerance(law: Judged) -> str:
    low, high = law.law.low, law.law.high
    if isinf(low):
        return f"below {high:g}"
    return f"above {low:g}" if isinf(high) else f"{low:g} .. {high:g}"


def _measured(law: Judged) -> str:
    finding = law.finding
    if finding.estimate is None:
        return f"- (0/{law.of})"
    if finding.of < 2:
        return f"{significant(finding.estimate)} (one seed)"
    ends = f"{significant(finding.low)}, {significant(finding.high)}"
    some = "" if finding.of == law.of else f" {finding.of}/{law.of}"
    return f"{significant(finding.estimate)} [{ends}]{some}"
