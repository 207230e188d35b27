"""Autocovariance, AR model and reflection matrices: golden values, round trips, gradients, estimation, wrong input."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from manifoldnorm.manifolds.hpd import HPD
from manifoldnorm.manifolds.siegel import MatrixBall
from manifoldnorm.signal import (
    autocovariance_from_reflection,
    autoregression_from_reflection,
    block_toeplitz,
    lattice_reflection,
    log_determinant,
    reflection_from_autocovariance,
    reflection_from_autoregression,
    reflection_manifold,
    simulate_autoregression,
)
from tests.conftest import GOLDEN


def golden(d: int) -> dict[str, Tensor]:
    with np.load(GOLDEN / "siegel_ar.npz") as file:
        return {key[3:]: torch.from_numpy(file[key]) for key in file if key.startswith(f"d{d}_")}


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_golden(d: int) -> None:
    g = golden(d)
    power, reflection = reflection_from_autocovariance(g["R"])
    close(power, g["P0"])
    close(reflection, g["Omega"])
    close(autocovariance_from_reflection(g["P0"], g["Omega"]), g["R"])
    model = autoregression_from_reflection(g["P0"], g["Omega"])
    close(model.coefficients, g["A"][:, 1:])
    close(model.innovation, g["Ef"])
    close(log_determinant(g["P0"], g["Omega"]), g["logdetT"])
    close(torch.linalg.slogdet(block_toeplitz(g["R"])).logabsdet, g["logdetT"])
    estimate = lattice_reflection(g["x"], 3, ridge=0.0)
    close(estimate.power, g["P0_hat"])
    close(estimate.reflection, g["Omega_hat_mvlk"])


@pytest.mark.parametrize("d", [1, 2, 3])
def test_autoregressive_round_trip(d: int) -> None:
    g = golden(d)
    power, reflection = reflection_from_autoregression(g["A"][:, 1:], g["Ef"])
    close(power, g["P0"], 1e-10)
    close(reflection, g["Omega"], 1e-10)


def test_first_and_second_moments_of_the_simulation() -> None:
    """A long simulation reproduces the autocovariance it was asked for."""
    power = HPD().random(2, 2, dtype=torch.complex128)
    reflection = MatrixBall().random(2, 2, 2, dtype=torch.complex128)
    r = autocovariance_from_reflection(power, reflection)
    x = simulate_autoregression(
        power.expand(400, 2, 2), reflection, 1000, generator=torch.Generator().manual_seed(0)
    ).flatten(0, 0)
    for k in range(3):
        estimate = (x[:, k:].mT @ x[:, : 1000 - k].conj() / (1000 - k)).mean(0)
        assert float((estimate - r[k]).abs().max() / power.abs().max()) < 0.02
    estimate = lattice_reflection(x.flatten(0, 1)[:200_000], 2, ridge=0.0)
    assert float((estimate.reflection - reflection).abs().max()) < 0.02


def test_scalar_reflection_of_a_gaussian_spectrum() -> None:
    """A Gaussian Doppler spectrum has mu_k = (-1)^k exp(2 pi i m k - 2 pi^2 s^2 k), minus our reflection."""
    m, s = 0.17, 0.11
    k = torch.arange(4, dtype=torch.float64)
    r = torch.exp(2j * math.pi * m * k - 2 * math.pi**2 * s**2 * k**2)
    reflection = reflection_from_autocovariance(r.reshape(4, 1, 1)).reflection.flatten()
    close(-reflection, ((-1) ** k * torch.exp(2j * math.pi * m * k - 2 * math.pi**2 * s**2 * k))[1:], 1e-10)


def test_estimates_are_inside_and_have_gradients() -> None:
    x = torch.randn(6, 9, 3, dtype=torch.complex128, requires_grad=True)
    power, reflection = lattice_reflection(x, 3)
    assert MatrixBall().check_point_on_manifold(reflection.detach())
    assert HPD().check_point_on_manifold(power.detach())
    assert torch.autograd.gradcheck(
        lambda a: torch.cat([p.flatten() for p in lattice_reflection(a, 2)]), x[:1].detach().requires_grad_()
    )
    r = golden(2)["R"][0].requires_grad_()

    def maps(a: Tensor) -> Tensor:
        a = torch.cat([0.5 * (a[:1] + a[:1].mH), a[1:]])
        power, reflection = reflection_from_autocovariance(a)
        model = autoregression_from_reflection(power, reflection)
        return torch.cat(
            [
                reflection.flatten(),
                model.coefficients.flatten(),
                autocovariance_from_reflection(power, reflection).flatten(),
            ]
        )

    assert torch.autograd.gradcheck(maps, r)


def test_repeated_spectra_have_gradients() -> None:
    """White noise: all roots are multiples of the identity and all reflections vanish."""
    r = torch.zeros(3, 2, 2, dtype=torch.complex128)
    r[0] = 2 * torch.eye(2)
    r.requires_grad_()
    reflection = reflection_from_autocovariance(r).reflection
    (gradient,) = torch.autograd.grad(reflection.real.sum(), r)
    assert torch.isfinite(torch.view_as_real(gradient)).all()
    close(gradient[1].real, torch.full((2, 2), 0.5, dtype=torch.float64), 1e-12)


def test_kaehler_manifold_measures_with_its_weights() -> None:
    """The squared distance is n d_HPD^2 + sum (n - l) d_ball^2."""
    m = reflection_manifold(2, 2)
    x, y = m.random(2, 12, dtype=torch.complex128)
    (p, a, b), (q, c, d) = m.unpack(x), m.unpack(y)
    expected = 3 * HPD().dist2(p, q) + 2 * MatrixBall().dist2(a, c) + MatrixBall().dist2(b, d)
    close(m.dist2(x, y), expected)
    assert m.dimension(12) == 4 + 8 + 8


def test_kaehler_metric_is_the_hessian_of_the_potential() -> None:
    """Its value on a holomorphic direction is d d-bar of -log det T, by finite differences in the reflections."""
    g = golden(2)
    power, omega = g["P0"][0], g["Omega"][0]
    v = torch.randn(omega.shape, dtype=omega.dtype, generator=torch.Generator().manual_seed(0))
    h = 1e-4
    moved = [log_determinant(power, omega + h * s * v) for s in (1, -1, 1j, -1j)]
    laplacian = -(sum(moved) - 4 * log_determinant(power, omega)) / (4 * h * h)
    m = reflection_manifold(2, 3)
    zero = torch.zeros_like(power)
    metric = m.inner(m.pack(power, *omega.unbind(0)), m.pack(zero, *v.unbind(0)))
    assert float(laplacian) == pytest.approx(float(metric), rel=1e-5)


def test_wrong_input_is_named() -> None:
    r = golden(2)["R"].clone()
    r[3, 0] -= 10 * torch.eye(2)
    with pytest.raises(ValueError, match=r"r\[3\].*lag 0 is positive definite.*smallest eigenvalue is -"):
        reflection_from_autocovariance(r)
    r = golden(2)["R"].clone()
    r[5, 2] *= 40
    with pytest.raises(ValueError, match=r"r\[5\].*order 2 has largest singular value"):
        reflection_from_autocovariance(r)
    skewed = r.clone()
    skewed[2, 0, 0, -1] += 0.1
    with pytest.raises(ValueError, match=r"r\[2\].*Hermitian"):
        reflection_from_autocovariance(skewed)
    with pytest.raises(TypeError, match=r"r must be a torch.Tensor, got ndarray"):
        reflection_from_autocovariance(r.numpy())
    with pytest.raises(TypeError, match="r must be complex"):
        reflection_from_autocovariance(r.real)
    g = golden(2)
    bad = g["Omega"].clone()
    bad[2, 1] = 1.5 * torch.eye(2)
    with pytest.raises(ValueError, match=r"reflection\[2\].*order 2 has largest singular value 1\.5"):
        autoregression_from_reflection(g["P0"], bad)
    with pytest.raises(ValueError, match=r"power\[0\].*smallest eigenvalue"):
        autocovariance_from_reflection(-g["P0"], g["Omega"])
    with pytest.raises(ValueError, match="same number of channels"):
        autocovariance_from_reflection(g["P0"], golden(1)["Omega"])
    unstable = torch.tensor([-1.5], dtype=torch.complex128).reshape(1, 1, 1)
    with pytest.raises(ValueError, match="lag 0 is positive definite"):
        reflection_from_autoregression(unstable, torch.ones(1, 1, dtype=torch.complex128))
    x = torch.randn(4, 8, 2, dtype=torch.complex128)
    with pytest.raises(ValueError, match=r"8 samples of 2 channels; order 6 needs more than 8"):
        lattice_reflection(x, 6)
    with pytest.raises(TypeError, match="analytic signal"):
        lattice_reflection(x.real, 2)
    x[1, :, 0] = x[1, :, 1]
    with pytest.raises(ValueError, match=r"x\[1\].*positive definite covariance"):
        lattice_reflection(x, 2)
    broken = torch.randn(4, 8, 2, dtype=torch.complex128)
    broken[2, 3, 0] = torch.nan
    with pytest.raises(ValueError, match=r"x\[2\].*eigenvalue is nan"):
        lattice_reflection(broken, 2)
    with pytest.raises(TypeError, match=r"x must be a torch.Tensor, got ndarray"):
        lattice_reflection(x.numpy(), 2)
    with pytest.raises(ValueError, match="channels and order"):
        reflection_manifold(0, 2)
