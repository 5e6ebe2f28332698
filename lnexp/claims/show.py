"""Claims and how they came out: for the terminal and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group

from lnexp.claims.judge import CellResult, ClaimResult, tally
from lnexp.files import strict_json
from lnexp.messages import one_line
from lnexp.results.axes import setting_text, value_text
from lnexp.terminal.sheet import Column, Sheet

LEGEND = (
    "A claim holds if it holds in every cell, is refuted if it is in one, and is undecided else; "
    "[95 % interval]."
)


def claims_table(judged: Mapping[str, Sequence[ClaimResult]]) -> Group:
    """The claims of each sweep, and below them their cells."""
    return Group(*(s for sweep, results in judged.items() for s in claims_sheets(sweep, results)))


def claims_json(judged: Mapping[str, Sequence[ClaimResult]]) -> str:
    """Strict JSON; an infinite limit is "inf" or "-inf"."""
    value = {
        sweep: {"tally": tally(results), "claims": [_record(result) for result in results]}
        for sweep, results in judged.items()
    }
    return strict_json(value)


def claims_sheets(sweep: str, results: Sequence[ClaimResult]) -> list[Sheet]:
    """The claims of one sweep, and the cells that they were judged in."""
    if not results:
        return []
    claims = Sheet(
        f"{sweep}: claims",
        [
            Column("claim", [result.id for result in results]),
            Column("outcome", [_outcome(result) for result in results], wraps=True),
            Column("in", [result.text for result in results], wraps=True),
            Column("stated", [result.stated for result in results], rank=2, wraps=True),
            Column(
                "says",
                [one_line(result.says) for result in results],
                rank=1,
                wraps=True,
                readable=24,
            ),
            Column("source", [one_line(result.source) for result in results], rank=3, wraps=True),
        ],
        [tally(results), LEGEND],
        whole="--json",
    )
    pairs = [(result, cell) for result in results for cell in result.cells]
    if not pairs:
        return [claims]
    cells = Sheet(
        f"{sweep}: claims by cell",
        [
            Column("claim", [result.id for result, _ in pairs]),
            Column("cell", [_cell_text(cell) for _, cell in pairs], wraps=True),
            Column("outcome", [cell.outcome for _, cell in pairs]),
            Column("measured", [one_line(cell.words) for _, cell in pairs], wraps=True),
            Column("steps", [cell.steps for _, cell in pairs], number=True, rank=2),
            Column("missing", [str(len(c.missing) or "") for _, c in pairs], number=True, rank=1),
        ],
        [
            one_line(f"missing in {result.id}, {_cell_text(cell)}: {'; '.join(cell.missing)}")
            for result, cell in pairs
            if cell.missing
        ],
        whole="--json",
    )
    return [claims, cells]


def _outcome(result: ClaimResult) -> str:
    if result.adjusted == result.outcome:
        return result.outcome
    return f"{result.outcome} (adjusted: {result.adjusted})"


def _cell_text(cell: CellResult) -> str:
    named = (setting_text(key, value_text(value)) for key, value in cell.settings.items())
    return ", ".join(named) or "all"


def _record(result: ClaimResult) -> dict[str, Any]:
    claim = (
        "id", "says", "source", "stated", "outcome", "adjusted", "p", "p_adjusted", "text",
    )  # fmt: skip
    return {name: getattr(result, name) for name in claim} | {
        "cells": [
            {
                "settings": cell.settings,
                "steps": cell.steps,
                "outcome": cell.outcome,
                **{
                    name: getattr(cell.finding, name)
                    for name in ("hits", "of", "estimate", "low", "high")
                },
                "text": cell.words,
                "missing": cell.missing,
            }
            for cell in result.cells
        ],
    }
