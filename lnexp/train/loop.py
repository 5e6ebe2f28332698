"""The training loop: a generator of records that knows no disk and no terminal.

Shapes: B batch, T time, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from time import perf_counter
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import set_checkpoint_early_stop

from lnexp.measure.nonfinite import (
    MOST_SKIPS,
    StepReading,
    nonfinite_events,
    reading_events,
    scaler_events,
    unseen,
    without_values,
)
from lnexp.model.gpt import GPT
from lnexp.origin.autopsy import examine
from lnexp.origin.update import of_update
from lnexp.records import Autopsy
from lnexp.rows import Column, EventRow, LayerRow, Record, StepRow
from lnexp.train.flat import Flat, FlatProbe
from lnexp.train.optim import lr_at
from lnexp.train.state import Forward, State

CLIP_EPS = 1e-6  # as in torch's clip_grad_norm_
Batch = tuple[Tensor, Tensor]  # ids and targets, BT each


def train(state: State) -> Iterator[Record]:
    """One record a step, from where `state` is until the configured steps are done or a value is
    not finite. Between two records `state` is whole: it may be saved and gone on from."""
    loop = Loop(state)
    began = perf_counter() - state.seconds
    state.model.train()
    for step in range(state.steps_done, state.config.train.steps):
        batch = state.batches.draw()
        loss = loop.forward_backward(step, batch)
        before = loop.read_and_judge(step, batch, loss)
        update = loop.update_weights(step, before)
        events = loop.events(step, before)
        autopsy = loop.examine(step, batch, before, update)
        state.steps_done, state.skipped = step + 1, state.skipped + (not before.finite)
        val_loss = validation_loss(state) if loop.evaluates(step) else None
        state.seconds = perf_counter() - began
        yield Record(
            step=loop.row(step, before, update, val_loss),
            layers=loop.layers(step, before, update),
            events=unseen(joined(autopsy, [*events, *update.events]), state.seen),
            autopsy=autopsy.as_dict() if autopsy else None,
        )
        if state.stopped:
            return


@dataclass(frozen=True, slots=True)
class Before:
    """What is known of a step before its update."""

    reading: StepReading
    weight_norm: float
    loss_scale: float
    finite: bool  # loss and gradients
    searching: bool  # only gradients overflow: what dynamic scaling looks for, and no failure


@dataclass(frozen=True, slots=True)
class StepUpdate:
    """What a step did to the weights, if anything."""

    weight_norm: float  # afterwards
    clip_factor: float = 1.0
    norm: float | None = None  # None: no update, or not read
    events: tuple[EventRow, ...] = ()  # weights that are not finite any more, a run's first failure
    columns: Sequence[Column] = ()  # of layers.csv
    copied: Sequence[Tensor] = ()  # the weights before it


class Loop:
    """The parts of a step."""

    def __init__(self, state: State) -> None:
        self.state, self.settings = state, state.config.train
        self.flat = Flat(state.model, state.optimizer)
        self.probe = FlatProbe(state.model, state.config, self.flat)
        self.weight_norm = self.probe.weight_norm()

    def forward_backward(self, step: int, batch: Batch) -> Tensor:
        """The loss; gradients lie in their memory, with fp32 master weights without the scale."""
        state = self.state
        state.dropout.mark()
        state.running.mark()
        self.flat.ready()
        with self.probe.listening(self.probe.due(step)) as listens:
            # A compiled block shows nothing of what happens inside it.
            forward = state.eager(state.model) if listens else state.forward
            loss, objective = state.losses(forward, *batch)
            state.scale.scale(objective).backward()
        state.scale.unscale(self.flat.together, self.flat.gradients_N)
        return loss

    def read_and_judge(self, step: int, batch: Batch, loss: Tensor) -> Before:
        scale, due = self.state.scale, self.probe.due(step)
        unigram_loss = self.state.unigram_V[batch[1]].mean()
        reading = self.probe.read(loss, unigram_loss, due, scale.divisor, scale.value)
        finite = isfinite(reading.loss) and isfinite(reading.grad_norm)
        searching = scale.dynamic and isfinite(reading.loss) and not finite
        return Before(reading, self.weight_norm, scale.value, finite, searching)

    def update_weights(self, step: int, before: Before) -> StepUpdate:
        """None is made by gradients that are not finite."""
        state, probe, due = self.state, self.probe, self.probe.due(step)
        copied = probe.copied() if due else []
        update = StepUpdate(self.weight_norm, copied=copied)
        if before.finite:
            clip_factor = min(1.0, self.settings.clip / (before.reading.grad_norm + CLIP_EPS))
            if clip_factor < 1.0:
                self.flat.gradients_N.mul_(clip_factor)
            for group in state.optimizer.param_groups:
                group["lr"] = lr_at(step, self.settings)
            self.flat.step()
            self.weight_norm = probe.weight_norm()
            norm, columns = probe.updated(copied) if due else (None, ())
            update = StepUpdate(self.weight_norm, clip_factor, norm, (), columns, copied)
        if not isfinite(self.weight_norm) and state.first_bad_step is None:
            norms = probe.weight_norms()
            events = nonfinite_events(step, "optimizer", probe.names, norms)
            update = replace(update, events=tuple(events))
        state.scale.update(skipped=not before.finite)
        return update

    def events(self, step: int, before: Before) -> list[EventRow]:
        """What was notable, apart from the weights."""
        probe, scale = self.probe, self.state.scale
        events = reading_events(step, probe.names, before.reading)
        if before.finite and probe.due(step):
            events += probe.underflow_events(step, self.state.optimizer)
        skips_in_a_row = scale.skips_in_a_row if scale.dynamic else 0
        return scaler_events(step, events, before.searching, skips_in_a_row)

    def examine(
        self, step: int, batch: Batch, before: Before, update: StepUpdate
    ) -> Autopsy | None:
        """Whether the run ends here; of its first failing step, where the value was born."""
        state = self.state
        must_end = not isfinite(update.weight_norm) or self.no_scale_helps
        failed = must_end or not (before.finite or before.searching)
        state.stopped = must_end or (failed and self.settings.on_nonfinite == "stop")
        if not failed or state.first_bad_step is not None:
            return None
        state.first_bad_step = step
        if update.events:
            return of_update(
                state.optimizer,
                self.probe.names,
                self.probe.weights,
                update.copied,
                step=step,
                loss=before.reading.loss,
                grad_norm=before.reading.grad_norm,
            )
        return examine_step(state, *batch, step)

    @property
    def no_scale_helps(self) -> bool:
        scale = self.state.scale
        return scale.dynamic and scale.skips_in_a_row >= MOST_SKIPS

    def evaluates(self, step: int) -> bool:
        """Every eval_every steps and on the last row."""
        last = self.state.stopped or step == self.settings.steps - 1
        return self.probe.on and (last or (step + 1) % self.state.config.measure.eval_every == 0)

    def layers(self, step: int, before: Before, update: StepUpdate) -> Sequence[LayerRow]:
        if not self.probe.due(step):
            return []
        return self.probe.rows(step, [*before.reading.columns, *update.columns])

    def row(self, step: int, before: Before, update: StepUpdate, val_loss: float | None) -> StepRow:
        state, reading = self.state, before.reading
        row = StepRow(
            step=step,
            tokens=(step + 1) * self.settings.batch_size * state.config.model.context,
            seconds=state.seconds,
            lr=lr_at(step, self.settings),
            loss=reading.loss,
            unigram_loss=reading.unigram_loss,
            val_loss=val_loss,
        )
        if not self.probe.due(step):
            return row
        return replace(
            row,
            grad_norm=reading.grad_norm,
            update_norm=update.norm,
            weight_norm=before.weight_norm,
            clip_factor=update.clip_factor,
            loss_scale=before.loss_scale if state.scale.on else None,
            skipped=int(not before.finite),
            nonfinite_grads=reading.nonfinite,
        )


def examine_step(state: State, x_BT: Tensor, y_BT: Tensor, step: int) -> Autopsy:
    """A loss or gradient that is not finite: the same weights, batch and dropout again."""

    def run(model: nn.Module) -> Tensor:
        state.running.rewind(model)
        with state.dropout.again():
            return state.scale.scale(state.losses(eager(model), x_BT, y_BT)[1])

    def shadow(model: nn.Module, dtype: torch.dtype) -> Tensor:
        state.running.rewind(model)
        with state.dropout.again(), state.dropout.active():
            return state.objective(eager(model), x_BT, y_BT)[1]

    def eager(model: nn.Module) -> Forward:
        return state.eager(cast(GPT, model))

    # What listens to modules sees each call of theirs end.
    with state.running.restored(), set_checkpoint_early_stop(False):
        return examine(state.model, run, step=step, shadow=shadow)


def joined(autopsy: Autopsy | None, events: list[EventRow]) -> list[EventRow]:
    """An autopsy that saw the value born says more than the norms do."""
    if autopsy is None:
        return events
    return autopsy.events() + (without_values(events) if autopsy.reproduced else events)


@torch.no_grad()
def validation_loss(state: State) -> float | None:
    """Mean cross entropy over fixed windows of the validation text; None without one."""
    windows = state.batches.validation()
    if not windows:
        return None
    state.model.eval()
    with state.format.forward(state.batches.device):
        losses = [
            F.cross_entropy(state.model(x_BT).flatten(0, 1), y_BT.flatten(), reduction="none")
            for x_BT, y_BT in windows
        ]
    state.model.train()
    return float(torch.cat(losses).double().mean())
