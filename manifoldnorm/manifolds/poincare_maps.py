"""Maps of the Poincaré ball as plain functions, in ball coordinates and in log coordinates.

The ball of curvature -c holds the points |x| < 1/sqrt(c). Its log coordinates are u = log_0(x) = atanh(s|x|) x /
(s|x|), with s = sqrt(c); the distance of x from the origin is 2|u|, and rho = 2 s |u| is that distance in units of 1/s.
On the hyperboloid the same point is (cosh rho, sinh(rho) u/|u|). Log coordinates fill the whole space, so nothing has
to be clamped to a rim, and Moebius addition is a Lorentz boost without a division by 1 - c|x|^2.

Every function takes the curvature `c > 0` as a float or a scalar tensor (which may require a gradient) and the vector
axis `dim`, and broadcasts. Derivatives of all orders are finite at the origin and at coincident points, since radial
functions are evaluated as power series of the squared radius there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg import safe_norm, safe_sqrt

# Below these squared radii the truncated series are exact in float64.
_FACTORIAL_BOUND, _GEOMETRIC_BOUND = 0.25, 1e-3


def root(c: float | Tensor) -> float | Tensor:
    """Return s = sqrt(c)."""
    return c.sqrt() if isinstance(c, Tensor) else math.sqrt(c)


def largest_radius(dtype: torch.dtype) -> float:
    """Return the largest rho = 2 s |u| at which log coordinates of a dtype still resolve points: 7/8 log(1/eps).

    It is 31.5 in float64, 13.9 in float32. A boost loses digits like eps e^rho.
    """
    return -0.875 * math.log(torch.finfo(dtype).eps)


def largest_norm(dtype: torch.dtype) -> float:
    """Return the largest s |x| < 1 that is told apart from the rim after rounding: 1 - 4 eps."""
    return 1 - 4 * torch.finfo(dtype).eps


def squared_norm(x: Tensor, dim: int) -> Tensor:
    """Sum squares over `dim`, which stays with size one."""
    return (x * x).sum(dim, keepdim=True)


def dot(x: Tensor, y: Tensor, dim: int) -> Tensor:
    """Sum products over `dim`, which stays with size one."""
    return (x * y).sum(dim, keepdim=True)


# Radial functions of the squared radius.


def _radial(
    square: Tensor, bound: float, coefficients: Sequence[float], function: Callable[[Tensor], Tensor]
) -> Tensor:
    """Evaluate a power series of `square` below `bound` and `function(sqrt(square))` above."""
    small = square < bound
    inner = torch.where(small, square, 0.0)
    series = torch.full_like(inner, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        series = series * inner + coefficient
    return torch.where(small, series, function(torch.sqrt(torch.where(small, 1.0, square))))


_SINHC = [1 / math.factorial(2 * k + 1) for k in range(8)]
_COSH = [1 / math.factorial(2 * k) for k in range(9)]
_ATANHC = [1 / (2 * k + 1) for k in range(6)]
_ASINHC = [(-1) ** k * math.comb(2 * k, k) / (4**k * (2 * k + 1)) for k in range(6)]
_TANHC = [1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925]
_SINHC_DEFECT = [-1 / math.factorial(2 * k + 3) for k in range(8)]


def asinh(x: Tensor) -> Tensor:
    """Compute asinh of nonnegative `x`, by log1p because torch's own is 40 times slower on the CPU."""
    square = x * x
    return torch.log1p(x + square / (1 + torch.sqrt(1 + square)))


def sinhc_of_square(q: Tensor) -> Tensor:
    """Compute sinh(r) / r of q = r^2."""
    return _radial(q, _FACTORIAL_BOUND, _SINHC, lambda r: torch.sinh(r) / r)


def cosh_of_square(q: Tensor) -> Tensor:
    """Compute cosh(r) of q = r^2."""
    return _radial(q, _FACTORIAL_BOUND, _COSH, torch.cosh)


def asinhc_of_square(q: Tensor) -> Tensor:
    """Compute asinh(r) / r of q = r^2."""
    return _radial(q, _GEOMETRIC_BOUND, _ASINHC, lambda r: asinh(r) / r)


def tanhc_of_square(q: Tensor) -> Tensor:
    """Compute tanh(r) / r of q = r^2."""
    return _radial(q, _GEOMETRIC_BOUND, _TANHC, lambda r: torch.tanh(r) / r)


def atanhc_of_square(q: Tensor) -> Tensor:
    """Compute atanh(r) / r of q = r^2 < 1; NaN from 1 on, which no point of the ball reaches."""
    inside = q < 1
    value = _radial(torch.where(inside, q, 0.0), _GEOMETRIC_BOUND, _ATANHC, lambda r: torch.atanh(r) / r)
    return torch.where(inside, value, torch.nan)


def clip_norm(x: Tensor, radius: float | Tensor, dim: int) -> Tensor:
    """Shorten the vectors that are longer than `radius`; infinite entries count as very large ones, NaN stays NaN."""
    huge = torch.finfo(x.dtype).max / max(1, x.shape[dim])
    x = x.clamp(-huge, huge)
    norm = safe_norm(x, dim, keepdim=True)
    return x * (radius / norm.clamp_min(radius) if isinstance(radius, float) else radius / torch.maximum(norm, radius))


# Ball coordinates.


def exp0(u: Tensor, c: float | Tensor, dim: int) -> Tensor:
    """Map log coordinates to the ball: tanh(s|u|) u / (s|u|)."""
    return u * tanhc_of_square(c * squared_norm(u, dim))


def log0(x: Tensor, c: float | Tensor, dim: int) -> Tensor:
    """Map the ball to log coordinates: atanh(s|x|) x / (s|x|); NaN for points outside."""
    return x * atanhc_of_square(c * squared_norm(x, dim))


def gap(x: Tensor, c: float | Tensor, dim: int) -> Tensor:
    """Compute 1 - c|x|^2, which is 2 over the conformal factor; NaN for points outside the ball."""
    value = 1 - c * squared_norm(x, dim)
    return torch.where(value > 0, value, torch.nan)


def mobius_add(x: Tensor, y: Tensor, c: float | Tensor, dim: int) -> Tensor:
    """Compute x (+) y in ball coordinates.

    With w = x + y it is (gap(x) w + c|w|^2 x) / (gap(x) gap(y) + c|w|^2), the textbook quotient with its cancelling
    terms cancelled.
    """
    total, gap_x = x + y, gap(x, c, dim)
    square = c * squared_norm(total, dim)
    return (gap_x * total + square * x) / (gap_x * gap(y, c, dim) + square)


def center(x: Tensor, base: Tensor, c: float | Tensor, dim: int) -> Tensor:
    """Compute log_0((-base) (+) x) in ball coordinates without forming the sum, so that it is exact near the rim."""
    step, gap_x, gap_b = x - base, gap(x, c, dim), gap(base, c, dim)
    square = c * squared_norm(step, dim)
    product = gap_x * gap_b
    numerator = gap_b * step - square * base
    return numerator * asinhc_of_square(square / product) * torch.rsqrt(product * (product + square))


def gyration(x: Tensor, y: Tensor, v: Tensor, c: float | Tensor, dim: int) -> Tensor:
    """Compute gyr[x, y] v, a rotation of v in the plane of the ball points x and y."""
    xv, yv, xy = dot(x, v, dim), dot(y, v, dim), dot(x, y, dim)
    x_square, y_square = squared_norm(x, dim), squared_norm(y, dim)
    along_x = -(c**2) * xv * y_square + c * yv + 2 * c**2 * xy * yv
    along_y = -(c**2) * yv * x_square - c * xv
    denominator = gap(x, c, dim) * gap(y, c, dim) + c * squared_norm(x + y, dim)
    return v + 2 * (along_x * x + along_y * y) / denominator


# Log coordinates.


def boost(x: Tensor, y: Tensor, c: float | Tensor, dim: int) -> Tensor:
    """Compute x (+) y in log coordinates, cut at `largest_radius`: a Lorentz boost, see `boost_spatial`."""
    return from_hyperboloid(boost_spatial(to_hyperboloid(x, c, dim), to_hyperboloid(y, c, dim), dim), c, dim)


class Hyperboloid(NamedTuple):
    """Points (cosh rho, sinh(rho) u/|u|) with their radii rho, which are zero at the origin with derivative zero."""

    spatial: Tensor
    time: Tensor
    radius: Tensor


def to_hyperboloid(u: Tensor, c: float | Tensor, dim: int) -> Hyperboloid:
    """Turn log coordinates into hyperboloid coordinates."""
    square = 4 * c * squared_norm(u, dim)
    return Hyperboloid(2 * root(c) * sinhc_of_square(square) * u, cosh_of_square(square), safe_sqrt(square))


def boost_spatial(x: Hyperboloid, y: Hyperboloid, dim: int) -> Tensor:
    """Compute the spatial coordinates of x (+) y.

    With X = sinh(rho_x) x/|x|, X0 = cosh(rho_x) the textbook form is Z = Y + k X, k = <X, Y>/(1 + X0) + Y0, whose terms
    cancel when y points against x, so that digits are lost like e^(2 rho). There k is written as
    cosh(rho_y - rho_x/2) / cosh(rho_x/2) + (|X||Y| + <X, Y>)/(1 + X0), a sum of positive terms whose second one is half
    |X||Y| |X/|X| + Y/|Y||^2; the error grows like e^rho only, as it must for coordinates of that precision.
    """
    product = dot(x.spatial, y.spatial, dim)
    # Then |X||Y| > 1, so that neither norm is small; elsewhere the textbook form loses nothing.
    opposed = product < -1
    x_norm = torch.where(opposed, torch.sinh(x.radius), 1.0)
    y_norm = torch.where(opposed, torch.sinh(y.radius), 1.0)
    between = squared_norm(x.spatial / x_norm + y.spatial / y_norm, dim)
    first = torch.cosh(y.radius - x.radius / 2) / torch.cosh(x.radius / 2)
    stable = first + x_norm * y_norm * between / (2 * (1 + x.time))
    factor = torch.where(opposed, stable, product / (1 + x.time) + y.time)
    return y.spatial + factor * x.spatial


def from_hyperboloid(zs: Tensor, c: float | Tensor, dim: int) -> Tensor:
    """Turn spatial hyperboloid coordinates into log coordinates, cut at `largest_radius`."""
    return zs * (cut_asinhc(squared_norm(zs, dim), zs.dtype) / (2 * root(c)))


def overflow_radius(dtype: torch.dtype) -> float:
    """Return a rho at which products of two hyperbolic functions, and sums of them, are still finite."""
    return 300.0 if dtype == torch.float64 else 40.0


def clipped_hyperboloid(q: Tensor) -> tuple[Tensor, Tensor]:
    """Compute sinh(rho)/rho and cosh(rho) of q = rho^2; a point beyond rho = 300 (float32: 40) is pulled in.

    That is far beyond what any dtype resolves, and cosh and sums of it stay finite.
    """
    limit = overflow_radius(q.dtype)
    clipped = q.clamp_max(limit**2)
    return sinhc_of_square(clipped) * torch.sqrt(limit**2 / q.clamp_min(limit**2)), cosh_of_square(clipped)


def cut_asinhc(q: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute min(asinh(r), largest radius of a dtype) / r of q = r^2."""
    bound = largest_radius(dtype)
    return _radial(q, _GEOMETRIC_BOUND, _ASINHC, lambda r: asinh(r).clamp_max(bound) / r)


def to_frame(u: Tensor, v: Tensor, c: float | Tensor, dim: int) -> Tensor:
    """Carry a tangent vector at `u` to the origin by the translation that takes `u` there.

    The radial part of v stays, the part across it grows by sinh(rho)/rho.
    """
    square = 4 * c * squared_norm(u, dim)
    stretch = sinhc_of_square(square)
    along = dot(u, v, dim)
    near = square < 1
    # Far out the radial part is split off, since the stretched vector would drown it.
    radial = torch.where(near, 0.0, 4 * c * along / torch.where(near, 1.0, square))
    defect = _radial(torch.where(near, square, 0.0), 1.0, _SINHC_DEFECT, torch.ones_like)
    extra = torch.where(near, 4 * c * defect * along, radial)
    return stretch * (v - radial * u) + extra * u


def from_frame(u: Tensor, v: Tensor, c: float | Tensor, dim: int) -> Tensor:
    """Carry a tangent vector at the origin to `u`; the inverse of `to_frame`."""
    square = 4 * c * squared_norm(u, dim)
    stretch = sinhc_of_square(square)
    near = square < 1
    defect = _radial(torch.where(near, square, 0.0), 1.0, _SINHC_DEFECT, torch.ones_like)
    radial = torch.where(near, -defect / stretch, (1 - 1 / stretch) / torch.where(near, 1.0, square))
    return v / stretch + (4 * c * radial * dot(u, v, dim)) * u


def beta_scale(sizes: Sequence[int], size: int) -> list[float]:
    """Return B(size/2, 1/2) / B(n/2, 1/2) for each n in `sizes`, the factors of beta concatenation.

    A vector of n independent coordinates keeps its expected norm when it becomes a part of one with `size` coordinates.

    Notes
    -----
    Shimizu, Mukuta and Harada, "Hyperbolic neural networks++", ICLR 2021.
    """
    return [math.exp(_log_beta(size) - _log_beta(n)) for n in sizes]


def _log_beta(n: int) -> float:
    return math.lgamma(n / 2) + math.lgamma(0.5) - math.lgamma((n + 1) / 2)
