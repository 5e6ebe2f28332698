"""Where the time of a step goes, by torch.profiler."""

import json
import os
import re
import statistics
from collections.abc import Iterator
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.profiler import ProfilerActivity, profile, record_function

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler reports its start and stop

# Kind of work -> the names whose own time it is; the first that fits. Python: what is left of a
# step outside of every operation.
KINDS = {
    "matmul": r"aten::(mm|addmm|bmm)$",
    "attention": r"aten::_scaled_dot_product",
    "norm": r"aten::native_layer_norm",
    "gelu": r"aten::gelu",
    "optimizer": r"Optimizer|aten::_fused_|aten::_foreach_",
    "autograd": r"autograd::|.*Backward\d*$|detach$",
    "Python": r"step$",
    "views": r"aten::(view|_unsafe_view|as_strided|transpose|t|permute|expand|slice|select|narrow|"
    r"unbind|split|chunk|detach|alias|resolve_\w+|resize_|reshape|flatten|unsqueeze|empty\w*|"
    r"linear|matmul|layer_norm|scaled_dot_product_attention|dropout|to|_to_copy|contiguous|clone|"
    r"item|stack|zeros\w*)$",
    "elementwise": r"",
}


def kind_of(name: str) -> str:
    return next(kind for kind, pattern in KINDS.items() if re.match(pattern, name))


def stretches(events: list[dict]) -> list[list[tuple[str, float]]]:
    """Of each step, in order: how long an event ran, in milliseconds, until the next inside it
    began, or it ended; and its kind."""
    steps: list[list[tuple[str, float]]] = []
    running: list[tuple[float, str]] = []  # end and kind, the innermost last
    now = 0.0

    def until(then: float) -> None:
        nonlocal now
        while running and now < then:
            end, kind = running[-1]
            steps[-1].append((kind, (min(end, then) - now) / 1e3))
            now = min(end, then)
            if now == end:
                running.pop()

    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        begin = event["ts"]
        until(begin)
        if running or event["name"] == "step":
            if not running:
                steps.append([])
            now = begin
            running.append((begin + event["dur"], kind_of(event["name"])))
    until(inf)
    return steps


def profiled(stream: Iterator[object], steps: int) -> dict[str, float]:
    """Milliseconds by kind; of every stretch the median over the steps, since other work on
    the machine interrupts now this one, now that one."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(steps):
            with record_function("step"):
                next(stream)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    found = dict.fromkeys(KINDS, 0.0)
    own = [e for e in events if e.get("cat") in ("cpu_op", "user_annotation")]
    for same in zip(*stretches(own), strict=True):
        ((kind,), values) = {kind for kind, _ in same}, [value for _, value in same]
        found[kind] += statistics.median(values)
    return found
