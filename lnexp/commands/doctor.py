"""lnexp doctor: what this machine can do."""

import json
import platform
from typing import Any

from .. import __version__
from .jobs import workers


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

    from ..train.precision import PRECISIONS, resolve_device

    device = resolve_device("auto")
    return {
        "lnexp": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "jobs": workers("auto"),
        "precision": {name: _works(name, torch.device(device)) for name in PRECISIONS},
    }


def _works(precision: str, device: Any) -> str:
    """One forward and backward of a small product in that precision."""
    import torch

    from ..train.precision import PRECISIONS

    number_format = PRECISIONS[precision]
    try:
        weight = torch.ones(8, 8, dtype=number_format.weights, device=device, requires_grad=True)
        with number_format.forward(device):
            (weight @ weight).sum().backward()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "works"
