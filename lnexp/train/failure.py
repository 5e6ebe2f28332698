"""What the loop does once when a step fails: hand it to the autopsy as it was."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import set_checkpoint_early_stop

from lnexp.measure.nonfinite import Gradients
from lnexp.measure.probes import Probe
from lnexp.model.gpt import GPT
from lnexp.origin.autopsy import Autopsy, examine
from lnexp.origin.update import of_update
from lnexp.train.state import Forward, State


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
    with state.running.kept(), set_checkpoint_early_stop(False):
        return examine(state.model, run, step=step, shadow=shadow)


def examine_update(state: State, probe: Probe, before: Gradients, step: int) -> Autopsy | None:
    """An update that made weights non-finite, while its gradients and moments are there."""
    return of_update(
        state.optimizer,
        probe.names,
        probe.weights,
        probe.kept,
        step=step,
        loss=before.loss,
        grad_norm=before.grad_norm,
    )
