"""lnexp doctor: what this machine can do."""

import json
import platform
from typing import Any

from lnexp import __version__
from lnexp.commands.jobs import workers


def doctor(as_json: bool) -> None:
    facts = examine()
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    for name, value in facts.items():
        print(f"{name:<12} {value if not isinstance(value, dict) else ''}")
        for key, item in value.items() if isinstance(value, dict) else ():
            print(f"  {key:<10} {item}")


def examine() -> dict[str, Any]:
    import torch

    from lnexp.model.catalog import PRECISIONS
    from lnexp.train.precision import resolve_device

    device = resolve_device("auto")
    return {
        "lnexp": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "jobs": workers("auto"),
        "precision": {name: _works(name, device) for name in PRECISIONS},
    }


def _works(precision: str, device: str) -> str:
    from lnexp.train.precision import SLOW, precision_problem, slowness

    if problem := precision_problem(precision, device):
        return problem
    times = slowness(precision, device)
    return "works" if times <= SLOW else f"works, {times:.0f} times slower than fp32"
