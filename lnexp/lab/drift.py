"""Internal covariate shift: how far what sublayers read moves, and whether it matters.

After Santurkar et al. 2018, "How does batch normalization help optimization?": a random shift and
scale, new every step, is put on what each sublayer reads (after its norm, where one stands there).

Shapes: B batch, T time, D width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from lnexp.config.schema import Measure
from lnexp.lab.schemas import DriftRow
from lnexp.lab.subject import HALVES, Subject
from lnexp.rows import end_window
from lnexp.seeds import derive
from lnexp.train.loop import train
from lnexp.train.state import State, set_up

EVERY = 10  # steps between two readings
SHIFT = 0.5  # standard deviation of the shift, in units of a norm's output, and of ln scale

Moments = tuple[Tensor, Tensor]  # mean and std of each feature, sublayers x D


def drift(subject: Subject) -> Iterator[DriftRow]:
    plain, injected = _trained(subject, inject=False), _trained(subject, inject=True)
    yield DriftRow(
        run=subject.run,
        steps_done=subject.steps_done,
        mean_drift=plain[0],
        std_drift=plain[1],
        end_loss=plain[2],
        mean_drift_injected=injected[0],
        std_drift_injected=injected[1],
        end_loss_injected=injected[2],
        cost=injected[2] - plain[2],
    )


def _trained(subject: Subject, inject: bool) -> tuple[float | None, float | None, float]:
    """Drift of mean and of std, and end loss, of the run trained anew."""
    quiet = Measure(level="off", keep="none")
    # As many steps as it has: a run may have gone on beyond its config's.
    # A block that is computed again would meet another draw of noise.
    settings = {"steps": subject.steps_done, "checkpointing": False}
    alone = subject.config.train.model_copy(update=settings)
    config = subject.config.model_copy(update={"measure": quiet, "train": alone})
    state = set_up(config, subject.corpus, subject.device)
    sublayers = [getattr(block, half) for block in state.model.blocks for half in HALVES]
    bodies: list[nn.Module] = [sublayer.body for sublayer in sublayers]
    x_BT = subject.windows()[0][0].to(state.batches.device)
    readings: list[Moments] = []
    losses: list[float] = []
    with _shifted(bodies, config.seed.data, inject, lambda: len(losses)):
        for record in train(state):
            if record.step.step % EVERY == 0:
                readings.append(_moments(state, bodies, x_BT))
            losses.append(record.step.loss)
    end = float(np.median(losses[-end_window(len(losses)) :]))
    pairs = [moved for pair in pairwise(readings) if (moved := distance(*pair))]
    means, stds = zip(*pairs, strict=True) if pairs else ((), ())
    return _mean(means), _mean(stds), end


def distance(before: Moments, after: Moments) -> tuple[float, float] | None:
    """mean |difference of means| / std before; mean |ln ratio of stds|; of features that vary."""
    (mean0, std0), (mean1, std1) = before, after
    alive = (std0 > 0) & (std1 > 0)
    if not alive.any():
        return None
    shift, ratio = (mean1 - mean0).abs() / std0, std1 / std0
    return float(shift[alive].mean()), float(ratio[alive].log().abs().mean())


def _mean(values: tuple[float, ...]) -> float | None:
    return sum(values) / len(values) if values else None


@contextmanager
def _shifted(
    bodies: list[nn.Module], seed: int, inject: bool, step: Callable[[], int]
) -> Iterator[None]:
    """A shift and a scale on each sublayer's input, drawn by seed, sublayer and step."""

    def hook(place: int):
        def shift(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            x_BTD = args[0]
            generator = torch.Generator().manual_seed(derive(seed, f"drift {place} {step()}"))
            noise_2D = SHIFT * torch.randn(2, x_BTD.shape[-1], generator=generator).to(x_BTD)
            return (x_BTD * noise_2D[0].exp() + noise_2D[1], *args[1:])

        return shift

    handles = [body.register_forward_pre_hook(hook(i)) for i, body in enumerate(bodies) if inject]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _moments(state: State, bodies: list[nn.Module], x_BT: Tensor) -> Moments:
    """Of what the sublayers read of one batch, the same every time, with norms as in training."""
    seen: list[Tensor] = []
    handles = [
        # After the shift, which was registered first.
        body.register_forward_pre_hook(lambda _, args: seen.append(args[0].double().flatten(0, 1)))
        for body in bodies
    ]
    with state.running.restored(), state.dropout.again(), state.dropout.active():
        with state.format.forward(x_BT.device):
            state.model(x_BT)
    for handle in handles:
        handle.remove()
    stacked = torch.stack(seen)
    return stacked.mean(1), stacked.std(1)
