"""Scalar functions with divided differences, as the spectral functions of matrices need them.

For eigenvalues a, b, c the first divided difference is f[a, b] = (f(a) - f(b)) / (a - b), or f'(a) when a = b, and the
second f[a, b, c] = (f[a, c] - f[b, c]) / (a - b), or its limit. They are the coefficients of the first and second
derivative of A -> f(A) (Daleckii and Krein, 1965). The forms here do not cancel when eigenvalues are close. They are
called inside autograd functions, where nothing is recorded, so a `where` needs no guard against the branch not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


class SpectralFunction:
    """A scalar function with its first and second divided differences.

    A subclass gives `value`, `first` and `second`; each broadcasts and is called with real eigenvalues. For a function
    known only by its derivatives use `SmoothFunction`.
    """

    def value(self, w: Tensor) -> Tensor:
        """Evaluate f(w)."""
        raise NotImplementedError(f"{type(self).__name__} must define value(w)")

    def first(self, a: Tensor, b: Tensor) -> Tensor:
        """Evaluate f[a, b]."""
        raise NotImplementedError(f"{type(self).__name__} must define first(a, b)")

    def second(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Evaluate f[a, b, c]."""
        raise NotImplementedError(f"{type(self).__name__} must define second(a, b, c)")


# A gap below this counts as this large, where what is computed of it has long reached its limit.
_LEAST_GAP = 1e-30


def negative_gap(a: Tensor, b: Tensor) -> Tensor:
    """Compute -|a - b|, but not zero, so that expm1(x) / x of it neither cancels nor overflows nor divides by zero."""
    return (a - b).abs().neg().clamp(max=-_LEAST_GAP)


def _sorted(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    return torch.minimum(low, c), torch.maximum(low, torch.minimum(high, c)), torch.maximum(high, c)


def _second_from_first(
    function: SpectralFunction, a: Tensor, b: Tensor, c: Tensor, limit: Tensor, close: Tensor
) -> Tensor:
    """Divide over the widest gap; take `limit` where the three arguments are `close`."""
    low, middle, high = _sorted(a, b, c)
    gap = torch.where(close, torch.ones_like(low), high - low)
    return torch.where(close, limit, (function.first(middle, high) - function.first(low, middle)) / gap)


def _taylor(second: Tensor, fourth: Tensor, mean: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """f[a, b, c] from the second and fourth derivative at the mean of the arguments (the third drops out)."""
    squares = (a - mean) ** 2 + (b - mean) ** 2 + (c - mean) ** 2
    return second / 2 + fourth * squares / 48


def _taylor_radius(x: Tensor) -> float:
    """Gap, relative to the scale of the function, where the Taylor form and the quotient are equally exact."""
    return float(torch.finfo(x.dtype).eps ** 0.25)


@dataclass(frozen=True)
class Log(SpectralFunction):
    """The natural logarithm of positive eigenvalues; NaN for the others."""

    def value(self, w: Tensor) -> Tensor:  # noqa: D102
        return torch.log(torch.where(w > 0, w, torch.full_like(w, torch.nan)))

    def first(self, a: Tensor, b: Tensor) -> Tensor:  # noqa: D102
        # With x = -|log a - log b| it is x / expm1(x) / max(a, b), which does not feel the error of a small x.
        x = negative_gap(torch.log(a), torch.log(b))
        return x.div(torch.expm1(x)).mul_(torch.minimum(1 / a, 1 / b))

    def second(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:  # noqa: D102
        mean = (a + b + c) / 3
        low, _, high = _sorted(a, b, c)
        close = high - low < _taylor_radius(mean) * mean
        limit = _taylor(-(mean**-2), -6 * mean**-4, mean, a, b, c)
        return _second_from_first(self, a, b, c, limit, close)


@dataclass(frozen=True)
class Exp(SpectralFunction):
    """The exponential."""

    def value(self, w: Tensor) -> Tensor:  # noqa: D102
        return torch.exp(w)

    def first(self, a: Tensor, b: Tensor) -> Tensor:  # noqa: D102
        x = negative_gap(a, b)
        return torch.expm1(x).div_(x).mul_(torch.maximum(torch.exp(a), torch.exp(b)))

    def second(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:  # noqa: D102
        mean = (a + b + c) / 3
        low, _, high = _sorted(a, b, c)
        close = high - low < _taylor_radius(mean)
        limit = _taylor(torch.exp(mean), torch.exp(mean), mean, a, b, c)
        return _second_from_first(self, a, b, c, limit, close)


@dataclass(frozen=True)
class Sqrt(SpectralFunction):
    """The square root of nonnegative eigenvalues; NaN for negative ones."""

    def value(self, w: Tensor) -> Tensor:  # noqa: D102
        return torch.sqrt(w)

    def first(self, a: Tensor, b: Tensor) -> Tensor:  # noqa: D102
        return 1 / (torch.sqrt(a) + torch.sqrt(b))

    def second(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:  # noqa: D102
        ra, rb, rc = torch.sqrt(a), torch.sqrt(b), torch.sqrt(c)
        return -1 / ((ra + rb) * (ra + rc) * (rb + rc))


@dataclass(frozen=True)
class InverseSqrt(SpectralFunction):
    """The inverse square root of positive eigenvalues; NaN for negative ones."""

    def value(self, w: Tensor) -> Tensor:  # noqa: D102
        return torch.rsqrt(w)

    def first(self, a: Tensor, b: Tensor) -> Tensor:  # noqa: D102
        ra, rb = torch.sqrt(a), torch.sqrt(b)
        return -1 / (ra * rb * (ra + rb))

    def second(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:  # noqa: D102
        ra, rb, rc = torch.sqrt(a), torch.sqrt(b), torch.sqrt(c)
        return (ra + rb + rc) / (ra * rb * rc * (ra + rb) * (ra + rc) * (rb + rc))


def first_difference_of_power(w: Tensor, logs: Tensor, exponent: Tensor) -> Tensor:
    """Evaluate the divided differences of w ** exponent for all pairs of the last dimension.

    Parameters
    ----------
    w, logs : Tensor
        Positive numbers of shape (..., n) and their logarithms.
    exponent : Tensor
        Broadcastable with `w`.
    """
    powers = torch.exp(exponent * logs)
    inverse = 1 / w
    return _difference_of_power(
        negative_gap(logs.unsqueeze(-1), logs.unsqueeze(-2)),
        torch.maximum(powers.unsqueeze(-1), powers.unsqueeze(-2)),
        torch.minimum(inverse.unsqueeze(-1), inverse.unsqueeze(-2)),
        exponent.unsqueeze(-1),
    )


def _difference_of_power(x: Tensor, power: Tensor, inverse: Tensor, exponent: Tensor) -> Tensor:
    """With x = -|log a - log b|, |a^p - b^p| / |a - b| = max(a^p, b^p) (1 - e^(|p| x)) / (max(a, b) (1 - e^x))."""
    ratio = torch.expm1(exponent.abs() * x).div_(torch.expm1(x))
    return power.mul_(inverse).mul_(ratio).mul_(exponent.sign())


@dataclass(frozen=True)
class Power(SpectralFunction):
    """The power w ** exponent of positive eigenvalues; NaN for the others."""

    exponent: float

    def value(self, w: Tensor) -> Tensor:  # noqa: D102
        return torch.where(w > 0, w, torch.full_like(w, torch.nan)) ** self.exponent

    def first(self, a: Tensor, b: Tensor) -> Tensor:  # noqa: D102
        p = torch.full((), self.exponent, dtype=a.dtype, device=a.device)
        power, inverse = torch.maximum(a**p, b**p), torch.minimum(1 / a, 1 / b)
        return _difference_of_power(negative_gap(torch.log(a), torch.log(b)), power, inverse, p)

    def second(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:  # noqa: D102
        p = self.exponent
        mean = (a + b + c) / 3
        low, _, high = _sorted(a, b, c)
        close = high - low < _taylor_radius(mean) * mean
        twice = p * (p - 1) * mean ** (p - 2)
        limit = _taylor(twice, twice * (p - 2) * (p - 3) * mean**-2, mean, a, b, c)
        return _second_from_first(self, a, b, c, limit, close)


@dataclass(frozen=True)
class ClampMin(SpectralFunction):
    """max(w, minimum), the eigenvalue rectification of SPD networks; its derivative at the corner is zero."""

    minimum: float

    def value(self, w: Tensor) -> Tensor:  # noqa: D102
        return torch.clamp(w, min=self.minimum)

    def first(self, a: Tensor, b: Tensor) -> Tensor:  # noqa: D102
        low, high = torch.minimum(a, b), torch.maximum(a, b)
        mixed = (low <= self.minimum) & (high > self.minimum)
        gap = torch.where(mixed, high - low, torch.ones_like(a))
        return torch.where(mixed, (high - self.minimum) / gap, (low > self.minimum).to(a.dtype))

    def second(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:  # noqa: D102
        low, _, high = _sorted(a, b, c)
        return _second_from_first(self, a, b, c, torch.zeros_like(low), high <= low)


@dataclass(frozen=True)
class SmoothFunction(SpectralFunction):
    """A function given by itself and its first two derivatives.

    Divided differences are quotients where the arguments are apart and Taylor forms where they are close; about half
    of the digits are right in the first divided difference at the worst gap, and a third in the second. A form that
    does not cancel, where one exists, is worth a `SpectralFunction` of its own.

    Parameters
    ----------
    function, derivative, second_derivative : callable
        Elementwise functions of a tensor of eigenvalues.

    Examples
    --------
    >>> from manifoldnorm.linalg import spectral
    >>> cosine = SmoothFunction(torch.cos, lambda w: -torch.sin(w), lambda w: -torch.cos(w))
    >>> spectral(torch.zeros(2, 2), cosine)
    tensor([[1., 0.],
            [0., 1.]])
    """

    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    second_derivative: Callable[[Tensor], Tensor]

    def value(self, w: Tensor) -> Tensor:  # noqa: D102
        return self.function(w)

    def first(self, a: Tensor, b: Tensor) -> Tensor:  # noqa: D102
        difference = a - b
        scale = torch.maximum(a.abs(), b.abs()).clamp_min(torch.finfo(a.dtype).tiny)
        close = difference.abs() <= torch.finfo(a.dtype).eps ** 0.5 * scale
        gap = torch.where(close, torch.ones_like(difference), difference)
        quotient = (self.function(a) - self.function(b)) / gap
        return torch.where(close, (self.derivative(a) + self.derivative(b)) / 2, quotient)

    def second(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:  # noqa: D102
        low, middle, high = _sorted(a, b, c)
        scale = torch.maximum(low.abs(), high.abs()).clamp_min(torch.finfo(a.dtype).tiny)
        close = high - low <= torch.finfo(a.dtype).eps ** (1 / 3) * scale
        return _second_from_first(self, a, b, c, self.second_derivative((low + middle + high) / 3) / 2, close)
