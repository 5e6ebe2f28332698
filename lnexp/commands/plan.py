"""lnexp plan: what would run, without training: as plain data, and in the terminal."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

from rich.console import Console
from rich.text import Text

from lnexp.claims.judge import undecidable
from lnexp.files import plain, strict_json
from lnexp.messages import amount, one_line
from lnexp.model.check import peak_bytes, step_flops
from lnexp.results.axes import short_key, value_text
from lnexp.runs.forecast import Stopwatch
from lnexp.runs.local import share
from lnexp.runs.plan import Plan, PlannedRun, placed, plans
from lnexp.terminal.sheet import Column, Sheet, significant
from lnexp.train.blocks import recomputes

Weight = tuple[str, str, str]  # name, shape, std
MOST = 20  # lines of combinations
# Axes that have a column, and a word in a title, of their own.
SHOWN = (
    "model.placement", "model.residual", "model.depth", "model.width", "train.precision",
)  # fmt: skip
TITLED = ("model.placement", "model.residual", "model.depth", "model.width", "model.init")
OF_MODEL = ("depth", "width", "placement", "residual", "norm", "init")  # of each model
UNITS = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def plan(configs: list[str], overrides: Sequence[str], as_json: bool) -> None:
    described = [describe(plan) for plan in plans(configs, overrides)]
    if as_json:
        print(strict_json(described), end="")
        return
    for values in described:
        print_plan(values)


# As plain data.


def describe(plan: Plan) -> dict[str, Any]:
    """An architecture once however many points share it."""
    groups: dict[tuple, list[PlannedRun]] = {}
    for run in plan.runs:
        c = run.config
        key = (c.model, len(run.corpus.vocabulary), c.train.batch_size, c.train.optimizer)
        key += (c.train.precision, c.train.steps, c.train.threads, c.train.compile)
        groups.setdefault((*key, c.measure.level), []).append(run)
    axes = _distinctive(plan.sweep.axes, list(groups.values()))
    models, stopwatch = [], Stopwatch()
    for runs in groups.values():
        config, architecture = runs[0].config, runs[0].architecture
        flops = step_flops(config, len(runs[0].corpus.vocabulary))
        models.append(
            {
                **{name: getattr(config.model, name) for name in OF_MODEL},
                "precision": config.train.precision,
                "settings": {key: plain(runs[0].point.settings[key]) for key in axes},
                "runs": len(runs),
                "steps": config.train.steps,
                "parameters": architecture.parameters,
                "norm_parameters": architecture.norm_parameters,
                "norms": [
                    {"module": name, "kind": kind, "eps": eps, "parameters": count}
                    for name, kind, eps, count in architecture.norms
                ],
                "init_std": [
                    {"weight": name, "shape": list(shape), "std": std}
                    for name, shape, std in architecture.init_std
                ],
                "flops_per_step": flops,
                "flops": flops * config.train.steps * len(runs),
                **_costs(plan, runs, stopwatch),
            }
        )
    corpora = {run.corpus.sha256: run.corpus for run in plan.runs}
    return {
        "name": plan.sweep.name,
        "question": plan.sweep.question,
        "axes": {
            key: [plain(value) for value in values] for key, values in plan.sweep.axes.items()
        },
        "combinations": _combinations(plan),
        "runs": len(plan.runs),
        "seeds": len({(r.config.seed.init, r.config.seed.data) for r in plan.runs}),
        "notes": [*plan.notes, *undecidable(plan.sweep.claims, plan.sweep.points)],
        "texts": [
            {
                "sha256": c.sha256,
                "letters": len(c.vocabulary),
                "training": len(c.train),
                "validation": len(c.val),
                **{name: getattr(c, name) for name in ("ln_v", "h1", "h2", "floor")},
            }
            for c in corpora.values()
        ],
        "models": models,
    }


def _distinctive(axes: Iterable[str], groups: list[list[PlannedRun]]) -> list[str]:
    """The axes that tell these models apart: one value in each, not the same in all."""
    distinctive = []
    for key in axes:
        values = [{repr(run.point.settings[key]) for run in runs} for runs in groups]
        if all(len(one) == 1 for one in values) and len(set.union(*values)) > 1:
            distinctive.append(key)
    return distinctive


def _combinations(plan: Plan) -> list[dict[str, Any]]:
    """The different values that the axes take together, in grid order."""
    settings = [run.point.settings for run in plan.runs]
    distinct = {repr(one): one for one in settings}
    return [{key: plain(value) for key, value in one.items()} for one in distinct.values()]


def _costs(plan: Plan, runs: list[PlannedRun], stopwatch: Stopwatch) -> dict[str, Any]:
    """Memory and time of runs of one model, one at a time."""
    run = runs[0]

    def memory(recompute: bool) -> int:
        letters = len(run.corpus.vocabulary)
        return placed(plan.sweep, lambda: peak_bytes(run.config, letters, recompute))

    whole = memory(False)
    recompute = recomputes(run.config, share(run.device, 1), lambda: whole)
    pace = stopwatch.pace(run.config, run.corpus, run.device, recompute)
    return {
        "checkpointing": "each block" if recompute else "off",
        "bytes": memory(True) if recompute else whole,
        "bytes_without_checkpointing": whole,
        "seconds_per_step": pace and pace.step,
        "seconds": pace and len(runs) * pace.seconds(run.config),
    }


# In the terminal.


def print_plan(plan: dict[str, Any], console: Console | None = None) -> None:
    """Grid, texts, models, norms and initialisation of one sweep."""
    console = console or Console(highlight=False)
    title = one_line(f"{plan['name']}: {plan['question']}".rstrip(": "))
    console.print(Text(title, style="bold"))
    for line in _grid(plan):
        console.print(Text(line))
    console.print()
    console.print(_models(plan["models"]))
    # Models that start alike share a table: placement changes neither draw nor shape.
    # Nor does depth, where only the number of tensors differs.
    starts: dict[tuple[Weight, ...], list[dict[str, Any]]] = {}
    for model in plan["models"]:
        starts.setdefault(tuple(_weights(model)), []).append(model)
    for weights, models in starts.items():
        console.print(_init(weights, models))


def _grid(plan: dict[str, Any]) -> Iterator[str]:
    for key, values in plan["axes"].items():
        yield f"  {key}: {', '.join(map(value_text, values))}"
    yield from _cases(plan)
    yield f"  {amount(plan['runs'], 'run')}; {amount(plan['seeds'], 'seed')}"
    for text in plan["texts"]:
        yield (
            f"  text {text['sha256'][:8]}: {text['training']:,} letters to train on, "
            f"{text['validation']:,} to validate, {text['letters']} different"
        )
        yield (
            f"  ln V {text['ln_v']:.4f}, H1 {text['h1']:.4f}, H2 {text['h2']:.4f}, "
            f"floor {text['floor']:.4f} nats"
        )
    for note in plan["notes"]:
        yield f"  note: {note}"


def _cases(plan: dict[str, Any]) -> Iterator[str]:
    """Which values stand together, where not each stands with each: a line for all but the
    longest axis."""
    combinations, axes = plan["combinations"], plan["axes"]
    if len(combinations) == prod(map(len, axes.values())):
        return
    longest = max(axes, key=lambda key: len(axes[key]))
    together: dict[str, list[str]] = {}
    for case in combinations:
        rest = [f"{short_key(key)} {value_text(case[key])}" for key in axes if key != longest]
        together.setdefault(", ".join(rest), []).append(value_text(case[longest]))
    yield f"  {amount(len(combinations), 'combination')}, not every value with every other:"
    lines = [
        f"    {f'{rest}: ' if rest else ''}{short_key(longest)} {', '.join(values)}"
        for rest, values in together.items()
    ]
    yield from lines[:MOST]
    if len(lines) > MOST:
        yield f"    and {len(lines) - MOST} more (--json has all)"


def _title(model: dict[str, Any], depth: bool = True) -> str:
    """What tells the model from others of its sweep."""
    words = [model["init"], model["placement"]]
    words += [] if model["residual"] else ["no residual"]
    words += [
        f"{short_key(key)} {value_text(value)}"
        for key, value in model["settings"].items()
        if key not in TITLED
    ]
    words.append(f"width {model['width']}")
    return ", ".join(words + [f"depth {model['depth']}"] * depth)


def _titles(models: list[dict[str, Any]]) -> str:
    """Each title once; models that differ in depth alone share one."""
    depths: dict[str, list[str]] = {}
    for model in models:
        of = depths.setdefault(_title(model, depth=False), [])
        if str(model["depth"]) not in of:
            of.append(str(model["depth"]))
    return "; ".join(f"{title}, depth {', '.join(of)}" for title, of in depths.items())


def _models(models: list[dict[str, Any]]) -> Sheet:
    def column(head: str, text: Callable[[dict[str, Any]], str], rank: int = 0) -> Column:
        return Column(head, [text(model) for model in models], number=True, rank=rank)

    def spare(name: str, rank: int, number: bool = False) -> Column:
        """What is the same in every row may go."""
        values = [model[name] for model in models]
        rank = rank if len(set(values)) < 2 else 0
        return Column(name, list(map(value_text, values)), number=number, rank=rank)

    swept = [key for key in models[0]["settings"] if key not in SHOWN] if models else []
    return Sheet(
        "Models",
        [
            *(Column(short_key(k), [value_text(m["settings"][k]) for m in models]) for k in swept),
            spare("placement", 4),
            spare("residual", 5),
            spare("precision", 6),
            column("depth", lambda m: str(m["depth"])),
            spare("width", 3, number=True),
            column("runs", lambda m: str(m["runs"])),
            column("parameters", lambda m: f"{m['parameters']:,}"),
            column("in norms", lambda m: f"{m['norm_parameters']:,}", rank=2),
            column("FLOPs/step", lambda m: _scaled(m["flops_per_step"])),
            column("all FLOPs", lambda m: _scaled(m["flops"]), rank=7),
            column("memory", lambda m: f"{m['bytes'] / 2**20:,.0f} MiB", rank=1),
            column("s/step", lambda m: significant(m["seconds_per_step"], empty="")),
            column("time", lambda m: _time(m["seconds"])),
        ],
        [
            *dict.fromkeys(f"{_title(m)}: {_norms(m)}" for m in models),
            *_recomputed([m for m in models if m["checkpointing"] != "off"]),
            *_timing(models),
        ],
        whole="--json",
    )


def _recomputed(models: list[dict[str, Any]]) -> Iterator[str]:
    if models:
        whole = ", ".join(f"{m['bytes_without_checkpointing'] / 2**20:,.0f}" for m in models)
        yield (
            f"{_titles(models)}: backward computes each block again (train.checkpointing); keeping "
            f"what it made would take {whole} MiB"
        )


def _timing(models: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        "memory: of a run's process. time: of all its runs one after the other, each on a core of "
        "its own, from steps of shallow models timed now"
    )
    missing = sum(m["seconds_per_step"] is None for m in models)
    if missing:
        yield (
            f"no time for {missing} of {amount(len(models), 'model')}: compiled, or timing all "
            "of them would take longer than a plan may"
        )


def _time(seconds: float | None) -> str:
    """'45 s', '12 min', '3.5 h'"""
    if seconds is None:
        return ""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{int(seconds < 10 * size)}f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _norms(model: dict[str, Any]) -> str:
    alike = Counter((n["kind"], n["eps"], n["parameters"]) for n in model["norms"])
    texts = (
        f"{count} x {kind}, {'no eps' if eps is None else f'eps {value_text(eps)}'}, "
        f"{parameters:,} parameters each"
        for (kind, eps, parameters), count in alike.items()
    )
    return ", ".join(texts) or "no norm"


def _weights(model: dict[str, Any]) -> Counter[Weight]:
    """Kinds of weight and how many of each; the blocks share theirs."""
    kinds: Counter[Weight] = Counter()
    for weight in model["init_std"]:
        parts = weight["weight"].split(".")
        name = ".".join("*" if part.isdigit() else part for part in parts if part != "body")
        kinds[name, " x ".join(map(str, weight["shape"])), f"{weight['std']:.4g}"] += 1
    return kinds


def _init(weights: Sequence[Weight], models: list[dict[str, Any]]) -> Sheet:
    """One line a kind of weight; where models differ in how many there are, all counts."""
    counted = [_weights(model) for model in models]
    counts = [
        ", ".join(dict.fromkeys(str(kinds[weight]) for kinds in counted)) for weight in weights
    ]
    names, shapes, stds = (list(column) for column in zip(*weights, strict=True))
    return Sheet(
        f"Initialisation: {_titles(models)}",
        [
            Column("weight", names),
            Column("shape", shapes, number=True),
            Column("std", stds, number=True),
            Column("tensors", counts, number=True),
        ],
    )


def _scaled(value: float) -> str:
    for unit, size in UNITS:
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:g}"
