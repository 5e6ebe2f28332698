"""The instruments, a table of lab/ each. A new one is one entry of INSTRUMENTS here and its row
type in schemas.py.

Two stand here: how far the other sequences of a batch, its mode and the future reach into a logit;
and what each norm of a trained model does to its input, without gain and bias.

Shapes: B batch, T time, V vocabulary, D width, M = B T tokens.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lnexp.config.schema import RunConfig
from lnexp.lab.drift import drift
from lnexp.lab.profile import profile
from lnexp.lab.schemas import TABLES, BatchRow, NormRow
from lnexp.lab.skip import depth, sampled_skip, skip
from lnexp.lab.subject import Subject, norms_training, ratio, sublayer_norms
from lnexp.measure.forward import rms
from lnexp.messages import UserError
from lnexp.model.catalog import NORMS, PLACEMENTS
from lnexp.model.norms import beside_eps, build_norm
from lnexp.rows import header, line
from lnexp.runs.rundir import read_status
from lnexp.runs.worker import text_of

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
