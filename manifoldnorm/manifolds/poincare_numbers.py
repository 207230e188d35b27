"""A hyperbolic batch norm as arithmetic on a few numbers per point, and its derivative.

With k = 4 c a point u has the hyperboloid coordinates time C = cosh(rho) and spatial S u = sinh(rho)/rho u in units of
1/(2 s), so that C^2 - k |S u|^2 = 1. With those of the mean, M and M0, and of the bias, B and B0, the batch norm is

    e = M0 C - k S <u, M> - 1,          Z = S u - along M,              along = C - k S <u, M> / (1 + M0),
    W0 = cosh(f rho_Z),                 W = f scale Z,                  scale = sinh(f rho_Z) / (f sinh rho_Z),
    Y0 = B0 W0 + k <W, B>,              Y = W + along_bias B,           along_bias = W0 + k <W, B> / (1 + B0),

where 1 + e = cosh(rho_Z), and log coordinates shrink Y, shrink = rho_Y / sinh(rho_Y). Numbers have shape (N, 1, P). As
far as e they are float64, because it cancels like e^(2 rho); behind it they have the dtype of the points.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.poincare_columns import COINCIDENT, total

# cosh(rho) - 1 of equal points: rho / sinh(rho) is exactly one there in float32, and no quotient overflows.
_LEAST = 1e-30


class Radii(NamedTuple):
    """rho^2, S and C."""

    square: Tensor
    stretch: Tensor
    time: Tensor


class Seen(NamedTuple):
    """<u, M> in float64; S, <u, B>, along, and of Z: e = cosh(rho) - 1, sinh(rho), rho."""

    with_mean: Tensor
    stretch: Tensor
    with_bias: Tensor
    along: Tensor
    excess: Tensor
    sinh: Tensor
    rho: Tensor


class Moved(NamedTuple):
    """f (cut where W would overflow), scale, W0, <W, B>, shrink and its derivative by Y0."""

    factor: Tensor
    scale: Tensor
    time: Tensor
    with_bias: Tensor
    shrink: Tensor
    slope: Tensor


class Pulled(NamedTuple):
    """<g, u>, <g, M> for the gradient g of the result, tau = f scale, gradients by Y0, along_bias, <W, B>, tau, W0."""

    with_u: Tensor
    with_mean: Tensor
    tau: Tensor
    by_result: Tensor
    by_along_bias: Tensor
    by_within: Tensor
    by_tau: Tensor
    by_time: Tensor


class Weights(NamedTuple):
    """Gradients by e and along, by S and C, and by <u, M> and <u, B>."""

    by_excess: Tensor
    by_along: Tensor
    by_stretch: Tensor
    by_time: Tensor
    by_mean: Tensor
    by_bias: Tensor


def radii_of(square: Tensor, dtype: torch.dtype) -> Radii:
    """Compute `Radii` of rho^2; points beyond the largest radius of a dtype are pulled in along their rays."""
    square = square.clamp_min(COINCIDENT)
    rho = square.sqrt()
    cut = rho.clamp_max(cut_radius(dtype))
    return Radii(square, torch.sinh(cut).div_(rho), cut.cosh_())


def cut_radius(dtype: torch.dtype) -> float:
    """Return the radius at which points are cut: the largest one and a bit, since results that were cut are rounded."""
    return maps.largest_radius(dtype) * (1 + 1e-4)


def radii_gradient(r: Radii, by_stretch: Tensor, by_time: Tensor, dtype: torch.dtype) -> Tensor:
    """Differentiate by rho^2."""
    inside = r.square < cut_radius(dtype) ** 2
    slope = (r.time * inside).sub_(r.stretch).div_(r.square)
    return slope.mul_(by_stretch).addcmul_(r.stretch, by_time * inside).mul_(0.5)


def see(
    r: Radii, with_mean: Tensor, with_bias: Tensor, mean_time: Tensor, k: Tensor, dtype: torch.dtype
) -> tuple[Seen, Tensor]:
    """Look at points from the mean; the second result is the sum of rho_Z^2."""
    inner = (r.stretch * with_mean).mul_(k)
    along = r.time - inner / (1 + mean_time)
    excess = (r.time * mean_time).sub_(inner).sub_(1).clamp_min_(_LEAST)
    sinh = (excess + 2).mul_(excess).sqrt_()
    rho = (excess + sinh).log1p_()
    rounded = (x.to(dtype) for x in (r.stretch, with_bias, along, excess, sinh, rho))
    return Seen(with_mean, *rounded), total(rho, rho)


def move(s: Seen, factor: Tensor, gram: Tensor, bias_time: Tensor, k: Tensor) -> Moved:
    """Scale and move to the bias; gram = <M, B>."""
    largest = maps.largest_radius(s.rho.dtype)
    limit = (2 * largest + 2) / s.rho
    factor = torch.clamp(factor, -limit, limit)
    t = (factor * s.rho).abs_().clamp_min_(_LEAST**0.5)
    scale = torch.sinh(t).div_(t).mul_(s.rho).div_(s.sinh)
    time = t.cosh_()
    with_bias = (s.stretch * s.with_bias).sub_(s.along * gram).mul_(scale).mul_(factor)
    excess = (with_bias * k).add_(time * bias_time).sub_(1).clamp_min_(_LEAST)
    square = (excess + 2).mul_(excess)
    sinh = square.sqrt()
    rho = (excess + sinh).log1p_()
    shrink = rho.clamp_max(largest).div_(sinh)
    slope = (rho < largest).to(rho.dtype).sub_(excess.add_(1).mul_(shrink)).div_(square)
    return Moved(factor, scale, time, with_bias, shrink, slope)


def coefficients(s: Seen, m: Moved, bias_share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what u, M and B are multiplied with in the result; bias_share = k / (1 + B0)."""
    scale = (m.factor * m.scale).mul_(m.shrink)
    along_bias = (m.with_bias * bias_share).add_(m.time).mul_(m.shrink)
    return scale * s.stretch, (scale * s.along).neg_(), along_bias


def pull(
    s: Seen, m: Moved, gradient: tuple[Tensor, Tensor, Tensor], gram: Tensor, bias_time: Tensor, k: Tensor
) -> tuple[Pulled, Tensor]:
    """Differentiate as far back as W; gradient = <g, u>, <g, M>, <g, B>. The second result is the gradient by f."""
    with_u, with_mean, with_bias = gradient
    share, tau = k / (1 + bias_time), m.factor * m.scale
    spatial = (with_u * s.stretch).sub_(with_mean * s.along)
    by_result = (m.with_bias * share).add_(m.time).mul_(with_bias).addcmul_(spatial, tau).mul_(m.slope)
    by_along_bias = with_bias * m.shrink
    by_within = (by_along_bias * share).add_(by_result * k)
    by_tau = (s.stretch * s.with_bias).sub_(s.along * gram).mul_(by_within).addcmul_(spatial, m.shrink)
    by_time = (by_result * bias_time).add_(by_along_bias)
    by_factor = total((by_tau * m.time).addcmul_(by_time * tau, s.sinh * s.sinh), s.rho / s.sinh)
    return Pulled(with_u, with_mean, tau, by_result, by_along_bias, by_within, by_tau, by_time), by_factor


def pull_further(
    r: Radii, s: Seen, m: Moved, p: Pulled, by_squares: Tensor, gram: Tensor, mean_time: Tensor, k: Tensor
) -> Weights:
    """Differentiate as far back as S, C and the products; by_squares = gradient by the sum of rho_Z^2."""
    excess = (m.scale * (s.excess + 1)).neg_().add_(m.time).mul_(p.by_tau).div_(s.sinh * s.sinh)
    excess.addcmul_(p.by_time, p.tau).mul_(m.factor).addcmul_(s.rho / s.sinh, 2 * by_squares)
    within, shrunk = p.by_within * p.tau, p.tau * m.shrink
    by_excess, by_along = excess.double(), (p.with_mean * shrunk).addcmul_(within, gram).neg_().double()
    by_inner = (by_along / (1 + mean_time)).add_(by_excess).mul_(-k)
    by_stretch = (p.with_u * shrunk).addcmul_(within, s.with_bias).double().addcmul_(by_inner, s.with_mean)
    by_time = (by_excess * mean_time).add_(by_along)
    return Weights(by_excess, by_along, by_stretch, by_time, by_inner.mul_(r.stretch), within.mul_(s.stretch).double())
