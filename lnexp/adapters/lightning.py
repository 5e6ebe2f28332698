"""lnexp.watch as a callback of Lightning's Trainer.

    Trainer(callbacks=[WatchCallback(out="results/mine")]).fit(module, data)

Gradients are read before clipping. What training_step returned is the loss; its last batch is
replayed where a value is not finite.
"""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback  # type: ignore[import-not-found]
from torch import Tensor

from lnexp.attach.watching import Watch


class WatchCallback(Callback):
    """Options as of lnexp.watch."""

    def __init__(self, out: str | Path = "results/watched", **options: Any) -> None:
        self.out, self.options = out, options
        self.watch: Watch | None = None
        self._batch: tuple[Any, int] = (None, 0)
        self._losses: list[Tensor] = []  # since the last update; Lightning divided them already

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.watch = Watch(pl_module, trainer.optimizers, self.out, **self.options).__enter__()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self._batch = batch, batch_idx

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        self._losses.append(loss.detach())

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        losses, self._losses = self._losses, []
        if self.watch is not None and losses:
            self.watch.step(sum(losses), replay=lambda: self._again(pl_module))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._close(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close(exception)

    def _close(self, error: BaseException | None) -> None:
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.__exit__(None if error is None else type(error), error, None)

    def _again(self, module: Any) -> Tensor:
        out = module.training_step(*self._batch)
        return out["loss"] if isinstance(out, dict) else out
