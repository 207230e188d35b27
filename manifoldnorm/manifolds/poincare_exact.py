"""A hyperbolic batch norm by functions that autograd differentiates any number of times, in float64.

`poincare_batch` takes its second derivatives from here; values and first derivatives agree to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.mean import Reduce


def normalized(
    u: Tensor, bias: Tensor, weight: Tensor, k: Tensor, eps: float, count: Tensor | int, reduce: Reduce
) -> Tensor:
    """Compute what `poincare_batch.normalize` does, of columns and k = 4 c."""
    exact = u.double()
    stretch, time = maps.clipped_hyperboloid(k * maps.squared_norm(exact, 1))
    velocity = reduce((stretch * exact).sum((0, 2))) / reduce(time.sum())
    mean_time = torch.rsqrt(1 - k * velocity.square().sum())
    mean = velocity * mean_time, mean_time
    variance = reduce(squared_radii(exact, *mean, k).sum()) * 4 / (k * count)
    return moved(exact, mean, bias, weight * torch.rsqrt(variance + eps), k).to(u.dtype)


def rescaled(u: Tensor, mean: Tensor, bias: Tensor, factor: Tensor, k: Tensor) -> Tensor:
    """Compute what `poincare_batch.rescale` does, of columns and k = 4 c."""
    return moved(u.double(), hyperboloid_point(mean, k), bias, factor.double(), k).to(u.dtype)


def hyperboloid_point(log: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return spatial coordinates in units of 1/(2 s), and time."""
    exact, largest = log.double(), maps.largest_radius(log.dtype)
    square = k * exact.square().sum()
    cut = square.clamp_max(largest**2)
    stretch = maps.sinhc_of_square(cut) * torch.sqrt(largest**2 / square.clamp_min(largest**2))
    return stretch * exact, maps.cosh_of_square(cut)


def squared_radii(u: Tensor, mean: Tensor, mean_time: Tensor, k: Tensor) -> Tensor:
    """Return rho^2 of (-m) (+) u."""
    stretch, time = maps.clipped_hyperboloid(k * maps.squared_norm(u, 1))
    excess = mean_time * time - k * stretch * torch.matmul(mean, u).unsqueeze(1) - 1
    sinh_square = excess * (excess + 2)
    return sinh_square * maps.asinhc_of_square(sinh_square) ** 2


def moved(u: Tensor, mean: tuple[Tensor, Tensor], bias: Tensor, factor: Tensor, k: Tensor) -> Tensor:
    """Return log coordinates of bias (+) factor ((-m) (+) u)."""
    square = squared_radii(u, *mean, k)
    stretch, time = maps.clipped_hyperboloid(k * maps.squared_norm(u, 1))
    along = time - k * stretch * torch.matmul(mean[0], u).unsqueeze(1) / (1 + mean[1])
    scaled = square * factor**2
    tau = factor * maps.sinhc_of_square(scaled) / maps.sinhc_of_square(square)
    spatial = tau * (stretch * u - along * mean[0][:, None])
    bias, bias_time = hyperboloid_point(bias, k)
    time, with_bias = maps.cosh_of_square(scaled), torch.matmul(bias, spatial).unsqueeze(1)
    excess = bias_time * time + k * with_bias - 1
    result = spatial + (k * with_bias / (1 + bias_time) + time) * bias[:, None]
    return maps.cut_asinhc(excess * (excess + 2), torch.float32) * result
