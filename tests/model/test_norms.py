"""Every norm against its equation; those with running statistics over several batches.

Shapes: B batch, T time, D width.
"""

from math import sqrt

import numpy as np
import pytest
import torch

from lnexp.config.schema import Model
from lnexp.model.catalog import NORMS
from lnexp.model.check import is_norm
from lnexp.model.init import build
from lnexp.model.norms import BatchNorm, PowerNorm, ScaleNorm, build_norm
from tests.model.equations import NORMS_NP

D = 8
SHIFTED = [name for name in NORMS if name not in ("rmsnorm", "rmsnorm_plain", "scalenorm")]


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("eps", [1e-5, 1e-1])
def test_a_norm_is_its_equation_with_gain_and_bias(name, eps):
    norm = build_norm(name, D, eps, affine=True).double()
    x = draws(2, 5, D) * 3 + 1
    expected = NORMS_NP[name](x.numpy(), eps)
    with torch.no_grad():
        if name == "scalenorm":
            norm.weight.fill_(1.7)
            expected = expected / sqrt(D) * 1.7
        else:
            gain, shift = draws(2, D, seed=1)
            norm.weight.copy_(gain)
            expected = expected * gain.numpy()
            if name in SHIFTED:
                norm.bias.copy_(shift)
                expected = expected + shift.numpy()
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", NORMS)
def test_gain_and_bias_are_all_that_a_norm_learns_but_for_dyts_slope(name):
    learned, fixed = (
        {n for n, _ in build_norm(name, D, 1e-5, affine).named_parameters()}
        for affine in (True, False)
    )
    own = {"alpha"} if name == "dyt" else set()
    assert learned == {"weight"} | ({"bias"} if name in SHIFTED else set()) | own
    assert fixed == own


@pytest.mark.parametrize("name", NORMS)
def test_without_affine_a_norm_is_what_it_starts_as_with_it(name):
    x = draws(2, 5, D) * 3 + 1
    free, fixed = (build_norm(name, D, 1e-5, affine).double() for affine in (True, False))
    torch.testing.assert_close(free(x), fixed(x), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", [n for n in NORMS if n != "powernorm"])
@pytest.mark.parametrize("affine", [True, False])
def test_the_gradient_of_a_norm_is_that_of_finite_differences(name, affine):
    norm = build_norm(name, D, 1e-3, affine).double()
    x = (draws(2, 3, D) * 2 + 1).requires_grad_()
    parameters = tuple(norm.parameters())

    def f(x, *_):
        return norm(x)

    assert torch.autograd.gradcheck(f, (x, *parameters))


def test_scalenorms_output_has_rms_1_at_the_start_and_eps_is_a_floor_of_the_length():
    norm = ScaleNorm(16, 1e-5, True)
    assert float(norm.weight.detach()) == 4
    y = norm(draws(3, 16).float())
    torch.testing.assert_close(y.square().mean(-1), torch.ones(3))
    tiny = torch.full((1, 16), 1e-9)  # length 4e-9
    torch.testing.assert_close(ScaleNorm(16, 1e-5, True)(tiny), tiny * 4 / 1e-5)


def test_layernorm_std_is_layernorm_up_to_the_root_of_d_minus_1_over_d():
    x = draws(4, D)
    std, plain = (build_norm(n, D, 0.0, False) for n in ("layernorm_std", "layernorm_plain"))
    torch.testing.assert_close(std(x), plain(x) * sqrt((D - 1) / D))


def test_batchnorm_is_torchs_in_training_and_at_evaluation():
    ours, theirs = BatchNorm(D, 1e-4, True).double(), torch.nn.BatchNorm1d(D, 1e-4).double()
    for step in range(3):
        x = draws(4, 5, D, seed=step) * 2 + 1
        torch.testing.assert_close(ours(x), theirs(x.flatten(0, 1)).view_as(x))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    ours.eval(), theirs.eval()
    x = draws(1, 1, D)
    kept = ours.running_var.clone()
    torch.testing.assert_close(ours(x), theirs(x.flatten(0, 1)).view_as(x))
    assert torch.equal(ours.running_var, kept)


def test_batchnorm_depends_on_the_batch_in_training_alone():
    norm = BatchNorm(D, 1e-5, True).double()
    x = draws(4, 5, D)
    assert not torch.allclose(norm(x)[:2], norm(x[:2]))
    norm.eval()
    torch.testing.assert_close(norm(x)[:2], norm(x[:2]))


def test_powernorm_is_algorithm_2_of_its_paper_forward_and_backward():
    """Written from arXiv 2003.07845: psi and nu run, alpha 0.9; dX uses those of before."""
    norm = PowerNorm(D, 0.0, True).double()
    psi2, nu = np.ones(D), np.zeros(D)
    gain, shift = np.full(D, 1.5), np.full(D, -0.25)
    with torch.no_grad():
        norm.weight.fill_(1.5), norm.bias.fill_(-0.25)
    for step in range(4):
        x = (draws(4, 5, D, seed=step) * (step + 1)).requires_grad_()
        upstream = draws(4, 5, D, seed=10 + step)
        y = norm(x)
        y.backward(upstream)

        X, dY = x.detach().numpy(), upstream.numpy()
        X_hat = X / np.sqrt(psi2)
        np.testing.assert_allclose(y.detach().numpy(), gain * X_hat + shift, rtol=1e-12)
        dX_hat = gain * dY
        dX = (dX_hat - nu * X_hat) / np.sqrt(psi2)
        np.testing.assert_allclose(x.grad.numpy(), dX, rtol=1e-11)
        Gamma, Lambda = (X_hat**2).mean((0, 1)), (dX_hat * X_hat).mean((0, 1))
        nu = nu * (1 - 0.1 * Gamma) + 0.1 * Lambda
        psi2 = psi2 + 0.1 * ((X**2).mean((0, 1)) - psi2)
        np.testing.assert_allclose(norm.nu.numpy(), nu, rtol=1e-11)
        np.testing.assert_allclose(norm.mean_square.numpy(), psi2, rtol=1e-12)
    norm.eval()
    torch.testing.assert_close(norm(x), norm.weight * x / torch.tensor(psi2).sqrt() + norm.bias)
    np.testing.assert_allclose(norm.mean_square.numpy(), psi2, rtol=1e-12)


@pytest.mark.parametrize("name", NORMS)
def test_a_built_model_starts_with_the_values_that_its_norms_are_made_with(name):
    """Models are built without values: gains, slopes and running statistics are filled in."""
    made = build_norm(name, 16, 1e-5, affine=True)
    for norm in build(Model(depth=1, width=16, heads=2, norm=name), 23, 0).modules():
        if is_norm(norm):
            for key, value in norm.state_dict().items():
                assert torch.equal(value, made.state_dict()[key]), key
