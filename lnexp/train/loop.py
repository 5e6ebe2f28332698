"""The training loop: a generator of records that knows no disk and no terminal.

Shapes: B batch, T time, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from time import perf_counter

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from ..config import RunConfig
from ..data import Batches, Corpus, unigram_nll
from ..measure.nonfinite import gradient_events, mended, nonfinite_events, total
from ..measure.probes import Probe, fetch, norms
from ..model.gpt import GPT
from ..model.init import build
from ..rows import Record, StepRow
from .optim import lr_at, new_optimizer
from .precision import PRECISIONS, Format
from .streams import DropoutStream

CLIP_EPS = 1e-6  # as in torch's clip_grad_norm_


@dataclass
class State:
    """All that training changes, and what it needs to go on."""

    config: RunConfig
    model: GPT
    optimizer: Optimizer
    batches: Batches
    dropout: DropoutStream
    format: Format
    unigram_V: Tensor
    first_bad_step: int | None = None
    steps_done: int = 0  # rows yielded, the failing one included


def set_up(config: RunConfig, corpus: Corpus, device: str) -> State:
    """Model, optimizer and data stream of a run, each from its own seed."""
    torch.set_num_threads(config.train.threads)
    torch.set_flush_denormal(config.train.flush_denormal)
    target = torch.device(device)
    number_format = PRECISIONS[config.train.precision]
    model = build(config.model, len(corpus.vocabulary), config.seed.init)
    model.to(device=target, dtype=number_format.weights)
    return State(
        config=config,
        model=model,
        optimizer=new_optimizer(model, config.train),
        batches=Batches(
            corpus, config.train.batch_size, config.model.context, config.seed.data, target
        ),
        dropout=DropoutStream(config.model.dropout, config.seed.data, target),
        format=number_format,
        unigram_V=unigram_nll(corpus, target),
    )


def train(state: State) -> Iterator[Record]:
    """One record a step, until the configured steps are done or a value is not finite."""
    config, settings = state.config, state.config.train
    probe = Probe(state.model, config)
    weight_norms = mended(fetch(norms(probe.weights))[0], probe.weights)[0]
    began, seen = perf_counter(), set[tuple[str, str]]()
    state.model.train()

    for step in range(settings.steps):
        due = probe.due(step)
        lr = lr_at(step, settings)
        x_BT, y_BT = state.batches.draw()

        with probe.listening(due):
            loss, objective = _losses(state, x_BT, y_BT)
            objective.backward()
        before = probe.gradients(loss, state.unigram_V[y_BT].mean(), due)
        events = gradient_events(step, probe.names, before)
        healthy = isfinite(before.loss) and isfinite(before.grad_norm)

        weight_norm, update_norm, clip_factor = total(weight_norms), None, 1.0
        if due:
            probe.keep_weights(weight_norms)
        if healthy:
            clip_factor = min(1.0, settings.clip / (before.grad_norm + CLIP_EPS))
            _update(state, probe, lr, clip_factor)
            weight_norms, update_norm = probe.after_update(due)
            events += nonfinite_events(step, "optimizer", probe.names, weight_norms)
        state.optimizer.zero_grad(set_to_none=True)

        bad_weights = not all(map(isfinite, weight_norms))
        if state.first_bad_step is None and (bad_weights or not healthy):
            state.first_bad_step = step
        stops = bad_weights or (not healthy and settings.on_nonfinite == "stop")
        last = stops or step == settings.steps - 1
        evaluated = probe.on and (last or (step + 1) % config.measure.eval_every == 0)
        state.steps_done = step + 1
        yield Record(
            step=StepRow(
                step=step,
                tokens=(step + 1) * y_BT.numel(),
                val_loss=_validation_loss(state) if evaluated else None,
                seconds=perf_counter() - began,
                lr=lr,
                loss=before.loss,
                unigram_loss=before.unigram_loss,
                grad_norm=before.grad_norm if due else None,
                update_norm=update_norm,
                weight_norm=weight_norm if due else None,
                clip_factor=clip_factor if due else None,
                skipped=int(not healthy) if due else None,
                nonfinite_grads=before.nonfinite if due else None,
            ),
            layers=probe.rows(step) if due else [],
            events=[event for event in events if (event.kind, event.module) not in seen],
        )
        seen.update((event.kind, event.module) for event in events)
        if last:
            return


def _update(state: State, probe: Probe, lr: float, clip_factor: float) -> None:
    if clip_factor < 1.0:
        for gradient in probe.grads():
            gradient.mul_(clip_factor)
    for group in state.optimizer.param_groups:
        group["lr"] = lr
    state.optimizer.step()


def _losses(state: State, x_BT: Tensor, y_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy in nats, and what is minimised: with z_loss also z mean(log^2 Z)."""
    with state.dropout.active(), state.format.forward(x_BT.device):
        logits = state.model(x_BT).flatten(0, 1)
        loss = F.cross_entropy(logits, y_BT.flatten())
        z_loss = state.config.train.z_loss
        if z_loss == 0:
            return loss, loss
        return loss, loss + z_loss * logits.logsumexp(-1).square().mean()


@torch.no_grad()
def _validation_loss(state: State) -> float | None:
    """Mean cross entropy over fixed windows of the validation text; None without one."""
    windows = state.batches.validation()
    if not windows:
        return None
    state.model.eval()
    with state.format.forward(state.batches.device):
        losses = [
            F.cross_entropy(state.model(x_BT).flatten(0, 1), y_BT.flatten(), reduction="sum")
            for x_BT, y_BT in windows
        ]
    state.model.train()
    letters = sum(y_BT.numel() for _, y_BT in windows)
    return float(torch.stack(losses).double().sum()) / letters
