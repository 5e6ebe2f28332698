"""The steps of somebody's own loop as records: read before the update, completed after it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lnexp.attach.distributed import RankBatch
from lnexp.attach.guard import Guard, as_loss
from lnexp.attach.live_probe import LiveProbe, ScalerReader
from lnexp.measure.nonfinite import (
    MOST_SKIPS,
    StepReading,
    kind_of,
    nonfinite_events,
    reading_events,
    scaler_events,
    unseen,
    without_values,
)
from lnexp.measure.probes import Probe
from lnexp.origin.replay import Closure, Rewind, examine_closure
from lnexp.origin.update import of_watched_update
from lnexp.records import Autopsy
from lnexp.rows import EventRow, Record, StepRow


@dataclass
class Pending:
    """A step whose update has not been seen yet."""

    row: StepRow
    probe: Probe
    due: bool
    finite: bool  # loss and gradients: a scaler lets the update happen
    reading: StepReading
    copied: list[Tensor]  # weights; empty: the update is not read
    events: list[EventRow]
    rank_events: list[EventRow]  # which process's own batch failed
    autopsy: Autopsy | None = None
    stepped: set[int] = field(default_factory=set)  # optimizers


class Steps:
    """Reads at `step`; an optimizer's own hook, or else the next step, says that it is over."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        live: LiveProbe,
        scaler: ScalerReader,
        guard: Guard,
        write: Callable[[Record], None],
    ) -> None:
        self.model, self.optimizers = model, optimizers
        self.live, self.ranks = live, live.ranks
        self.scaler, self.guard, self.write = scaler, guard, write
        self.rewind = Rewind(live.model)
        self.done = 0
        self.first_bad_step: int | None = None
        self.skipped = self.updates = self._skips_in_a_row = 0
        self.began = perf_counter()
        self._pending: Pending | None = None
        self._weight_norm: float | None = None
        self._probe: Probe | None = None
        self._fresh = True  # no forward since the last step
        self._examined = False
        self._seen: set[tuple[str, str]] = set()
        self._handles: list[Any] = []

    @property
    def seconds(self) -> float:
        return perf_counter() - self.began

    def attach(self) -> None:
        self._handles.append(self.model.register_forward_pre_hook(self._forward_begins))
        for number, optimizer in enumerate(self.optimizers):
            hook = optimizer.register_step_post_hook(lambda *_, n=number: self._stepped(n))
            self._handles.append(hook)
        self.ranks.attach(self.live.model)
        self.guard.attach()
        self._listen()

    def detach(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        self.live.stream.detach()
        self.ranks.detach()
        self.guard.detach()

    @torch.no_grad()
    def step(self, loss: Tensor | float, baseline: float | None, replay: Closure | None) -> None:
        self.settle()
        value = as_loss(loss)
        self.guard.before_reading()
        probe = self.live.now()
        if probe is None:
            raise self.guard.no_gradients()
        value = value.reshape(()).double()
        batches: list[RankBatch] = []
        if self.ranks.size > 1:
            batches, all_replay = self.ranks.gather(value, replay is not None)
            value = torch.tensor(sum(b.loss for b in batches) / len(batches), dtype=torch.float64)
            replay = replay if all_replay else None
        if self.ranks.reads:
            self._read(probe, value, baseline, batches)
        if replay is not None and not self._examined:
            self._examine(replay, batches)
        self.guard.detach()
        self.done += 1
        self._fresh = True
        self._listen()

    def settle(self, at_once: bool = False) -> None:
        """Complete the step before, whose update was (`at_once`: just now) or never will be."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        probe, row, reading, events = pending.probe, pending.row, pending.reading, pending.events
        columns, autopsy = list(reading.columns), pending.autopsy
        updated = bool(pending.stepped) and (pending.finite or not self.scaler.on)
        if updated:
            self.updates += 1
        else:
            self.skipped += 1
        if pending.due:
            row = replace(row, skipped=int(not updated))
        if updated and not self.ranks.silent:
            self._weight_norm = probe.weight_norm()
            if pending.due:
                update_norm, changes = probe.updated(pending.copied)
                row, columns = replace(row, update_norm=update_norm), [*columns, *changes]
            if not isfinite(self._weight_norm):
                events += nonfinite_events(row.step, "optimizer", probe.names, probe.weight_norms())
                if self.first_bad_step is None:
                    self.first_bad_step = row.step
                    if at_once:  # gradients and moments are still those of this update
                        autopsy = of_watched_update(
                            self.optimizers,
                            probe,
                            pending.copied,
                            step=row.step,
                            loss=row.loss,
                            grad_norm=reading.grad_norm,
                        )
        if autopsy is not None and autopsy.reproduced:  # its rows say more than the norms do
            events = without_values(events)
        events = [*(autopsy.events() if autopsy else []), *pending.rank_events, *events]
        self.write(
            Record(
                step=row,
                layers=probe.rows(row.step, columns) if pending.due else [],
                events=unseen(events, self._seen),
                autopsy=autopsy.as_dict() if autopsy else None,
            )
        )

    def _forward_begins(self, module: nn.Module, _: Any) -> None:
        if self._fresh and module.training and torch.is_grad_enabled():
            self._fresh = False
            self.rewind.mark()

    def _stepped(self, number: int) -> None:
        if self._pending is None:
            self.guard.unannounced += self.ranks.reads
            return
        self._pending.stepped.add(number)
        if len(self._pending.stepped) == len(self.optimizers):
            with torch.no_grad():
                self.settle(at_once=True)

    def _listen(self) -> None:
        """To the forward pass of the step that comes now, where it is to be read."""
        stream = self.live.stream
        stream.clear()
        if self.live.measure.level == "full" and self.done % self.live.measure.every == 0:
            stream.attach()
        else:
            stream.detach()

    def _read(
        self, probe: Probe, loss: Tensor, baseline: float | None, batches: Sequence[RankBatch]
    ) -> None:
        step, due = self.done, probe.due(self.done)
        divisor, scale = self.scaler.divisor(self.optimizers[0]), self.scaler.value
        reference = torch.tensor(nan if baseline is None else baseline, dtype=torch.float64)
        reading = probe.read(loss, reference, due, divisor, scale)
        if reading.grad_norm == 0 and step == 0:
            self.guard.all_zero()
        finite = isfinite(reading.loss) and isfinite(reading.grad_norm)
        searching = self.scaler.on and isfinite(reading.loss) and not finite
        self._skips_in_a_row = self._skips_in_a_row + 1 if searching else 0
        events = reading_events(step, probe.names, reading)
        events = scaler_events(step, events, searching, self._skips_in_a_row)
        rank_events: list[EventRow] = []
        failed = self._skips_in_a_row >= MOST_SKIPS or not (finite or searching)
        if failed and self.first_bad_step is None:
            self.first_bad_step = step
            rank_events = _rank_events(step, batches)  # afterwards the weights of all are bad
        if self._weight_norm is None or probe is not self._probe:
            self._weight_norm, self._probe = probe.weight_norm(), probe
        copied = probe.copied() if due else []
        row = StepRow(
            step=step,
            tokens=None,
            seconds=self.seconds,
            lr=float(self.optimizers[0].param_groups[0]["lr"]),
            loss=reading.loss,
            unigram_loss=baseline,
            grad_norm=reading.grad_norm if due else None,
            weight_norm=self._weight_norm if due else None,
            loss_scale=scale if due and self.scaler.on else None,
            nonfinite_grads=reading.nonfinite if due else None,
        )
        self._pending = Pending(row, probe, due, finite, reading, copied, events, rank_events)

    def _examine(self, replay: Closure, batches: Sequence[RankBatch]) -> None:
        """Of the first failing step, on every process where they are several: the replay of the
        first one that fails by itself tells."""
        own = any(batch.bad for batch in batches)
        if not own and not (self.ranks.alike and self.first_bad_step == self.done):
            return
        self._examined, self.live.stream.paused = True, True
        try:
            with torch.enable_grad():
                autopsy = examine_closure(
                    self.model, replay, self.rewind, step=self.done, scale=self.scaler.value
                )
        finally:
            self.live.stream.paused = False
        if self.ranks.size > 1:
            tells = (batches[self.ranks.rank].bad or not own) and autopsy.origin is not None
            autopsy = self.ranks.first_of(autopsy if tells else None) or autopsy
        if self._pending is not None:
            self._pending.autopsy = autopsy


def _rank_events(step: int, batches: Sequence[RankBatch]) -> list[EventRow]:
    """One row a process whose own batch made it, before the gradients were averaged."""
    rows = []
    for batch in (b for b in batches if b.bad):
        if isfinite(batch.loss):
            phase, kind, what = "backward", "nan", f"own gradient of {batch.tensor} not finite"
        else:
            phase, kind, what = "loss", kind_of(batch.loss), f"own loss {batch.loss}"
        rank = f"rank {batch.rank}"
        detail = f"{rank} of {len(batches)}, its batch of step {step}: {what}"
        rows.append(EventRow(step, phase, kind, module=rank, detail=detail))
    return rows
