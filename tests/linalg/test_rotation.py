"""The family of turns: identities, accuracy against 40-digit arithmetic, overflow, argument checks."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from manifoldnorm.linalg.rotation import (
    check_turning_power,
    turning_angle,
    turning_coefficient_derivatives,
    turning_coefficients,
    turning_coefficients_of_length,
    turning_versine,
)

POWERS = [0.5, 1.0, 2.0, 3.0, 4.0, 8.0, math.inf]


def _exact(tau: float, p: float) -> tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]:
    """Return theta, t^2 and t in 40 digits."""
    t = mpmath.sqrt(mpmath.mpf(tau))
    return (t if math.isinf(p) else p * mpmath.atan(t / p)), mpmath.mpf(tau), t


@pytest.mark.parametrize("p", POWERS)
def test_coefficients_against_many_digits(p: float) -> None:
    """Cosine, sine ratio and versine to a few ulp from tau = 1e-12 to 1e3, in both precisions."""
    with mpmath.workdps(40):
        for dtype in (torch.float64, torch.float32):
            tau = torch.logspace(-12, 3, 61, dtype=dtype)
            values = (*turning_coefficients(tau, p), turning_versine(tau, p))
            direct = turning_coefficients_of_length(torch.sqrt(tau), p)
            for i, number in enumerate(tau.tolist()):
                theta, square, t = _exact(number, p)
                exact = (mpmath.cos(theta), mpmath.sin(theta) / t, (1 - mpmath.cos(theta)) / square)
                scale = (1, min(1, 1 / math.sqrt(number)), min(0.5, 2 / number))
                bound = 40 * torch.finfo(dtype).eps
                for value, expected, size in zip(values, exact, scale):
                    assert abs(float(value[i]) - float(expected)) <= bound * size
                for value, expected, size in zip(direct, exact, scale):
                    assert abs(float(value[i]) - float(expected)) <= bound * size


@pytest.mark.parametrize("p", POWERS)
def test_derivatives(p: float) -> None:
    """Autograd through the coefficients is right to second order, at zero too; the short form agrees times tau."""
    tau = torch.tensor([0.0, 1e-9, 1e-3, 0.05, 0.3, 1.0, 2.5, 30.0], dtype=torch.float64, requires_grad=True)
    for index in (0, 1):
        assert torch.autograd.gradcheck(lambda s: turning_coefficients(s + 1e-5, p)[index], tau)  # noqa: B023
        assert torch.autograd.gradgradcheck(lambda s: turning_coefficients(s + 1e-4, p)[index], tau)  # noqa: B023
    cosine, ratio = turning_coefficients(tau, p)
    (by_cosine,) = torch.autograd.grad(cosine.sum(), tau, retain_graph=True)
    (by_ratio,) = torch.autograd.grad(ratio.sum(), tau)
    short = turning_coefficient_derivatives(tau.detach(), cosine.detach(), ratio.detach(), p)
    torch.testing.assert_close(short[0], by_cosine, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(short[1] * tau.detach(), by_ratio * tau.detach(), rtol=1e-13, atol=1e-15)
    slope = 0.0 if math.isinf(p) else 1 / (3 * p**2)
    assert float(by_ratio[0]) == pytest.approx(-1 / 6 - slope, rel=1e-14)


def test_the_limit_is_the_exponential_map() -> None:
    """theta_p = t - t^3 / (3 p^2) + O(p^-4): the distance to p = inf falls as 1 / p^2."""
    t = torch.linspace(0.1, 3.0, 20, dtype=torch.float64)
    for p in (100.0, 1000.0):
        error = turning_angle(t, math.inf) - turning_angle(t, p)
        torch.testing.assert_close(error, t**3 / (3 * p**2), rtol=2e-3, atol=0)


def test_short_steps_turn_alike_and_long_ones_wrap_beyond_two() -> None:
    """At t = 0.5 all p from 1 on agree within 8%; the angle is monotone; only p <= 2 keeps it below pi."""
    half = torch.tensor(0.5, dtype=torch.float64)
    angles = [float(turning_angle(half, p)) for p in (1.0, 2.0, 4.0, math.inf)]
    assert min(angles) >= 0.92 * max(angles)
    t = torch.logspace(-3, 4, 200, dtype=torch.float64)
    for p in POWERS:
        angle = turning_angle(t, p)
        assert (angle.diff() > 0).all()
        assert bool((angle < math.pi).all()) == (p <= 2)


@pytest.mark.parametrize("p", POWERS)
def test_overflow_is_visible(p: float) -> None:
    """An infinite squared length is NaN, not a silent zero."""
    infinite = torch.tensor([math.inf])
    cosine, ratio = turning_coefficients(infinite, p)
    assert torch.isnan(cosine).any() or torch.isnan(ratio).any()
    cosine, ratio = turning_coefficients_of_length(infinite, p)
    assert torch.isnan(cosine).any() or torch.isnan(ratio).any()


def test_powers_that_make_no_sense() -> None:
    for p in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=r"p must be in \(0, inf\]"):
            check_turning_power(p)
    for other in ("exp", True, torch.tensor(1.0)):
        with pytest.raises(TypeError, match="p must be a number"):
            check_turning_power(other)  # type: ignore[arg-type]
    assert check_turning_power(3) == 3.0
