"""lnexp configs and lnexp schema."""

import json
import shutil
from math import inf
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lnexp.config.names import experiments, question, unknown
from lnexp.messages import UserError


def configs(name: str | None) -> None:
    known = experiments()
    if name is None:
        table = Table("name", "question", box=None)
        for key, path in known.items():
            table.add_row(key, escape(question(path)))
        Console().print(table)
        return
    if name not in known:
        raise UserError(f"{name}: no shipped experiment of that name{unknown(name)}")
    target = Path(known[name].name)
    if target.exists():
        raise UserError(f"{target} exists already and is left as it is; remove or rename it first")
    shutil.copyfile(known[name], target)
    print(f"{target} written; lnexp run {target}")


def schema() -> str:
    """JSON Schema of a config file: the sections, and the keys that stand beside them."""
    from lnexp.config.schema import KEYS, RunConfig

    whole = RunConfig.model_json_schema()
    definitions = {k: _explained(v) for k, v in whole["$defs"].items() if k != "Seed"}
    sections = {k: v for k, v in whole["properties"].items() if k != "seed"}
    seed_list = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
    dotted = {"type": "string", "enum": list(KEYS)}
    return json.dumps(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "lnexp config",
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "name": {"type": "string"},
                "question": {"type": "string"},
                **sections,
                "sweep": {
                    "type": "object",
                    "propertyNames": dotted,
                    "additionalProperties": {"type": "array", "minItems": 1},
                },
                "cases": {"type": "array", "items": {"type": "object", "propertyNames": dotted}},
                "seeds": {
                    "anyOf": [
                        seed_list,
                        {
                            "type": "object",
                            "properties": {"init": seed_list, "data": seed_list},
                            "additionalProperties": False,
                        },
                    ]
                },
                "claims": {"type": "array"},
            },
            "$defs": definitions,
        },
        indent=1,
        allow_nan=False,
    )


def _explained(section: dict[str, Any]) -> dict[str, Any]:
    """A section's schema; JSON has no number for `.inf`."""
    leaves = {}
    for leaf, field in section["properties"].items():
        meaning = field.pop("description")
        if field.get("default") == inf:
            del field["default"]
            meaning += "; default .inf: no limit"
        leaves[leaf] = {**field, "description": meaning}
    return {**section, "properties": leaves}
