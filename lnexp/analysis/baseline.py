"""What a loss is compared with: letter frequencies on the same letters where they are known, else
one level that the user gives, else the run's own first loss."""

from dataclasses import dataclass

import numpy as np

BELOW = 0.95  # of the level: where one level is all there is, an end loss below this is learning


@dataclass(frozen=True)
class Baseline:
    """loss - level is the gap that verdicts are made on."""

    level: np.ndarray  # one a loss
    scale: float  # H1, or the level in its place
    bar: float  # the end gap below which a run has learned
    given: bool = True  # False: the first loss stands in

    @property
    def mark(self) -> str:
        return "" if self.given else " (no baseline)"

    def words(self, gap: float) -> tuple[str, float]:
        """A gap's name and figure; without a baseline the loss itself."""
        return ("gap", gap) if self.given else ("loss", gap + self.scale)


def constant_baseline(loss: np.ndarray, nats: float | None) -> Baseline:
    """One level for all steps: `nats`, or the first finite loss; learned below 0.95 of it."""
    finite = loss[np.isfinite(loss)]
    level = nats if nats is not None else float(finite[0]) if len(finite) else np.nan
    return Baseline(np.full(len(loss), level), level, (BELOW - 1) * level, nats is not None)


def baseline_by_step(level: np.ndarray) -> Baseline:
    """One level a step, as its user gave it; learned below 0.95 of their mean."""
    mean = float(level.mean()) if len(level) else np.nan
    return Baseline(level, mean, (BELOW - 1) * mean)


def no_baseline(loss: np.ndarray, end: float | None) -> str:
    """What a run is judged on where there is none."""
    if end is None or not np.isfinite(end) or not np.isfinite(loss[0]) or loss[0] == 0:
        return "no baseline"
    return f"no baseline: end loss {end / loss[0]:.3g} of the first, learned below {BELOW:g}"
