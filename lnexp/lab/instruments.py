"""The instruments on a trained run: drift (covariate shift), batch (what reaches a logit), norms
(what each does to its input), and the registry of all: a new one is one entry of INSTRUMENTS and
its row type in schemas.py.

Drift, after Santurkar et al. 2018, "How does batch normalization help optimization?": a random
shift and scale, new every step, is put on what each sublayer reads (after its norm, where one
stands there).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lnexp.config.schema import Measure, RunConfig
from lnexp.lab.profile import profile
from lnexp.lab.schemas import TABLES, BatchRow, DriftRow, NormRow
from lnexp.lab.skip import depth, sampled_skip, skip
from lnexp.lab.subject import HALVES, Subject, norms_training, ratio, sublayer_norms
from lnexp.measure.forward import rms
from lnexp.messages import UserError
from lnexp.model.catalog import NORMS, PLACEMENTS
from lnexp.model.norms import beside_eps, build_norm
from lnexp.rows import end_window, header, line
from lnexp.runs.rundir import read_status
from lnexp.runs.worker import text_of
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


SQUARES = ("variance", "mean_square")  # of a token: what eps is added to under a root


def change(one: Tensor, other: Tensor) -> float | None:
    """max |one - other| / RMS of one."""
    return ratio((one - other).abs().max(), rms(one))


@torch.no_grad()
def batch(subject: Subject) -> Iterator[BatchRow]:
    x_BT, _ = subject.windows()[0]

    def training(x: Tensor) -> Tensor:
        return norms_training(subject.model)(x)  # a copy: running statistics move in a forward

    whole, evaluated = training(x_BT), subject.model(x_BT)
    padding_BT = torch.zeros_like(x_BT)
    several = len(x_BT) > 1
    yield BatchRow(
        run=subject.run,
        steps_done=subject.steps_done,
        permuted=change(whole, training(x_BT.flip(0)).flip(0)) if several else None,
        alone=change(whole[:1], training(x_BT[:1])) if several else None,
        alone_eval=change(evaluated[:1], subject.model(x_BT[:1])) if several else None,
        padded=change(whole, training(torch.cat([x_BT, padding_BT]))[: len(x_BT)]),
        train_eval=change(whole, evaluated),
        future=_future(training, x_BT, len(subject.corpus.vocabulary)),
        future_eval=_future(subject.model, x_BT, len(subject.corpus.vocabulary)),
    )


def _future(model: Callable[[Tensor], Tensor], x_BT: Tensor, letters: int) -> float | None:
    if x_BT.shape[1] < 2 or letters < 2:
        return None
    other_BT = x_BT.clone()
    other_BT[:, -1] = (other_BT[:, -1] + 1) % letters
    return change(model(x_BT)[:, :-1], model(other_BT)[:, :-1])


@torch.no_grad()
def norms(subject: Subject) -> Iterator[NormRow]:
    x_BT, _ = subject.windows()[0]
    model, settings = norms_training(subject.model), subject.config.model
    inputs: dict[nn.Module, Tensor] = {}
    sites = list(sublayer_norms(model))
    for *_, norm in sites:
        norm.register_forward_pre_hook(lambda module, args: inputs.update({module: args[0]}))
    model(x_BT)
    for layer, part, norm in sites:
        x_MD = inputs[norm].flatten(0, 1)
        bare = build_norm(settings.norm, settings.width, settings.eps, affine=False).double()
        if hasattr(norm, "alpha"):  # what dyt learns beside gain and bias
            bare.load_state_dict({"alpha": norm.alpha})
        y_MD = bare(x_MD)
        yield NormRow(
            run=subject.run,
            steps_done=subject.steps_done,
            layer=layer,
            part=part,
            **figures(settings.norm, settings.eps, x_MD, y_MD),
            scale_change=ratio(rms(bare(3 * x_MD + 7) - y_MD), rms(y_MD)),
        )


def figures(norm: str, eps: float, x_MD: Tensor, y_MD: Tensor) -> dict[str, Any]:
    """The columns of a norm that turned x into y."""
    sigma_M = x_MD.std(-1, correction=0)
    spread = len(sigma_M) > 1 and bool((sigma_M > 0).all())
    beside, expected = beside_eps(norm), None
    if beside is not None and NORMS[norm].beside_eps in SQUARES:
        v_M = beside(x_MD)
        expected = sqrt(float((v_M / (v_M + eps)).mean()))
    return {
        "input_rms": float(rms(x_MD)),
        "token_sigma": float(rms(sigma_M)),
        "sigma_spread": float(sigma_M.log().std()) if spread else None,
        "output_rms": float(rms(y_MD)),
        "expected_rms": expected,
        "undo_r2": undo_r2(x_MD, y_MD),
    }


def undo_r2(x_MD: Tensor, y_MD: Tensor) -> float | None:
    """R2, over all features, of x_d = g_d y_d + b_d fitted by least squares over tokens."""
    x, y = x_MD - x_MD.mean(0), y_MD - y_MD.mean(0)
    total = float(x.square().sum())
    if total == 0:
        return None
    power_D = y.square().sum(0)
    gain_D = torch.where(power_D > 0, (x * y).sum(0) / power_D, torch.zeros_like(power_D))
    return 1 - float((x - gain_D * y).square().sum()) / total


@dataclass(frozen=True)
class Instrument:
    measure: Callable[[Subject], Iterable[Any]]
    applies: Callable[[RunConfig], bool] = lambda config: True


INSTRUMENTS = {
    "batch": Instrument(batch),
    "norms": Instrument(norms, lambda config: PLACEMENTS[config.model.placement].has_norm),
    "skip": Instrument(skip),
    "depth": Instrument(depth),
    "sampled_skip": Instrument(sampled_skip),
    "drift": Instrument(drift),
    "profile": Instrument(profile),
}


def lines_of(
    table: str, folder: str, config: RunConfig, device: str, data_sha256: str
) -> list[str]:
    """A run's lines of a table; what a worker process does."""
    torch.set_num_threads(config.train.threads)
    path = Path(folder)
    status = read_status(path)
    steps_done = status.steps_done if status else 0
    names = header(TABLES[table])
    try:
        subject = Subject(path, steps_done, config, text_of(config.data, data_sha256), device)
        rows = INSTRUMENTS[table].measure(subject)
        return [line(getattr(row, name) for name in names) for row in rows]
    except UserError as error:  # its lines must cross to the parent as one
        raise RuntimeError("; ".join(error.problems)) from None
