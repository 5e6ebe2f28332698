import json
from datetime import UTC, datetime

from lnexp.claims.parse import AFTER, BEFORE, claim_hash, claims_hash, record_claims, stated
from tests.results.tables import POST, claim

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def begin_run(sweep):
    (sweep / "runs" / "r0").mkdir(parents=True)
    (sweep / "runs" / "r0" / "steps.csv").write_text("step\n")


def test_a_claim_recorded_before_the_first_run_stays_stated_before(tmp_path):
    first, later = claim({"verdict": "learned"}, "first"), claim({"verdict": "lost"}, "later")
    record_claims(tmp_path, [first], NOW)
    begin_run(tmp_path)
    record_claims(tmp_path, [first, later], NOW)
    assert stated(tmp_path, [first, later]) == {"first": BEFORE, "later": AFTER}
    kept = json.loads((tmp_path / "claims.json").read_text())
    assert kept["claims"][0]["first_seen"] == "2026-01-02T03:04:05+00:00"
    assert not list(tmp_path.glob("*.tmp"))


def test_a_claim_changed_after_the_first_run_is_a_new_one(tmp_path):
    record_claims(tmp_path, [claim({"verdict": "learned"})], NOW)
    begin_run(tmp_path)
    softer = claim({"verdict": "learned", "share": "> 0.1"})
    record_claims(tmp_path, [softer], NOW)
    assert stated(tmp_path, [softer]) == {"a": AFTER}
    assert stated(tmp_path, [claim({"verdict": "learned"}, "renamed")]) == {"renamed": BEFORE}


def test_what_was_not_recorded_or_cannot_be_read_counts_as_added_after(tmp_path):
    one = claim({"verdict": "learned"})
    assert stated(tmp_path, [one]) == {"a": AFTER}
    for text in ("{", "[]", '{"claims": [{"sha256": 1}]}', '{"claims": 3}'):
        (tmp_path / "claims.json").write_text(text)
        assert stated(tmp_path, [one]) == {"a": AFTER}


def test_the_hash_is_of_what_is_claimed_alone():
    one = claim({"verdict": "learned"}, "a", source="x")
    same = claim({"verdict": ["learned"], "share": "> 0.50"}, "b", source="y")
    other = claim({"verdict": "learned"}, "c", where=POST)
    assert claim_hash(one) == claim_hash(same) != claim_hash(other)
    assert claims_hash([one, other]) == claims_hash([other, one]) != claims_hash([one])
