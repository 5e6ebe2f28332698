"""Runs of made-up outcomes, as load() would give them, without files."""

from lnexp.claims.judge import judge_claims
from lnexp.claims.parse import parse_claims
from lnexp.config.rules import DEFAULTS
from lnexp.results.load import Results
from lnexp.results.runs_csv import COLUMNS, frame
from lnexp.rows import cell

SWEEP = "demo"
PRE, POST = {"model.placement": "pre"}, {"model.placement": "post"}


def row(seed=0, status="finished", verdict="learned", cause="", settings=None, **figures):
    """One run; `figures` are columns of runs.csv. A pending run knows the given settings only."""
    known = {} if status == "pending" else DEFAULTS | {"model.embed_std": 0.02}
    values = known | dict(settings or {})
    name = "-".join(map(str, [*(settings or {}).values(), f"s{seed}"]))
    values |= {"run": name, "seed_init": seed, "seed_data": seed, "status": status}
    if status == "finished":
        values |= {"verdict": verdict, "cause": cause, "steps_done": 60, **figures}
    return values


def results(rows, axes=("model.placement",), folder="results"):
    texts = [[_text(values.get(name)) for name in COLUMNS] for values in rows]
    runs = frame(texts)
    runs.insert(0, "sweep", SWEEP)
    runs.insert(1, "folder", [f"{folder}/{SWEEP}/runs/{name}" for name in runs["run"]])
    return Results(runs, {SWEEP: list(axes)}, {SWEEP: ""})


def _text(value):
    return cell(value) if value is None or isinstance(value, float) else str(value)


def claim(expect, id="a", says="something", **more):
    claims, problems = parse_claims(
        [{"id": id, "says": says, "expect": expect, **more}], lambda *path: "x.yaml:1"
    )
    assert not problems, problems
    return claims[0]


def judged(rows, expect, axes=("model.placement",), **more):
    (found,) = judge_claims(results(rows, axes), [claim(expect, **more)], SWEEP)
    return found


def placements(pre, post, **more):
    """One run a value and placement, the end losses as given; None: pending, "x": failed."""
    rows = []
    for settings, losses in ((PRE, pre), (POST, post)):
        for seed, loss in enumerate(losses):
            if loss is None or loss == "x":
                status = "pending" if loss is None else "failed"
                rows.append(row(seed, status, settings=settings))
            else:
                rows.append(row(seed, settings=settings, end_loss=float(loss), **more))
    return rows


def verdicts(words, settings=None, **more):
    return [row(i, verdict=word, settings=settings or POST, **more) for i, word in enumerate(words)]
