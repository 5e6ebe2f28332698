"""The training loop: a generator of records that knows no disk and no terminal.

Shapes: B batch, T time, V vocabulary.
"""

from collections.abc import Iterator
from math import isfinite
from time import perf_counter

import torch
from torch import Tensor
from torch.nn import functional as F

from ..measure.nonfinite import MOST_SKIPS, gradient_events, nonfinite_events
from ..rows import EventRow, Record, StepRow
from .failure import examine_step, examine_update
from .flat import Flat
from .flatprobe import FlatProbe
from .optim import lr_at
from .passes import Pass
from .state import State

CLIP_EPS = 1e-6  # as in torch's clip_grad_norm_


def train(state: State) -> Iterator[Record]:
    """One record a step, from where `state` is until the configured steps are done or a value is
    not finite. Between two records `state` is whole: it may be saved and gone on from."""
    for item in steps(state):
        if isinstance(item, Pass):
            item.alone()
        else:
            yield item


def steps(state: State, memory: tuple[Tensor, Tensor] | None = None) -> Iterator[Pass | Record]:
    """Each step's pass, to be made before going on, and then its record; weights and gradients in
    that `memory`."""
    config, settings, scale = state.config, state.config.train, state.scale
    flat = Flat(state.model, state.optimizer, memory)
    probe = FlatProbe(state.model, config, flat)
    weight_norm = probe.weight_norm()
    began = perf_counter() - state.seconds
    state.model.train()

    for step in range(state.steps_done, settings.steps):
        due = probe.due(step)
        lr = lr_at(step, settings)
        x_BT, y_BT = state.batches.draw()
        state.dropout.mark()
        state.running.mark()
        flat.ready()

        with probe.listening(due) as listens:
            # A compiled block shows nothing of what happens inside it.
            forward = state.eager(state.model) if listens else state.forward
            made = Pass(state, forward, x_BT, y_BT, heard=listens)
            yield made
        scale.unscale(flat.together, flat.gradients_N)
        factor, autopsy = scale.value, None
        unigram_loss = state.unigram_V[y_BT].mean()
        before = probe.gradients(made.loss, unigram_loss, due, scale.divisor, factor)
        events = gradient_events(step, probe.names, before) + probe.forward_events(step)

        # A finite loss whose gradients overflow is what dynamic scaling looks for: no failure.
        healthy = isfinite(before.loss) and isfinite(before.grad_norm)
        searching = scale.dynamic and isfinite(before.loss) and not healthy
        norm_before, update_norm, clip_factor = weight_norm, None, 1.0
        if due:
            probe.keep_weights()
        if healthy:
            clip_factor = min(1.0, settings.clip / (before.grad_norm + CLIP_EPS))
            _update(flat, lr, clip_factor)
            weight_norm = probe.weight_norm()
            update_norm = probe.updated() if due else None
            events += probe.underflow_events(step, state.optimizer) if due else []
        scale.update(skipped=not healthy)
        bad_weights = not isfinite(weight_norm)
        given_up = scale.dynamic and scale.skips_in_a_row >= MOST_SKIPS
        if searching:
            events = [e for e in events if e.kind not in ("nan", "inf")]
            detail = "step skipped: gradients overflowed"
            events.append(EventRow(step, "optimizer", "scaler_skip", detail=detail))
        if given_up:
            detail = f"{scale.skips_in_a_row} skips in a row: no loss scale helps"
            events.append(EventRow(step, "optimizer", "skips_in_a_row", detail=detail))

        failed = bad_weights or given_up or not (healthy or searching)
        if failed and state.first_bad_step is None:
            state.first_bad_step = step
            if bad_weights:
                events += nonfinite_events(step, "optimizer", probe.names, probe.weight_norms())
                autopsy = examine_update(state, probe, before, step)
            else:
                autopsy = examine_step(state, x_BT, y_BT, step)
            if autopsy and autopsy.reproduced:  # its rows say more than the norms do
                events = [e for e in events if e.kind not in ("nan", "inf")]
            events = (autopsy.events() if autopsy else []) + events
        state.steps_done, state.skipped = step + 1, state.skipped + (not healthy)

        state.stopped = bad_weights or given_up or (failed and settings.on_nonfinite == "stop")
        last = state.stopped or step == settings.steps - 1
        evaluated = probe.on and (last or (step + 1) % config.measure.eval_every == 0)
        val_loss = validation_loss(state) if evaluated else None
        events = [event for event in events if (event.kind, event.module) not in state.seen]
        state.seen.update((event.kind, event.module) for event in events)
        state.seconds = perf_counter() - began
        yield Record(
            step=StepRow(
                step=step,
                tokens=(step + 1) * y_BT.numel(),
                seconds=state.seconds,
                lr=lr,
                loss=before.loss,
                unigram_loss=before.unigram_loss,
                val_loss=val_loss,
                grad_norm=before.grad_norm if due else None,
                update_norm=update_norm,
                weight_norm=norm_before if due else None,
                clip_factor=clip_factor if due else None,
                loss_scale=factor if due and scale.on else None,
                skipped=int(not healthy) if due else None,
                nonfinite_grads=before.nonfinite if due else None,
            ),
            layers=probe.rows(step) if due else [],
            events=events,
            autopsy=autopsy.as_dict() if autopsy else None,
        )
        if last:
            return


def _update(flat: Flat, lr: float, clip_factor: float) -> None:
    if clip_factor < 1.0:
        flat.gradients_N.mul_(clip_factor)
    for group in flat.optimizer.param_groups:
        group["lr"] = lr
    flat.step()


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
