"""The claims of sweeps, read from their sweep.yaml and judged from their CSVs."""

from collections.abc import Callable
from pathlib import Path

from ..analysis.claims import ClaimResult, judge_claims
from ..analysis.load import Results
from ..claimparse import parse_claims
from ..claimspec import Claim
from ..console import say
from ..errors import UserError
from ..yamlfile import read


def judged(results: Results, tell: Callable[[str], None] = say) -> dict[str, list[ClaimResult]]:
    """Sweep -> its claims' results; sweeps without claims are left out. Notes go to `tell`."""
    found = {}
    for sweep, folder in _folders(results).items():
        claims = _claims(folder / "sweep.yaml", tell)
        if claims:
            found[sweep] = judge_claims(results, claims, sweep)
    return found


def refuted(results: dict[str, list[ClaimResult]]) -> list[str]:
    return [
        claim.id for claims in results.values() for claim in claims if claim.outcome == "refuted"
    ]


def _folders(results: Results) -> dict[str, Path]:
    """Of each sweep: results/<sweep>, from the folder of one of its runs."""
    firsts = results.runs.drop_duplicates("sweep")
    return {
        sweep: Path(run).parent.parent
        for sweep, run in zip(firsts["sweep"], firsts["folder"], strict=True)
    }


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
