"""The whole page as one text: nothing in it is fetched from anywhere. And its section on method:
how numbers, verdicts and causes are made."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lnexp import __version__
from lnexp.claims.judge import ClaimResult
from lnexp.figures import thin
from lnexp.figures.frames import levels
from lnexp.files import plain, write_whole
from lnexp.messages import UserError, amount
from lnexp.report import runtable, sweeps
from lnexp.report.charts import charts, curve_colours, library, outcome_css
from lnexp.report.runs import RunSection, SectionReader, read_section
from lnexp.results.axes import choose_look, dress
from lnexp.results.cells import outcomes
from lnexp.results.load import Results
from lnexp.results.statistics import wilson
from lnexp.results.tables import column
from lnexp.results.verdicts import FAILURES
from lnexp.terminal.summary import cells_sheets, legend

HERE = Path(__file__).parent
DASHES = ("solid", "6 4", "2 3", "6 3 2 3", "9 2 2 2 2 2", "12 5")  # of Bokeh and of SVG

# How each number on the page is made: of docs/metrics.md, against which a test holds each entry.
FORMULAS = {
    "loss": "mean cross entropy of a batch, before the step's update, without z-loss.",
    "gap": "loss - unigram_loss.",
    "unigram_loss": "cross entropy of the same targets under the training text's letter "
    "frequencies, -mean ln p(letter).",
    "ln V": "the loss of a uniform guess over the vocabulary.",
    "H1": "entropy of a letter of the training text.",
    "H2": "entropy of a letter given the one before it.",
    "floor": "H2, or for source: markov the chain's exact entropy rate.",
    "gradient norm": "All norms are L2, before clipping. A total norm is the root of the summed "
    "squares of its parts.",
    "exactly 0": "a 0 means that every element is 0 and an Inf that an element is.",
    "first/last": "gradient norm of block 1 (layer 0) over that of the last block, attention, MLP "
    "and norms together; at the end: median over the last 20 % of the readings.",
    "update ratio": "the same of the updates: Adam rescales, so a vanished gradient is not yet a "
    "vanished update.",
    "End": "median of the last 10 % of the steps, at least 10.",
    "bar": "-0.2 (H1 - floor).",
    "falling": "the median gap of the last quarter lies below that of the quarter before by more "
    "than 0.005 H1.",
    "s (of a spike)": "1.4826 MAD(step differences of the gap) / sqrt 2, the largest of three: "
    "over the 20 steps before, the 60 before, and all.",
    "P(failure)": "(nonfinite + diverged + lost + stalled) / decided runs of one cell, with the "
    "95 % Wilson interval. The unit is the seed.",
    "origin": "the first operation with clean inputs whose output holds a NaN or an Inf.",
}
VERDICT_RULES = {
    "nonfinite": "a NaN or Inf in loss, gradient or parameter",
    "nothing_to_learn": "H1 - floor below 0.05 nat: no verdict possible",
    "diverged": "end loss above 1.1 max(first loss, ln V)",
    "lost": "the running median gap (window: that of End) was below the bar earlier, the end is "
    "not",
    "spiked": "learned, and a gap above the median of the 10 before it by more than 6 s",
    "learned": "end gap below the bar, no spike",
    "too_short": "not learned and still falling, or fewer than 20 steps",
    "stalled": "not learned, not falling, and a measured reason: vanishing, zero_gradient, "
    "rank_collapse, frozen. Printed with its horizon",
    "plateau": "not learned, not falling, no such reason: more steps may still help",
}
CAUSE_RULES = {
    "vanishing": "first/last gradient ratio at the end below 1e-2",
    "exploding": "that ratio above 100, or the total gradient norm grown more than 100-fold",
    "zero_gradient": "the last readings of k of N blocks are exactly 0",
    "rank_collapse": "token cosine of the last block above 0.99 (level full)",
    "frozen": "weights bit-identical to their start: all of them is a reason to stall, some are a "
    "warning",
    "warming_up": "the warm-up is longer than the run",
    "too_slow": "slope of the gap over the last half below 0 by more than two standard errors, but "
    "not falling; or all updates together (sum of update_norm) moved the weights by less than 1 % "
    "of their norm",
    "adam_underflow": "second moments 0 where the first are not, in more than 10 % of the weights "
    "at the end or by an event; a warning for a run that learned",
    "precision": "the failing step is finite in fp64",
    "nonfinite_origin": "phase and module of the first event",
}


def seeds_note() -> str:
    """What few seeds can say."""
    four, three = wilson(4, 4)[0], wilson(3, 3)[0]
    return (
        f"With 4 of 4 seeds failing the interval begins at {four:.2f}, with 3 of 3 at {three:.2f}: "
        "fewer than four seeds cannot put P(failure) above one half."
    )


def write(page: str, path: Path) -> None:
    try:
        write_whole(path, page)
    except OSError as problem:
        why = (problem.strerror or str(problem)).lower()
        raise UserError(f"{path}: cannot be written: {why}") from None


def render(
    results: Results,
    judged: Mapping[str, Sequence[ClaimResult]],
    folders: Mapping[str, Path],
    newest: float,
    *,
    stamp: str = "",
    reader: SectionReader = read_section,
) -> str:
    """`folders`: of each sweep. `stamp`: of a page that is served and asks for newer ones."""
    runs = results.runs
    sections = [reader(Path(folder), thin.cells_each(len(runs))) for folder in runs["folder"]]
    numbers, first = sweeps.cell_numbers(results)
    by_sweep = []
    for name, sheet in zip(results.axes, cells_sheets(results), strict=True):
        own = [one for one, sweep in zip(sections, runs["sweep"], strict=True) if sweep == name]
        claims = judged.get(name, [])
        by_sweep.append(
            sweeps.read_sweep(results, name, sheet, own, claims, folders[name], first[name])
        )
    words = outcomes(runs)
    heads, rows = runtable.table(results, sections)
    names = list(column(runs, "run"))
    parts = zip(runs["sweep"], names, words, rows, sections, strict=True)
    listed = [
        {"id": f"run/{sweep}/{name}", "name": name, "outcome": word, "cells": row, "section": one}
        for sweep, name, word, row, one in parts
    ]
    filters = runtable.filters(results)
    series, of = _series(results)
    squares = {s.cell: s.words for p in by_sweep for _, row in p.rows for some in row for s in some}
    data = {
        "runs": [
            {
                "name": names[i],
                "outcome": words[i],
                "sweep": list(results.axes).index(runs["sweep"].iloc[i]),
                "cell": numbers[i],
                "series": of[i],
                "filters": [one.of[i] for one in filters],
                "curve": sections[i].curve,
                "gradients": sections[i].gradients,
            }
            for i in range(len(runs))
        ],
        "cells": [squares[i] for i in sorted(squares)],
        "series": series,
        "sweeps": [{"name": name} | _levels(results, name) for name in results.axes],
        "first": _most_telling(words, sections),
    }
    title = "lnexp: " + (by_sweep[0].name if len(by_sweep) == 1 else amount(len(by_sweep), "sweep"))
    return _template().render(
        title=title,
        counts=_counts(words),
        newest=datetime.fromtimestamp(newest).strftime("%Y-%m-%d %H:%M"),
        version=__version__,
        notes=results.notes,
        sweeps=by_sweep,
        legend=legend(runs),
        filters=[{"at": at, **vars(one)} for at, one in enumerate(filters)],
        heads=heads,
        rows=listed,
        verdict_at=[head.name for head in heads].index("verdict"),
        series=series,
        thinned=_thinned(sections),
        method=(
            ("Numbers", FORMULAS),
            ("Verdicts, the first that fits", VERDICT_RULES),
            ("Causes", CAUSE_RULES),
        ),
        seeds_note=seeds_note(),
        data=plain(data),
        plots=charts(),
        stamp=stamp,
        outcome_css=Markup(outcome_css()),
        bokeh=Markup(library()),
        **{
            name.replace(".", "_"): Markup((HERE / name).read_text(encoding="utf-8"))
            for name in ("style.css", "charts.js", "script.js")
        },
    )


def _template() -> Any:
    """User text is escaped wherever it stands; only the page's own files are not."""
    loader = FileSystemLoader(HERE, encoding="utf-8")
    env = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    # In their order: BokehJS knows a model only after it was described.
    compact = {"sort_keys": False, "allow_nan": False, "separators": (",", ":")}
    env.policies["json.dumps_kwargs"] = compact
    return env.get_template("template.html")


def _counts(words: Sequence[str]) -> str:
    counts = ", ".join(f"{n} {word.replace('_', ' ')}" for word, n in Counter(words).items())
    return amount(len(words), "run") + (f": {counts}" if counts else "")


def _most_telling(words: Sequence[str], sections: Sequence[RunSection]) -> int:
    """The run that is open at first: a failure, if there is one with a known birth, and a long
    one, which has a history."""
    order = [
        (word not in FAILURES, not one.born, -len(one.curve.get("steps", ())))
        for word, one in zip(words, sections, strict=True)
    ]
    return order.index(min(order)) if order else 0


def _series(results: Results) -> tuple[list[dict[str, str]], list[int]]:
    """The lines of the loss chart in words and colours, and of each run which one it is."""
    series: list[dict[str, str]] = []
    of: dict[tuple[str, str], int] = {}
    for sweep, axes in results.axes.items():
        runs = results.runs.loc[results.runs["sweep"] == sweep].reset_index(drop=True)
        dressed = dress(runs, choose_look(runs, axes))
        colours = curve_colours(list(dressed["hue"]))
        # One panel here, so what would be a panel of its own elsewhere gets a dash of its own.
        dashes = list(dict.fromkeys(zip(dressed["dash"], dressed["facet"], strict=True)))
        known: dict[str, int] = {}
        for row in dressed.to_dict("records"):
            words = ", ".join(filter(None, (row["series"], row["facet"])))
            if words not in known:
                light, dark = colours[row["hue"]]
                dash = DASHES[dashes.index((row["dash"], row["facet"])) % len(DASHES)]
                known[words] = len(series)
                series.append({"words": words, "light": light, "dark": dark, "dash": dash})
            of[sweep, row["run"]] = known[words]
    pairs = zip(results.runs["sweep"], results.runs["run"], strict=True)
    return series, [of[pair] for pair in pairs]


def _levels(results: Results, sweep: str) -> dict[str, Any]:
    """ln V and H1 of the sweep's texts: dotted lines, and what they are."""
    named = levels(results.runs.loc[results.runs["sweep"] == sweep], "ln_v", "h1")
    parts = [f"{name}: {', '.join(map(str, some))}" for name, some in named.items() if some]
    words = f"Dotted: {'; '.join(parts)}." if parts else ""
    return {"levels": [v for some in named.values() for v in some], "levelWords": words}


def _thinned(sections: Sequence[RunSection]) -> str:
    """What the charts leave out, and that nothing else on the page does."""
    some = sum(bool(one.thinned) for one in sections)
    what = (
        f"Thinned for these charts alone in {some} of {amount(len(sections), 'run')} (each run "
        "says what). A long curve keeps its ends, the smallest and the largest value of each "
        "stretch and every first NaN and Inf in it; a cell of a map that stands for several "
        "readings shows the largest, or NaN, Inf or 0 where one of them is."
        if some
        else "Every reading is drawn."
    )
    return f"{what} Verdicts, tables and claims are made from all readings."
