"""lnexp.watch as a callback of transformers' Trainer.

    with WatchCallback(out="results/mine") as watch:
        Trainer(model=model, args=args, train_dataset=data, callbacks=[watch]).train()

The Trainer calls back after it has clipped; gradients are read before, when the last backward pass
of an update is over. The `with` lets go where training ends by an exception: the Trainer tells no
callback of one.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from transformers import TrainerCallback  # type: ignore[import-not-found]

from lnexp.attach.watching import Watch
from lnexp.messages import UserError


class WatchCallback(TrainerCallback):
    """Options as of lnexp.watch."""

    def __init__(self, out: str | Path = "results/watched", **options: Any) -> None:
        self.out, self.options = out, options
        self.watch: Watch | None = None
        self._handle: Any = None
        # The forward passes since the last update: arguments, and the loss they gave.
        self._calls: list[tuple[tuple, dict[str, Any], Tensor]] = []
        self._last: Any = None  # accelerate's: whether this backward is the last of an update
        self._read = False

    def __enter__(self) -> "WatchCallback":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        watch, self.watch = self.watch, None
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._calls = []
        if watch is not None:
            watch.__exit__(kind, error, trace)

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        **_: Any,
    ) -> None:
        self._last = getattr(optimizer, "gradient_state", None)
        self._handle = model.register_forward_hook(self._called, with_kwargs=True)
        self.watch = Watch(model, optimizer, self.out, **self.options).__enter__()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self._read:
            self._step()
        self._read = False

    def _step(self) -> None:
        calls, self._calls = self._calls, []
        if self.watch is None:
            return
        if not calls:
            raise UserError(
                "lnexp: the model's output has no loss (labels missing, or a compute_loss of your "
                "own); call lnexp.watch's w.step(loss) in a loop of your own instead"
            )
        model = self.watch.model

        def again() -> Tensor:
            losses = [model(*given, **named).loss for given, named, _ in calls]
            self._calls = []
            return _together(losses, calls[0][1])

        loss = _together([loss for *_, loss in calls], calls[0][1])
        self.watch.step(loss, replay=again)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.__exit__(None, None, None)

    def _called(self, module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        loss = output.get("loss") if isinstance(output, dict) else None
        if module.training and torch.is_grad_enabled() and loss is not None:
            self._calls.append((args, kwargs, loss.detach()))
            if self._last is not None and loss.requires_grad:
                # Run when the whole backward pass is over; a name of torch's that FSDP uses too.
                engine = Variable._execution_engine  # type: ignore[attr-defined]
                loss.register_hook(lambda _: engine.queue_callback(self._backward_is_over))

    def _backward_is_over(self) -> None:
        if self._last is not None and self._last.sync_gradients and self._calls:
            self._read = True
            self._step()


def _together(losses: list[Tensor], kwargs: dict[str, Any]) -> Tensor:
    """Of the passes of one update: shares of the whole where the Trainer divides by all items."""
    whole = torch.stack(losses).sum()
    return whole if kwargs.get("num_items_in_batch") is not None else whole / len(losses)
