"""A plan in the terminal."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from ..lines import amount, one_line
from .grid import value_text
from .sheet import Column, Sheet

UNITS = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


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
    starts: dict[str, tuple[Sheet, list[str]]] = {}
    for model in plan["models"]:
        sheet = _init(model)
        starts.setdefault(repr(sheet), (sheet, []))[1].append(_title(model))
    for sheet, titles in starts.values():
        console.print(Sheet(f"Initialisation: {'; '.join(titles)}", sheet.columns))


def _grid(plan: dict[str, Any]) -> Iterator[str]:
    for key, values in plan["axes"].items():
        yield f"  {key}: {', '.join(map(value_text, values))}"
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


def _title(model: dict[str, Any]) -> str:
    skip = "" if model["residual"] else ", no residual"
    return (
        f"{model['init']}, {model['placement']}{skip}, depth {model['depth']}, "
        f"width {model['width']}"
    )


def _models(models: list[dict[str, Any]]) -> Sheet:
    def column(head: str, form: Any, number: bool = True, rank: int = 0) -> Column:
        return Column(head, [form(m) for m in models], number=number, rank=rank)

    return Sheet(
        "Models",
        [
            column("placement", lambda m: m["placement"], number=False),
            column("residual", lambda m: value_text(m["residual"]), number=False, rank=1),
            column("precision", lambda m: m["precision"], number=False, rank=3),
            column("depth", lambda m: str(m["depth"])),
            column("width", lambda m: str(m["width"])),
            column("runs", lambda m: str(m["runs"])),
            column("parameters", lambda m: f"{m['parameters']:,}"),
            column("in norms", lambda m: f"{m['norm_parameters']:,}"),
            column("FLOPs/step", lambda m: _scaled(m["flops_per_step"])),
            column("all FLOPs", lambda m: _scaled(m["flops"]), rank=2),
            column("memory", lambda m: f"{m['bytes'] / 2**20:,.0f} MiB", rank=1),
        ],
        [f"{_title(m)}: {_norms(m)}" for m in models],
        whole="--json",
    )


def _norms(model: dict[str, Any]) -> str:
    sizes: dict[tuple[str, float | None, int], int] = {}
    for n in model["norms"]:
        size = (n["kind"], n["eps"], n["parameters"])
        sizes[size] = sizes.get(size, 0) + 1
    return (
        ", ".join(
            f"{count} x {kind}, {'no eps' if eps is None else f'eps {value_text(eps)}'}, "
            f"{parameters:,} parameters each"
            for (kind, eps, parameters), count in sizes.items()
        )
        or "no norm"
    )


def _init(model: dict[str, Any]) -> Sheet:
    """One line a kind of weight; the blocks share theirs."""
    kinds: dict[tuple[str, str, str], int] = {}
    for w in model["init_std"]:
        parts = w["weight"].split(".")
        name = ".".join("*" if part.isdigit() else part for part in parts if part != "body")
        key = (name, " x ".join(map(str, w["shape"])), f"{w['std']:.4g}")
        kinds[key] = kinds.get(key, 0) + 1
    columns = zip(*(key for key in kinds), strict=True)
    heads = ("weight", "shape", "std")
    return Sheet(
        "",
        [
            *(
                Column(head, list(texts), number=head != "weight")
                for head, texts in zip(heads, columns, strict=True)
            ),
            Column("tensors", [str(count) for count in kinds.values()], number=True),
        ],
    )


def _scaled(value: float) -> str:
    for unit, size in UNITS:
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:g}"
