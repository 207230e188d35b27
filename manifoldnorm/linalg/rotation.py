"""A one-parameter family of rotations: how far a step of a given length turns, and the coefficients of the turn.

A step of length `t` (in units of the radius) turns by the angle `p atan(t / p)`, with `p` in (0, inf]. `p` = 1 is the
metric projection of the straight step, `p` = 2 the Cayley transform, `p` = inf turns by `t` itself. The coefficients
are written as functions of tau = t^2, in which they are analytic: no square root, no 0 / 0, derivatives of every order.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ATAN_TERMS = 14
_ATAN_BOUND = 0.06


def check_turning_power(p: float, name: str = "p") -> float:
    """Return `p` as a float; raise unless it is a number in (0, inf]."""
    if isinstance(p, bool) or not isinstance(p, (int, float)):
        raise TypeError(
            f"{name} must be a number in (0, inf], got {type(p).__name__}; 1 is the projection, 2 Cayley, "
            "math.inf the exponential map"
        )
    if not p > 0:
        raise ValueError(
            f"{name} must be in (0, inf], got {p}; 1 is the projection, 2 Cayley, math.inf the exponential map"
        )
    return float(p)


def _guard(s: Tensor, bound: float) -> tuple[Tensor, Tensor, Tensor]:
    """Split s >= 0 into a mask of small values, s where small and 0 elsewhere, and s where large and 1 elsewhere."""
    small = s < bound
    return small, torch.where(small, s, torch.zeros_like(s)), torch.where(small, torch.ones_like(s), s)


def _horner(s: Tensor, coefficients: list[float]) -> Tensor:
    result = torch.full_like(s, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * s + coefficient
    return result


def _cos_sqrt(s: Tensor) -> Tensor:
    """Compute cos(sqrt(s))."""
    small, low, high = _guard(s, 1.0)
    series = _horner(low, [(-1) ** k / math.factorial(2 * k) for k in range(10)])
    return torch.where(small, series, torch.cos(torch.sqrt(high)))


def _sinc_sqrt(s: Tensor) -> Tensor:
    """Compute sin(sqrt(s)) / sqrt(s)."""
    small, low, high = _guard(s, 1.0)
    series = _horner(low, [(-1) ** k / math.factorial(2 * k + 1) for k in range(10)])
    root = torch.sqrt(high)
    return torch.where(small, series, torch.sin(root) / root)


def _atanc_sqrt(s: Tensor) -> Tensor:
    """Compute atan(sqrt(s)) / sqrt(s); NaN for an infinite s, which is an overflow."""
    small, low, high = _guard(s, _ATAN_BOUND)
    series = _horner(low, [(-1) ** k / (2 * k + 1) for k in range(_ATAN_TERMS)])
    root = torch.sqrt(high)
    return torch.where(small, series, torch.atan(root) * root / high)


def turning_angle(length: Tensor, p: float) -> Tensor:
    """Compute the angle p atan(length / p) by which a step turns; it stays below p pi / 2.

    Parameters
    ----------
    length : Tensor
        Length of the step in units of the radius.
    p : float
        In (0, inf].

    Examples
    --------
    >>> turning_angle(torch.tensor([0.5, 1e6]), 2.0)
    tensor([0.4900, 3.1416])
    """
    return length if p == math.inf else p * torch.atan(length / p)


def turning_length(angle: Tensor, p: float) -> Tensor:
    """Invert `turning_angle`: p tan(angle / p); NaN from the supremum p pi / 2 of the angles on.

    Examples
    --------
    >>> turning_length(torch.tensor([0.4900, 2.0]), 1.0)
    tensor([0.5334,    nan])
    """
    if p == math.inf:
        return angle
    reachable = angle < p * (math.pi / 2)
    return torch.where(reachable, p * torch.tan(torch.where(reachable, angle / p, 0.0)), torch.nan)


def turning_coefficients(tau: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Compute cos(theta) and sin(theta) / t of the angle theta = p atan(t / p), as functions of tau = t^2.

    A point x turned along a tangent v of length t is cos(theta) x + sin(theta) / t v.

    Parameters
    ----------
    tau : Tensor
        Squared length of the step in units of the radius, nonnegative, any shape. An overflow to infinity gives NaN.
    p : float
        In (0, inf].

    Returns
    -------
    cosine, ratio : Tensor
        Of the shape and dtype of `tau`; 1 at zero; differentiable to any order.

    Examples
    --------
    >>> turning_coefficients(torch.tensor([0.0, 3.0]), 1.0)
    (tensor([1.0000, 0.5000]), tensor([1.0000, 0.5000]))
    """
    if p == 1:
        # Not rsqrt: infinity over infinity shows an overflow, which 1 / infinity would hide.
        secant2 = 1 + tau
        cosine = torch.sqrt(secant2) / secant2
        return cosine, cosine
    if p == 2:
        quarter = tau * 0.25
        shrink = 1 / (1 + quarter)
        return (1 - quarter) * shrink, shrink
    if p == 4:
        w = tau * 0.0625
        shrink = 1 / (1 + w)
        square = shrink * shrink
        return (1 - w * (6 - w)) * square, (1 - w) * square
    if p == math.inf:
        return _cos_sqrt(tau), _sinc_sqrt(tau)
    slope = _atanc_sqrt(tau / p**2)
    square = tau * slope * slope
    return _cos_sqrt(square), _sinc_sqrt(square) * slope


def turning_coefficients_of_length(length: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Compute `turning_coefficients` of length^2 in fewer operations, for values only: no derivative at zero.

    Examples
    --------
    >>> turning_coefficients_of_length(torch.tensor([0.0, 2.0]), 2.0)
    (tensor([1., 0.]), tensor([1.0000, 0.5000]))
    """
    if p in (1, 2, 4):
        cosine, ratio = turning_coefficients(length * length, p)
        return cosine, ratio.clone() if cosine is ratio else ratio
    # sin(t) / t is 1 to the last bit long before the floor; the zero factor turns an overflow into NaN. (No clamp_min:
    # it keeps the compiler from moving all this out of the loop over a row.)
    length = torch.where(length < 1e-30, 1e-30, length)
    angle = turning_angle(length, p).add(length, alpha=0)
    return torch.cos(angle), torch.sin(angle).div_(length)


def turning_coefficient_derivatives(tau: Tensor, cosine: Tensor, ratio: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Differentiate `turning_coefficients` with respect to tau, given their values, in few operations.

    For other p than 1 and 2 the second result cancels for small tau, with an absolute error of eps / tau. It is meant
    for the gradient of a turn, where tau multiplies it, and the error becomes one of rounding.

    Examples
    --------
    >>> tau = torch.tensor([4.0])
    >>> turning_coefficient_derivatives(tau, *turning_coefficients(tau, 2.0), 2.0)
    (tensor([-0.1250]), tensor([-0.0625]))
    """
    if p == 1:
        derivative = -0.5 * ratio * ratio * ratio
        return derivative, derivative
    if p == 2:
        square = ratio * ratio
        return -0.5 * square, -0.25 * square
    h = 1.0 if p == math.inf else 1 / (1 + tau / p**2)
    return -0.5 * ratio * h, (cosine * h - ratio) / (2 * torch.where(tau < 1e-30, 1e-30, tau))


def turning_versine(tau: Tensor, p: float) -> Tensor:
    """Compute (1 - cos(theta)) / t^2 for the angle theta = p atan(t / p), as a function of tau = t^2.

    Examples
    --------
    >>> turning_versine(torch.tensor([0.0, 4.0]), 2.0)
    tensor([0.5000, 0.2500])
    """
    slope = torch.ones_like(tau) if p == math.inf else _atanc_sqrt(tau / p**2)
    half = _sinc_sqrt(tau * slope * slope / 4) * slope
    return half * half / 2
