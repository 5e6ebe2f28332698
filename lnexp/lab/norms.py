"""What each norm of a trained model does to its input, without gain and bias.

Shapes: B batch, T time, D width, M = B T tokens.
"""

from collections.abc import Iterator
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from ..labrows import NormRow
from ..measure.forward import rms
from ..model.norms import NORMS, build_norm
from .subject import Subject, norms_training, ratio, sublayer_norms

ADDED = ("layernorm", "layernorm_plain", "rmsnorm", "rmsnorm_plain")  # eps is added to a square


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
    beside = NORMS[norm].beside_eps
    expected = None
    if norm in ADDED and beside is not None:
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
