"""A hyperbolic batch norm by functions that autograd differentiates any number of times, in float64.

`poincare_batch` takes its second derivatives from here; values and first derivatives agree to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.mean import Reduce
from manifoldnorm.manifolds.poincare_numbers import cut_radius


def normalized(
    u: Tensor, bias: Tensor, weight: Tensor, k: Tensor, eps: float, count: Tensor | int, reduce: Reduce
) -> Tensor:
    """Compute what `poincare_batch.normalize` does, of columns and k = 4 c."""
    points = _hyperboloid(u.double(), k, u.dtype)
    velocity = reduce(points[0].sum((0, 2))).unsqueeze(-1) / reduce(points[1].sum())
    mean_time = torch.rsqrt(1 - k * velocity.square().sum())
    mean = velocity * mean_time, mean_time
    variance = reduce(_squared_radii(points, mean, k).sum()) * 4 / (k * count)
    return _moved(points, mean, _point(bias, k), weight * torch.rsqrt(variance + eps), k, u.dtype)


def rescaled(u: Tensor, mean: Tensor, bias: Tensor, factor: Tensor, k: Tensor) -> Tensor:
    """Compute what `poincare_batch.rescale` does, of columns and k = 4 c."""
    points = _hyperboloid(u.double(), k, u.dtype)
    return _moved(points, _point(mean, k), _point(bias, k), factor.double(), k, u.dtype)


def squared_distances(u: Tensor, mean: Tensor, k: Tensor) -> Tensor:
    """Compute the sum of the squared distances of columns to a point."""
    exact = u.double()
    (spatial, mean_time), (stretch, time) = _point(mean, k), _stretch_and_time(exact, k, u.dtype)
    # In this order little but numbers per point is kept for the backward pass.
    excess = mean_time * time - k * stretch * torch.matmul(spatial.mT, exact) - 1
    return _square_of(excess).sum() * 4 / k


Points = tuple[Tensor, Tensor]


def _hyperboloid(u: Tensor, k: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return spatial coordinates, in units of 1/(2 s), and time, of points (..., n, P), cut as their dtype asks."""
    stretch, time = _stretch_and_time(u, k, dtype)
    return stretch * u, time


def _stretch_and_time(u: Tensor, k: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    square, bound = k * maps.squared_norm(u, -2), cut_radius(dtype) ** 2
    cut = square.clamp_max(bound)
    return maps.sinhc_of_square(cut) * torch.sqrt(bound / square.clamp_min(bound)), maps.cosh_of_square(cut)


def _point(log: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Do the same for one point (n,)."""
    spatial, time = _hyperboloid(log.double().unsqueeze(-1), k, log.dtype)
    return spatial, time.squeeze()


def _squared_radii(points: Points, mean: Points, k: Tensor) -> Tensor:
    """Return rho^2 of (-m) (+) u."""
    return _square_of(mean[1] * points[1] - k * maps.dot(mean[0], points[0], -2) - 1)


def _square_of(excess: Tensor) -> Tensor:
    """Return rho^2 of cosh(rho) - 1."""
    sinh_square = excess * (excess + 2)
    return sinh_square * maps.asinhc_of_square(sinh_square) ** 2


def _moved(points: Points, mean: Points, bias: Points, factor: Tensor, k: Tensor, dtype: torch.dtype) -> Tensor:
    """Return log coordinates of bias (+) factor ((-m) (+) u)."""
    square = _squared_radii(points, mean, k)
    along = points[1] - k * maps.dot(mean[0], points[0], -2) / (1 + mean[1])
    scaled = square * factor**2
    tau = factor * maps.sinhc_of_square(scaled) / maps.sinhc_of_square(square)
    spatial = tau * (points[0] - along * mean[0])
    time, with_bias = maps.cosh_of_square(scaled), k * maps.dot(bias[0], spatial, -2)
    excess = bias[1] * time + with_bias - 1
    result = spatial + (with_bias / (1 + bias[1]) + time) * bias[0]
    return (maps.cut_asinhc(excess * (excess + 2), dtype) * result).to(dtype)
