"""The steps of somebody's own loop as records: read before the update, completed after it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lnexp.attach.distributed import Local
from lnexp.attach.guard import Mistakes, as_loss
from lnexp.attach.live_probe import LiveProbe, Scale
from lnexp.measure.nonfinite import (
    MOST_SKIPS,
    StepReading,
    kind_of,
    nonfinite_events,
    reading_events,
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
    healthy: bool  # of finite loss and gradients: a scaler lets its update happen
    before: StepReading
    copied: list[Tensor]  # weights; empty: the update is not read
    events: list[EventRow]
    of_ranks: list[EventRow]  # which process's own batch failed
    autopsy: Autopsy | None = None
    stepped: set[int] = field(default_factory=set)  # optimizers


class Steps:
    """Reads at `step`; an optimizer's own hook, or else the next step, says that it is over."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        live: LiveProbe,
        scale: Scale,
        mistakes: Mistakes,
        write: Callable[[Record], None],
    ) -> None:
        self.model, self.optimizers = model, optimizers
        self.live, self.ranks = live, live.ranks
        self.scale, self.mistakes, self.write = scale, mistakes, write
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
        self.mistakes.attach()
        self._listen()

    def detach(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        self.live.stream.detach()
        self.ranks.detach()
        self.mistakes.detach()

    @torch.no_grad()
    def step(self, loss: Tensor | float, baseline: float | None, replay: Closure | None) -> None:
        self.settle()
        value = as_loss(loss)
        self.mistakes.before_reading()
        probe = self.live.now()
        if probe is None:
            self.mistakes.no_gradients()
            return
        value = value.reshape(()).double()
        seen: list[Local] = []
        together = replay is not None
        if self.ranks.size > 1:
            seen, together = self.ranks.gather(value, together)
            value = torch.tensor(sum(s.loss for s in seen) / len(seen), dtype=torch.float64)
        if self.ranks.reads:
            self._read(probe, value, baseline, seen)
        self._examine(replay if together else None, seen)
        self.mistakes.step_went_well()
        self.done += 1
        self._fresh = True
        self._listen()

    def settle(self, at_once: bool = False) -> None:
        """Complete the step before, whose update was (`at_once`: just now) or never will be."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        probe, row, events = pending.probe, pending.row, pending.events
        updated = bool(pending.stepped) and (pending.healthy or not self.scale.on)
        update_norm, columns = None, pending.before.columns
        if updated:
            self.updates += 1
        if updated and not self.ranks.silent:
            self._weight_norm = probe.weight_norm()
            if pending.due and probe.on:
                update_norm, changes = probe.updated(pending.copied)
                columns = [*columns, *changes]
            if not isfinite(self._weight_norm):
                events += nonfinite_events(row.step, "optimizer", probe.names, probe.weight_norms())
                if self.first_bad_step is None:
                    self.first_bad_step = row.step
                    if at_once:  # gradients and moments are still those of this update
                        pending.autopsy = of_watched_update(
                            self.optimizers,
                            probe,
                            pending.copied,
                            step=row.step,
                            loss=row.loss,
                            grad_norm=pending.before.grad_norm,
                        )
        if not updated:
            self.skipped += 1
        autopsy = pending.autopsy
        if autopsy is not None and autopsy.reproduced:  # its rows say more than the norms do
            events = [e for e in events if e.kind not in ("nan", "inf")]
        events = [*(autopsy.events() if autopsy else []), *pending.of_ranks, *events]
        events = [e for e in events if (e.kind, e.module) not in self._seen]
        self._seen.update((e.kind, e.module) for e in events)
        due = pending.due and probe.on
        self.write(
            Record(
                step=replace(
                    row, update_norm=update_norm, skipped=int(not updated) if due else None
                ),
                layers=probe.rows(row.step, columns) if due else [],
                events=events,
                autopsy=autopsy.as_dict() if autopsy else None,
            )
        )

    def _forward_begins(self, module: nn.Module, _: Any) -> None:
        if self._fresh and module.training and torch.is_grad_enabled():
            self._fresh = False
            self.rewind.mark()

    def _stepped(self, number: int) -> None:
        if self._pending is None:
            self.mistakes.unannounced += self.ranks.reads
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
        self, probe: Probe, loss: Tensor, baseline: float | None, seen: Sequence[Local]
    ) -> None:
        step, due = self.done, probe.due(self.done)
        divisor, scale = self.scale.divisor(self.optimizers[0]), self.scale.value
        level = torch.tensor(nan if baseline is None else baseline, dtype=torch.float64)
        before = probe.read(loss, level, due, divisor, scale)
        if before.grad_norm == 0 and step == 0:
            self.mistakes.all_zero()
        events = reading_events(step, probe.names, before)
        healthy = isfinite(before.loss) and isfinite(before.grad_norm)
        searching = self.scale.on and isfinite(before.loss) and not healthy
        self._skips_in_a_row = self._skips_in_a_row + 1 if searching else 0
        given_up = self._skips_in_a_row >= MOST_SKIPS
        if searching:
            events = [e for e in events if e.kind not in ("nan", "inf")]
            detail = "step skipped: gradients overflowed"
            events.append(EventRow(step, "optimizer", "scaler_skip", detail=detail))
        if given_up:
            detail = f"{self._skips_in_a_row} skips in a row: no loss scale helps"
            events.append(EventRow(step, "optimizer", "skips_in_a_row", detail=detail))
        failed = given_up or not (healthy or searching)
        of_ranks: list[EventRow] = []
        if failed and self.first_bad_step is None:
            self.first_bad_step = step
            of_ranks = _of_ranks(step, seen)  # afterwards the weights of all are bad
        if self._weight_norm is None or probe is not self._probe:
            self._weight_norm, self._probe = probe.weight_norm(), probe
        copied = probe.copied() if due else []
        row = StepRow(
            step=step,
            tokens=None,
            seconds=self.seconds,
            lr=float(self.optimizers[0].param_groups[0]["lr"]),
            loss=before.loss,
            unigram_loss=baseline,
            grad_norm=before.grad_norm if due else None,
            weight_norm=self._weight_norm if due else None,
            loss_scale=scale if due and self.scale.on else None,
            nonfinite_grads=before.nonfinite if due else None,
        )
        self._pending = Pending(row, probe, due, healthy, before, copied, events, of_ranks)

    def _examine(self, replay: Closure | None, seen: Sequence[Local]) -> None:
        """Of the first failing step, on every process where they are several: the replay of the
        first one that fails by itself tells."""
        if replay is None or self._examined:
            return
        own = any(s.bad for s in seen)
        if not own and not (self.ranks.alike and self.first_bad_step == self.done):
            return
        self._examined, self.live.stream.paused = True, True
        try:
            with torch.enable_grad():
                found = examine_closure(
                    self.model, replay, self.rewind, step=self.done, scale=self.scale.value
                )
        finally:
            self.live.stream.paused = False
        if self.ranks.size > 1:
            mine = (seen[self.ranks.rank].bad or not own) and found.origin is not None
            found = self.ranks.first_of(found if mine else None) or found
        if self._pending is not None:
            self._pending.autopsy = found


def _of_ranks(step: int, seen: Sequence[Local]) -> list[EventRow]:
    """One row a process whose own batch made it, before the gradients were averaged."""
    rows = []
    for local in (s for s in seen if s.bad):
        loss = isfinite(local.loss)
        what = f"own gradient of {local.tensor} not finite" if loss else f"own loss {local.loss}"
        rows.append(
            EventRow(
                step=step,
                phase="backward" if loss else "loss",
                kind="nan" if loss else kind_of(local.loss),
                module=f"rank {local.rank}",
                detail=f"rank {local.rank} of {len(seen)}, its batch of step {step}: {what}",
            )
        )
    return rows
