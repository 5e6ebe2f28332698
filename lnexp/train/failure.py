"""What the loop does once when a step fails: hand it to the autopsy as it was."""

import torch
from torch import Tensor, nn

from ..measure.autopsy import Autopsy, examine
from ..measure.nonfinite import Gradients
from ..measure.probes import Probe
from ..measure.update import of_update
from .state import State


def examine_step(state: State, x_BT: Tensor, y_BT: Tensor, step: int) -> Autopsy:
    """A loss or gradient that is not finite: the same weights, batch and dropout again."""

    def run(model: nn.Module) -> Tensor:
        state.running.rewind(model)
        with state.dropout.again():
            return state.scale.scale(state.losses(model, x_BT, y_BT)[1])

    def shadow(model: nn.Module, dtype: torch.dtype) -> Tensor:
        state.running.rewind(model)
        with state.dropout.again(), state.dropout.active():
            return state.objective(model, x_BT, y_BT)[1]

    with state.running.kept():
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
