"""lnexp plan: what would run, without training."""

import json
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..analysis.claimpower import undecidable
from ..runs.plan import Plan, PlannedRun, make_plan, placed
from ..shipped import find
from ..sweep import Sweep, load_sweep

if TYPE_CHECKING:
    from ..runs.forecast import Stopwatch


def plans(configs: list[str], overrides: Sequence[str]) -> list[Plan]:
    """The plans of all configs, each checked whole. Raises UserError with all problems."""
    from ..errors import UserError

    problems: list[str] = []
    made: list[Plan] = []
    for path in find(configs):
        try:
            made.append(make_plan(load_sweep(path, overrides)))
        except UserError as error:
            problems += error.problems
    kept: dict[str, Sweep] = {}
    for item in made:
        first = kept.setdefault(item.sweep.name.casefold(), item.sweep)
        if first.path != item.sweep.path:
            problems.append(
                f"{first.path} and {item.sweep.path} {_named(first.name, item.sweep.name)}; "
                "write a name: of its own in one of them"
            )
    if problems:
        raise UserError(*problems)
    return made


def _named(one: str, other: str) -> str:
    if one == other:
        return f"are both named {one}"
    return f"are named {one} and {other}: one folder where the case of letters does not count"


def plan(configs: list[str], overrides: Sequence[str], as_json: bool) -> None:
    from ..present.plan import print_plan

    made = plans(configs, overrides)
    described = [describe(item) for item in made]
    if as_json:
        print(json.dumps(described, indent=1, allow_nan=False))
        return
    for item in described:
        print_plan(item)


def plain(value: Any) -> Any:
    """Strict JSON has no infinity."""
    return value if not isinstance(value, float) or isfinite(value) else str(value)


def telling(axes: Iterable[str], groups: list[list[PlannedRun]]) -> list[str]:
    """The axes that tell these models apart: one value in each, not the same in all."""
    found = []
    for key in axes:
        values = [{repr(run.point.settings[key]) for run in runs} for runs in groups]
        if all(len(one) == 1 for one in values) and len(set.union(*values)) > 1:
            found.append(key)
    return found


def combinations(item: Plan) -> list[dict[str, Any]]:
    """The different values that the axes take together, in grid order."""
    settings = [run.point.settings for run in item.runs]
    distinct = {repr(one): one for one in settings}
    return [{key: plain(value) for key, value in one.items()} for one in distinct.values()]


def _costs(item: Plan, runs: list[PlannedRun], stopwatch: "Stopwatch") -> dict[str, Any]:
    """Memory and time of runs of one model, one at a time."""
    from ..model.memory import peak_bytes
    from ..runs.machine import share
    from ..train.recompute import recomputes

    run = runs[0]

    def memory(recompute: bool) -> int:
        letters = len(run.corpus.vocabulary)
        return placed(item.sweep, lambda: peak_bytes(run.config, letters, recompute))

    kept = memory(False)
    recompute = recomputes(run.config, share(run.device, 1), lambda: kept)
    pace = stopwatch.pace(run.config, run.corpus, run.device, recompute)
    return {
        "checkpointing": "each block" if recompute else "off",
        "bytes": memory(True) if recompute else kept,
        "bytes_without_checkpointing": kept,
        "seconds_per_step": pace and pace.step,
        "seconds": pace and len(runs) * pace.seconds(run.config),
    }


def describe(item: Plan) -> dict:
    """The plan as plain data, an architecture once however many points share it."""
    from ..model.check import step_flops
    from ..runs.forecast import Stopwatch

    groups: dict[tuple, list[PlannedRun]] = {}
    for run in item.runs:
        c = run.config
        key = (c.model, len(run.corpus.vocabulary), c.train.batch_size, c.train.optimizer)
        key += (c.train.precision, c.train.steps, c.train.threads, c.train.compile)
        groups.setdefault((*key, c.measure.level), []).append(run)
    told = telling(item.sweep.axes, list(groups.values()))
    models, stopwatch = [], Stopwatch()
    for runs in groups.values():
        config, vocabulary = runs[0].config, len(runs[0].corpus.vocabulary)
        built = runs[0].architecture
        flops = step_flops(config, vocabulary)
        models.append(
            {
                "depth": config.model.depth,
                "width": config.model.width,
                "placement": config.model.placement,
                "residual": config.model.residual,
                "norm": config.model.norm,
                "init": config.model.init,
                "precision": config.train.precision,
                "settings": {key: plain(runs[0].point.settings[key]) for key in told},
                "runs": len(runs),
                "steps": config.train.steps,
                "parameters": built.parameters,
                "norm_parameters": built.norm_parameters,
                "norms": [
                    {"module": name, "kind": kind, "eps": eps, "parameters": count}
                    for name, kind, eps, count in built.norms
                ],
                "init_std": [
                    {"weight": name, "shape": list(shape), "std": std}
                    for name, shape, std in built.init_std
                ],
                "flops_per_step": flops,
                "flops": flops * config.train.steps * len(runs),
                **_costs(item, runs, stopwatch),
            }
        )
    corpora = {run.corpus.sha256: run.corpus for run in item.runs}
    return {
        "name": item.sweep.name,
        "question": item.sweep.question,
        "axes": {
            key: [plain(value) for value in values] for key, values in item.sweep.axes.items()
        },
        "combinations": combinations(item),
        "runs": len(item.runs),
        "seeds": len({(r.config.seed.init, r.config.seed.data) for r in item.runs}),
        "notes": [*item.notes, *undecidable(item.sweep.claims, item.sweep.points)],
        "texts": [
            {
                "sha256": c.sha256,
                "letters": len(c.vocabulary),
                "training": len(c.train),
                "validation": len(c.val),
                "ln_v": c.ln_v,
                "h1": c.h1,
                "h2": c.h2,
                "floor": c.floor,
            }
            for c in corpora.values()
        ],
        "models": models,
    }
