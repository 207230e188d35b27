"""Odd scalar functions with divided differences, as odd functions of singular values need them.

For A = U diag(s) V^H the odd function is U diag(h(s)) V^H. Its derivatives are made of the divided differences of h at
the singular values, their negatives and zero, so every form here is right for arguments of either sign.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manifoldnorm.linalg.spectral_functions import (
    SpectralFunction,
    _second_from_first,
    _sorted,
    _taylor,
    _taylor_radius,
)
from manifoldnorm.linalg.stable import atanhc, sinhc, x_coth


@dataclass(frozen=True)
class Tanh(SpectralFunction):
    """The hyperbolic tangent."""

    def value(self, w: Tensor) -> Tensor:  # noqa: D102
        return torch.tanh(w)

    def first(self, a: Tensor, b: Tensor) -> Tensor:  # noqa: D102
        # sinh(a - b) / (a - b) / (cosh a cosh b), with the exponentials combined before they overflow.
        gap, total = (a - b).abs(), a.abs() + b.abs()
        near = gap < 1
        small, large = torch.where(near, gap, torch.zeros_like(gap)), torch.where(near, torch.ones_like(gap), gap)
        numerator = torch.where(
            near, sinhc(small) * torch.exp(-total), -torch.expm1(-2 * large) * torch.exp(large - total) / (2 * large)
        )
        return 4 * numerator / ((1 + torch.exp(-2 * a.abs())) * (1 + torch.exp(-2 * b.abs())))

    def second(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:  # noqa: D102
        mean = (a + b + c) / 3
        low, _, high = _sorted(a, b, c)
        t = torch.tanh(mean)
        u = 1 - t * t
        limit = _taylor(-2 * t * u, 8 * t * u * (2 - 3 * t * t), mean, a, b, c)
        return _second_from_first(self, a, b, c, limit, high - low < _taylor_radius(mean))


@dataclass(frozen=True)
class Atanh(SpectralFunction):
    """The inverse hyperbolic tangent of values in (-1, 1); infinite or NaN for the others."""

    def value(self, w: Tensor) -> Tensor:  # noqa: D102
        return torch.atanh(w)

    def first(self, a: Tensor, b: Tensor) -> Tensor:  # noqa: D102
        difference, below = a - b, _one_minus_product(a, b)
        near = difference.abs() < 0.5 * below
        ratio = torch.where(near, difference / below, torch.zeros_like(below))
        gap = torch.where(near, torch.ones_like(difference), difference)
        return torch.where(near, atanhc(ratio) / below, (torch.atanh(a) - torch.atanh(b)) / gap)

    def second(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:  # noqa: D102
        mean = (a + b + c) / 3
        low, _, high = _sorted(a, b, c)
        below = _one_minus_product(mean, mean)
        limit = _taylor(2 * mean / below**2, 24 * mean * (1 + mean * mean) / below**4, mean, a, b, c)
        return _second_from_first(self, a, b, c, limit, high - low < _taylor_radius(mean) * below)


def _one_minus_product(a: Tensor, b: Tensor) -> Tensor:
    """Compute 1 - ab without cancellation for arguments near one."""
    p, q = a.abs(), b.abs()
    return torch.where(a * b > 0, (1 - p) + p * (1 - q), 1 - a * b)


@dataclass(frozen=True)
class AsinhRatio(SpectralFunction):
    """asinh(w) / sqrt(1 + w^2): theta / cosh(theta) as a function of w = sinh(theta)."""

    def value(self, w: Tensor) -> Tensor:  # noqa: D102
        return torch.asinh(w) / torch.sqrt(1 + w * w)

    def first(self, a: Tensor, b: Tensor) -> Tensor:  # noqa: D102
        # With m and d half the sum and difference of the hyperbolic angles: (d coth d - m tanh m) / (cosh cosh).
        alpha, beta = torch.asinh(a), torch.asinh(b)
        middle = (alpha + beta) / 2
        numerator = x_coth((alpha - beta) / 2) - middle * torch.tanh(middle)
        return numerator / (torch.sqrt(1 + a * a) * torch.sqrt(1 + b * b))

    def second(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:  # noqa: D102
        mean = (a + b + c) / 3
        low, _, high = _sorted(a, b, c)
        h, scale = self.value(mean), 1 + mean * mean
        # (1 + w^2) h' + w h = 1, differentiated again and again.
        one = (1 - mean * h) / scale
        two = -(3 * mean * one + h) / scale
        three = -(5 * mean * two + 4 * one) / scale
        four = -(7 * mean * three + 9 * two) / scale
        limit = _taylor(two, four, mean, a, b, c)
        return _second_from_first(self, a, b, c, limit, high - low < _taylor_radius(mean) * torch.sqrt(scale))


@dataclass(frozen=True)
class ClampMagnitude(SpectralFunction):
    """Values clamped to [-maximum, maximum]; the derivative at the corner is one."""

    maximum: float

    def value(self, w: Tensor) -> Tensor:  # noqa: D102
        return torch.clamp(w, min=-self.maximum, max=self.maximum)

    def first(self, a: Tensor, b: Tensor) -> Tensor:  # noqa: D102
        inside = (a.abs() <= self.maximum) & (b.abs() <= self.maximum)
        apart = ~inside & (a != b)
        gap = torch.where(apart, a - b, torch.ones_like(a))
        return torch.where(apart, (self.value(a) - self.value(b)) / gap, inside.to(a.dtype))

    def second(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:  # noqa: D102
        low, _, high = _sorted(a, b, c)
        return _second_from_first(self, a, b, c, torch.zeros_like(low), high <= low)


@dataclass(frozen=True)
class Sign(SpectralFunction):
    """The sign: applied to singular values it gives the unitary polar factor of a matrix of full rank."""

    def value(self, w: Tensor) -> Tensor:  # noqa: D102
        return torch.sign(w)

    def first(self, a: Tensor, b: Tensor) -> Tensor:  # noqa: D102
        apart = torch.sign(a) != torch.sign(b)
        gap = torch.where(apart, a - b, torch.ones_like(a))
        return torch.where(apart, (torch.sign(a) - torch.sign(b)) / gap, torch.zeros_like(a))

    def second(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:  # noqa: D102
        low, _, high = _sorted(a, b, c)
        return _second_from_first(self, a, b, c, torch.zeros_like(low), high <= low)
