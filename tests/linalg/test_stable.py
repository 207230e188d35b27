"""Elementary functions: against mpmath, at zero, and where textbook forms overflow."""

import mpmath
import pytest
import torch

from manifoldnorm import linalg

EXACT = {
    "sinhc": (linalg.sinhc, lambda x: mpmath.sinh(x) / x),
    "sinc": (linalg.sinc, lambda x: mpmath.sin(x) / x),
    "atanhc": (linalg.atanhc, lambda x: mpmath.atanh(x) / x),
    "x_coth": (linalg.x_coth, lambda x: x * mpmath.coth(x)),
}


@pytest.mark.parametrize("name", EXACT)
def test_values_and_derivatives_over_all_magnitudes(name: str) -> None:
    ours, exact = EXACT[name]
    with mpmath.workdps(40):
        for value in (1e-12, 1e-6, 1e-3, 0.029, 0.031, 0.1, 0.249, 0.251, 0.7, 0.95):
            x = torch.tensor(value, dtype=torch.float64, requires_grad=True)
            y = ours(x)
            (slope,) = torch.autograd.grad(y, x)
            assert float(y.detach()) == pytest.approx(float(exact(mpmath.mpf(value))), rel=4e-15)
            assert float(slope) == pytest.approx(float(mpmath.diff(exact, mpmath.mpf(value))), rel=1e-11, abs=1e-15)


@pytest.mark.parametrize("name", EXACT)
def test_one_and_flat_at_zero(name: str) -> None:
    x = torch.zeros((), dtype=torch.float64, requires_grad=True)
    y = EXACT[name][0](x)
    (slope,) = torch.autograd.grad(y, x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, x)
    assert float(y.detach()) == 1
    assert float(slope.detach()) == 0
    assert torch.isfinite(curvature)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_norm_does_not_overflow_or_underflow(scale: float) -> None:
    x = (scale * torch.tensor([3.0, -4.0])).requires_grad_()
    norm = linalg.safe_norm(x)
    norm.backward()
    assert float(norm.detach()) == pytest.approx(5 * scale, rel=1e-6)
    torch.testing.assert_close(x.grad, torch.tensor([0.6, -0.8]))


def test_square_root_keeps_nan() -> None:
    """As zero it made the distance to a bad point zero."""
    x = torch.tensor([torch.nan, 4.0, 0.0, -1e-20, torch.inf], requires_grad=True)
    y = linalg.safe_sqrt(x)
    torch.testing.assert_close(y, torch.tensor([torch.nan, 2.0, 0.0, 0.0, torch.inf]), equal_nan=True)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([torch.nan, 0.25, 0.0, 0.0, 0.0]), equal_nan=True)


def test_norm_of_zero_nan_empty_and_complex() -> None:
    zero = torch.zeros(2, 3, requires_grad=True)
    linalg.safe_norm(zero).sum().backward()
    assert torch.equal(zero.grad, torch.zeros(2, 3))
    assert torch.isnan(linalg.safe_norm(torch.tensor([1.0, torch.nan])))
    assert linalg.safe_norm(torch.ones(2, 0)).tolist() == [0, 0]
    z = torch.tensor([3 + 4j, 0], dtype=torch.complex128, requires_grad=True)
    assert float(linalg.safe_norm(z).detach()) == 5
    assert linalg.safe_norm(torch.ones(2, 3, 4), dim=(-2, -1), keepdim=True).shape == (2, 1, 1)
    assert torch.autograd.gradcheck(linalg.safe_norm, torch.randn(4, dtype=torch.complex128, requires_grad=True))


def test_square_root_is_flat_at_zero() -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    linalg.safe_sqrt(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([0.0, 0.25]))
