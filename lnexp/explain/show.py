"""An explanation in the terminal, and as strict JSON."""

from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from lnexp.config.rules import caveats
from lnexp.explain.advice import Suggestion
from lnexp.explain.case import Case
from lnexp.explain.explain import Explanation
from lnexp.files import strict_json
from lnexp.records import Autopsy
from lnexp.results.axes import value_text

SCHEMA = 1
# Settings that the words hold for.
HELD = (
    "model.placement", "model.norm", "model.depth", "model.width", "model.init", "train.optimizer",
    "train.lr", "train.warmup", "train.precision",
)  # fmt: skip


def in_words(explanation: Explanation) -> Group:
    """What happened, the evidence, the first bad value, the chain, and what to try."""
    parts: list[Text | Padding] = [
        Text(explanation.diagnosis, style="bold"),
        Text(horizon(explanation.case)),
    ]
    for title, lines in sections(explanation).items():
        parts += [Text(""), Text(title, style="bold")]
        parts += [Padding(Text(line), (0, 0, 0, 2), expand=False) for line in lines]
    return Group(*parts)


def sections(explanation: Explanation) -> dict[str, list[str]]:
    """The paragraphs that have something to say, by title."""
    case = explanation.case
    every = {
        "Evidence": [_evidence(*line) for line in explanation.evidence],
        "Where the first bad value was born": explanation.origin,
        "What left its usual range, in order": [
            f"step {row['step']}: {row['words']}" for row in explanation.chain
        ],
        "Worth trying": _suggestions(explanation.suggestions),
        "Not known": explanation.unknown,
        "Notes": [*caveats([case.settings.get("model.norm")]), *case.notes],
    }
    return {title: lines for title, lines in every.items() if lines}


def _evidence(name: str, figures: str, meaning: str) -> str:
    return f"{name}: {figures}." + (f" {meaning}" if meaning else "")


def _suggestions(suggestions: list[Suggestion]) -> list[str]:
    """What the same figures speak for stands in one line."""
    lines = []
    for because, group in groupby(suggestions, key=lambda suggestion: suggestion.because):
        keys = " or ".join(f"{s.key}: {value_text(s.value)}" for s in group)
        lines.append(f"{keys}  ({because})")
    return lines


def horizon(case: Case) -> str:
    """The settings that the words hold for."""
    settings = case.settings
    words = [
        f"{key.rsplit('.', 1)[-1]} {value_text(settings[key])}" for key in HELD if key in settings
    ]
    if settings.get("model.residual") is False:
        words.append("without residual")
    of = f" of {value_text(settings['train.steps'])}" if "train.steps" in settings else ""
    steps = f"{len(case.steps)}{of} steps"
    origin = case.env.get("imported")
    if isinstance(origin, dict):
        words.append(f"imported from {origin.get('file')}")
        steps = f"{len(case.steps)} rows {case.judgement.horizon}"
    init, data = case.seeds.get("seed_init"), case.seeds.get("seed_data")
    seeds = [] if origin or init is None else [f"seeds {init} (init) and {data} (data)"]
    verdict = case.judgement.verdict or case.process.status
    return f"{case.folder.resolve().name}: {verdict}, {', '.join([*words, steps, *seeds])}"


def _findings(autopsy: Autopsy) -> dict[str, Any]:
    """Of autopsy.json what the run did: not what the file says of itself, nor where wider types
    failed."""
    findings = asdict(autopsy)
    del findings["schema"], findings["seconds"]
    for replay in findings["shadow"].values():
        del replay["origin"]
    return findings


def as_json(explanation: Explanation) -> str:
    """Strict JSON: a non-finite number is "nan", "inf" or "-inf", what was not measured is null."""
    case = explanation.case
    judgement, autopsy = case.judgement, case.autopsy
    value = {
        "schema": SCHEMA,
        "run": case.folder.resolve().name,
        "status": case.process.status,
        "verdict": judgement.verdict,
        "diagnosis": explanation.diagnosis,
        "reason": judgement.reason,
        "causes": {cause.name: cause.evidence for cause in judgement.causes},
        "steps": len(case.steps),
        "seeds": case.seeds,
        "settings": case.settings,
        "numbers": judgement.numbers,
        "evidence": [
            {"name": name, "figures": figures, "meaning": meaning}
            for name, figures, meaning in explanation.evidence
        ],
        "origin": explanation.origin,
        "autopsy": None if autopsy is None else _findings(autopsy),
        "chain": explanation.chain,
        "suggestions": [asdict(suggestion) for suggestion in explanation.suggestions],
        "unknown": explanation.unknown,
        "notes": case.notes,
    }
    return strict_json(value)
