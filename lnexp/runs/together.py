"""Which runs train together in one worker: those of one shape (train/stack.py)."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import ceil, inf

from ..config import RunConfig
from ..model.branches import GainBlock
from ..model.placements import PLACEMENTS
from .plan import PlannedRun

# The others use their input more than once: its gradients would be summed in another order.
NORMS = ("layernorm", "dyt")
# Beyond these sizes arithmetic takes the time, not calls (docs/speed.md).
RUNS, ELEMENTS = 8, 2**14
# torch makes a product of fewer multiplications in a loop of its own when it is one of several.
PRODUCT = 400


@dataclass(frozen=True)
class Together:
    """Up to so many runs, of up to so many elements of a stream BTD."""

    runs: int = 1
    elements: float = inf


ALONE, AUTO = Together(), Together(RUNS, ELEMENTS)


def groups(todo: Sequence[PlannedRun], jobs: int, together: Together) -> list[list[PlannedRun]]:
    """Of one shape each, in the order of their first runs."""
    alike: dict[Hashable, list[PlannedRun]] = {}
    for run in todo:
        fits = together.runs > 1 and _may(run) and _elements(run.config) <= together.elements
        alike.setdefault(_shape(run) if fits else run.name, []).append(run)
    found = []
    for several in alike.values():
        parts = ceil(len(several) / together.runs)
        if len(alike) < 2 * jobs:  # few shapes: each is spread over all workers
            parts = min(ceil(parts / jobs) * jobs, len(several))
        found += [several[at::parts] for at in range(parts)]
    return found


def _elements(config: RunConfig) -> int:
    return config.train.batch_size * config.model.context * config.model.width


def _smallest_product(run: PlannedRun) -> int:
    """Its multiplications: D x D of a sublayer or D x V of the head, for each token."""
    return _elements(run.config) * min(run.config.model.width, len(run.corpus.vocabulary))


def _may(run: PlannedRun) -> bool:
    """Whether its passes can be made with others', without a step that others would wait for."""
    model, train, measure = run.config.model, run.config.train, run.config.measure
    return (
        run.device == "cpu"
        and train.precision == "fp32"
        and not train.compile
        and train.checkpointing is not True
        and train.max_seconds == inf  # of wall time, in which others train as well
        and model.dropout == 0
        and _smallest_product(run) >= PRODUCT
        and model.norm in NORMS
        and PLACEMENTS[model.placement].block is not GainBlock  # one gain for both halves
        and not (measure.level == "full" and measure.every == 1)
    )


def _shape(run: PlannedRun) -> Hashable:
    """What runs of one forward have in common."""
    model, train = run.config.model, run.config.train
    start = {"eps": 0.0, "init": "gpt2", "init_scale": 1.0, "embed_std": "auto"}
    return (
        model.model_copy(update=start),
        len(run.corpus.vocabulary),
        train.batch_size,
        train.threads,
        train.flush_denormal,
    )
