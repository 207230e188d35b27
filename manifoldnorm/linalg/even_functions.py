"""Even functions of an angle as functions of its square, where they are smooth at zero.

Each is a `SmoothFunction`, so that it applies to numbers (`value`) and to symmetric matrices (`spectral`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from manifoldnorm.linalg.spectral_functions import SmoothFunction


def _with_series(coefficients: Sequence[float], closed: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Evaluate sum_k c_k w^k for w below 0.05 (thirteen terms are exact there) and the closed form above."""

    def evaluate(w: Tensor) -> Tensor:
        w = w.clamp(min=0)
        small = w < 0.05
        near = torch.where(small, w, torch.zeros_like(w))
        series = torch.zeros_like(w)
        for coefficient in reversed(coefficients):
            series = series * near + coefficient
        return torch.where(small, series, closed(torch.where(small, torch.ones_like(w), w)))

    return evaluate


def _smooth(coefficients: Sequence[float], *closed: Callable[[Tensor], Tensor]) -> SmoothFunction:
    """Combine a power series with the closed forms of the function and its first two derivatives."""
    first = [k * c for k, c in enumerate(coefficients)][1:]
    second = [k * c for k, c in enumerate(first)][1:]
    return SmoothFunction(*(_with_series(c, f) for c, f in zip((coefficients, first, second), closed)))


def _sine_ratio(w: Tensor) -> Tensor:
    return torch.sinc(w.sqrt() / math.pi)


def _sine_ratio_slope(w: Tensor) -> Tensor:
    return (torch.cos(w.sqrt()) - _sine_ratio(w)) / (2 * w)


def _cosine_ratio(w: Tensor) -> Tensor:
    return (torch.cos(w.sqrt()) - 1) / w


def _cosine_ratio_slope(w: Tensor) -> Tensor:
    return -(_sine_ratio(w) / 2 + _cosine_ratio(w)) / w


def _arc_ratio(t: Tensor) -> Tensor:
    return torch.atan(t.sqrt()) / t.sqrt()


def _arc_ratio_slope(t: Tensor) -> Tensor:
    return (1 / (1 + t) - _arc_ratio(t)) / (2 * t)


def _arc_ratio_curvature(t: Tensor) -> Tensor:
    return -((1 + t) ** -2 + 3 * _arc_ratio_slope(t)) / (2 * t)


_TERMS = range(15)
COSINE = _smooth(
    [(-1) ** k / math.factorial(2 * k) for k in _TERMS],
    lambda w: torch.cos(w.sqrt()),
    lambda w: -_sine_ratio(w) / 2,
    lambda w: -_sine_ratio_slope(w) / 2,
)
"""cos(a) of w = a^2."""

SINE_RATIO = _smooth(
    [(-1) ** k / math.factorial(2 * k + 1) for k in _TERMS],
    _sine_ratio,
    _sine_ratio_slope,
    lambda w: -(_sine_ratio(w) / 2 + 3 * _sine_ratio_slope(w)) / (2 * w),
)
"""sin(a) / a of w = a^2."""

COSINE_LESS_ONE = _smooth(
    [(-1) ** (k + 1) / math.factorial(2 * k + 2) for k in _TERMS],
    _cosine_ratio,
    _cosine_ratio_slope,
    lambda w: -(_sine_ratio_slope(w) / 2 + 2 * _cosine_ratio_slope(w)) / w,
)
"""(cos(a) - 1) / a^2 of w = a^2."""

ANGLE_OVER_SINE = _smooth(
    [1.0] + [(-1) ** k / (2 * k + 1) + (-1) ** (k - 1) / (2 * k - 1) for k in _TERMS if k > 0],
    lambda t: (1 + t) * _arc_ratio(t),
    lambda t: _arc_ratio(t) + (1 + t) * _arc_ratio_slope(t),
    lambda t: 2 * _arc_ratio_slope(t) + (1 + t) * _arc_ratio_curvature(t),
)
"""a / sin(a) of t = tan(a / 2)^2: (1 + t) atan(sqrt t) / sqrt t."""
