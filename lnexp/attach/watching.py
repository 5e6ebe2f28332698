"""The same measuring for anybody's PyTorch loop: a run folder like ours, and one saved batch
examined.

    with lnexp.watch(model, optimizer, out="results/mine") as w:
        for x, y in batches:
            loss = loss_function(model(x), y)
            loss.backward()
            w.step(loss, replay=lambda: loss_function(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
"""

import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer

from lnexp.attach.folder import config_yaml, environment, free_folder
from lnexp.attach.guard import Guard, check_kinds
from lnexp.attach.live_probe import LiveProbe, ScalerReader, adam_shares, unwrapped
from lnexp.attach.steps import Steps
from lnexp.config.schema import Measure
from lnexp.messages import UserError
from lnexp.origin.autopsy import summary
from lnexp.origin.replay import Closure, Rewind, bare, examine_closure
from lnexp.origin.update import try_update
from lnexp.records import Autopsy, Status
from lnexp.runs.rundir import RunDir

Baseline = float | Callable[[], float | Tensor] | None

# Models that a watch is on.
_watched: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


def autopsy(model: nn.Module, closure: Closure, optimizer: Optimizer | None = None) -> Autopsy:
    """Print and return where the first non-finite value of a saved batch is born.

    `closure` computes the batch's loss, without backward. With an optimizer its update is examined
    too, on a copy. Weights, gradients and random streams stay as they are.
    """
    rewind = Rewind(bare(model))
    result = examine_closure(model, closure, rewind, step=0)
    if result.origin is None and optimizer is not None:
        with rewind.again():
            result = try_update(bare(model), closure(), unwrapped(optimizer)) or result
    print(summary(result))
    return result


class Watch:
    """Measure a training loop from outside and leave a run folder; training stays bit-identical.

    `out`: the folder (a number is added where a run lies there already). `level`: light, full or
    off; `every`: which steps are written in full, while loss and total gradient norm are checked at
    every step. `baseline`: what a guess without the model costs, in nats, or a call that gives it
    for the present batch. `blocks`: a regular expression that a block's name in a parameter's name
    matches, where numbered containers are not what is meant. `scaler`: the GradScaler in use.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        out: str | Path = "results/watched",
        *,
        level: str = "light",
        every: int = 1,
        baseline: Baseline = None,
        blocks: str = "",
        scaler: "torch.amp.GradScaler | None" = None,
    ) -> None:
        several = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
        check_kinds(model, several)
        self.model, self.optimizers = model, [unwrapped(o) for o in several]
        self.out, self.baseline, self.blocks = Path(out), baseline, blocks
        # accelerate's optimizers carry their scaler with them.
        self.scaler = ScalerReader(
            scaler or next((getattr(o, "scaler", None) for o in several), None)
        )
        self.measure = _measure(level, every)
        self.path: Path | None = None  # of the run folder, once it is open
        self._steps: Steps | None = None
        self._folder: RunDir | None = None

    def __enter__(self) -> "Watch":
        inner = bare(self.model)
        if inner in _watched:
            raise UserError(f"lnexp.watch: this {type(inner).__name__} is watched already")
        guard = Guard(inner, self.optimizers)
        live = LiveProbe(self.model, self.measure, self.blocks)
        if live.ranks.rank == 0:
            self._folder = self._open(live)
        # Of several processes the first one writes.
        write = self._folder.write if self._folder else lambda _: None
        steps = Steps(self.model, self.optimizers, live, self.scaler, guard, write)
        steps.attach()
        _watched.add(inner)
        self._steps = steps
        return self

    def _open(self, live: LiveProbe) -> RunDir:
        self.path = free_folder(self.out)
        baseline = "each batch" if callable(self.baseline) else self._baseline()
        config = config_yaml(live, self.optimizers, self.scaler.on)
        return RunDir(self.path).begin(config, environment(live, self.optimizers, baseline))

    def _baseline(self) -> float | None:
        """Of the present batch."""
        value = self.baseline() if callable(self.baseline) else self.baseline
        return None if value is None else float(value)

    def step(self, loss: Tensor | float, replay: Closure | None = None) -> None:
        """After backward, before clipping and the optimizer's step. `replay` computes this batch's
        loss again, without backward: it is called where a value is not finite."""
        if self._steps is None:
            raise UserError("lnexp.watch: w.step(loss) outside of `with lnexp.watch(...) as w:`")
        self._steps.step(loss, self._baseline(), replay)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        steps, folder = self._steps, self._folder
        self._steps = self._folder = None
        if steps is None:
            return
        _watched.discard(bare(self.model))
        ranks, shares = steps.ranks, (None, None)
        # After an exception the other processes may not answer any more.
        ranks.silent = ranks.sharded and error is not None
        try:
            steps.settle()
            if ranks.reads and not ranks.silent:
                shares = adam_shares(self.optimizers, ranks)
        finally:
            steps.detach()
            if folder is not None:
                with folder:
                    folder.finish(self._status(steps, error, shares))

    def _status(
        self, steps: Steps, error: BaseException | None, adam: tuple[float | None, float | None]
    ) -> Status:
        underflowed, below_eps = adam
        # Only where every update was seen is it known that a tensor never moved.
        known = steps.updates and self.measure.every == 1 and self.measure.level != "off"
        still = [n for n, _ in steps.live.trainable if n not in steps.live.moved]
        message = f"{type(error).__name__}: {error}".splitlines()[0][:500] if error else None
        ended = "failed" if isinstance(error, Exception) else "interrupted"
        return Status(
            status="finished" if error is None else ended,
            steps_done=steps.done,
            seconds=steps.seconds,
            first_bad_step=steps.first_bad_step,
            unmoved=tuple(still) if known else (),
            skipped=steps.skipped,
            adam_underflowed=underflowed,
            adam_below_eps=below_eps,
            error=message,
        )


def _measure(level: str, every: int) -> Measure:
    try:
        return Measure(level=level, every=every)  # type: ignore[arg-type]
    except ValidationError:
        raise UserError(
            f"lnexp.watch: level is light, full or off and every a number of steps from 1 on; "
            f"read level={level!r}, every={every!r}"
        ) from None


watch = Watch
