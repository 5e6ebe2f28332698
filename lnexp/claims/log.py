"""When a claim was first stated: claims.json of a sweep folder, written by rename.

Free of torch and pandas, so that both halves may import it.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from lnexp.claims.claims import Claim
from lnexp.files import strict_json, write_whole

FILE = "claims.json"
BEFORE, AFTER = "stated before", "added after"


def claim_hash(claim: Claim) -> str:
    """SHA-256 of what the claim says, where and what it expects; its id and source may change."""
    meaning = claim.model_dump(mode="json", include={"says", "where", "expect"})
    text = json.dumps(meaning, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


def claims_hash(claims: Sequence[Claim]) -> str:
    """SHA-256 of all claims, whatever their order."""
    return sha256("".join(sorted(map(claim_hash, claims))).encode()).hexdigest()


def record_claims(sweep: Path, claims: Sequence[Claim], now: datetime) -> None:
    """Keep when each claim was first seen, and how many runs had rows by then.

    Call it before the first run starts. Entries stay for good: a claim that changes is a new one.
    """
    seen = {entry["sha256"]: entry for entry in _entries(sweep)}
    begun = sum(1 for _ in sweep.glob("runs/*/steps.csv"))
    for claim in claims:
        digest = claim_hash(claim)
        first = {"sha256": digest, "first_seen": now.isoformat(timespec="seconds")}
        kept = seen.get(digest, {**first, "runs_begun": begun})
        seen[digest] = {**kept, "id": claim.id}
    value = {"schema": 1, "sha256": claims_hash(claims), "claims": list(seen.values())}
    write_whole(sweep / FILE, strict_json(value))


def stated(sweep: Path, claims: Sequence[Claim]) -> dict[str, str]:
    """'stated before' or 'added after' the first run, by the claim's id.

    A claim that was never recorded counts as added after.
    """
    before = {entry["sha256"] for entry in _entries(sweep) if entry["runs_begun"] == 0}
    return {claim.id: BEFORE if claim_hash(claim) in before else AFTER for claim in claims}


def _entries(sweep: Path) -> list[dict[str, Any]]:
    """The whole entries of claims.json; none where it is missing or damaged."""
    try:
        value = json.loads((sweep / FILE).read_text(encoding="utf-8"))
        found = value["claims"]
        return [e for e in found if isinstance(e["sha256"], str) and type(e["runs_begun"]) is int]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []
