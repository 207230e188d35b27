"""Numerical checks by the slope of an error over step sizes, as in Manifolds.jl and pymanopt."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from manifoldnorm.manifolds import Manifold


class SlopeReport(NamedTuple):
    """Outcome of a slope check: the steps, the errors at them, the fitted slope in log-log scale, and the verdict."""

    steps: Tensor
    errors: Tensor
    slope: float
    passed: bool


def _fit(steps: Tensor, errors: Tensor, order: float, exact: float) -> SlopeReport:
    """Fit over the range that is neither round-off nor far from the limit: the best three neighbouring steps."""
    if bool((errors <= exact).all()):
        return SlopeReport(steps, errors, float("inf"), True)
    usable = errors > exact
    slopes = torch.diff(torch.log(errors.clamp_min(1e-300))) / torch.diff(torch.log(steps))
    slopes = torch.where(usable[1:] & usable[:-1], slopes, torch.zeros_like(slopes))
    pairs = (slopes[1:] + slopes[:-1]) / 2 if len(slopes) > 1 else slopes
    slope = float(pairs.max())
    return SlopeReport(steps, errors, slope, slope > order - 0.15)


def check_retraction(manifold: Manifold, x: Tensor, u: Tensor, *, order: int = 1) -> SlopeReport:
    """Check that `retr` follows the geodesic up to the given order.

    The distance between retr(x, t u) and expmap(x, t u) must fall like t^(order + 1).

    Parameters
    ----------
    manifold : Manifold
        Needs `retr`, `expmap` and `dist`.
    x, u : Tensor
        One point and one tangent vector, preferably float64.
    order : int
        1 for any retraction, 2 for second-order ones.

    Examples
    --------
    >>> from manifoldnorm import SPDLogEuclidean
    >>> m = SPDLogEuclidean()
    >>> x = m.random(2, 2, dtype=torch.float64)
    >>> check_retraction(m, x, m.random_tangent(x)).passed
    True
    """
    steps = torch.logspace(-4, 0, 17, dtype=x.dtype if x.is_floating_point() else x.real.dtype)
    scale = manifold.norm(x, u)
    direction = u / scale
    errors = torch.stack(
        [manifold.dist(manifold.retr(x, t * direction), manifold.expmap(x, t * direction)) for t in steps]
    )
    return _fit(steps, errors.detach().to(steps.dtype), order + 1, 1e3 * float(torch.finfo(steps.dtype).eps))


def check_gradient(
    manifold: Manifold, function: Callable[[Tensor], Tensor], x: Tensor, *, generator: torch.Generator | None = None
) -> SlopeReport:
    """Check the Riemannian gradient of a scalar function, as `egrad2rgrad` computes it, along a random direction.

    |f(retr(x, t u)) - f(x) - t <grad f, u>| must fall like t^2.

    Parameters
    ----------
    manifold : Manifold
        Needs `retr`, `inner`, `egrad2rgrad` and `random_tangent`.
    function : callable
        Maps a point to a real scalar, differentiably.
    x : Tensor
        One point, preferably float64.
    generator : torch.Generator, optional
        For the direction.

    Examples
    --------
    >>> from manifoldnorm import SPDAffineInvariant
    >>> m = SPDAffineInvariant()
    >>> check_gradient(m, lambda x: torch.logdet(x), m.random(3, 3, dtype=torch.float64)).passed
    True
    """
    point = x.detach().requires_grad_()
    with torch.enable_grad():
        value = function(point)
        egrad = torch.autograd.grad(value, point)[0]
    value = value.detach()
    gradient = manifold.egrad2rgrad(x, egrad)
    u = manifold.random_tangent(x, generator=generator)
    u = u / manifold.norm(x, u)
    steps = torch.logspace(-4, 0, 17, dtype=value.dtype)
    slope = manifold.inner(x, gradient, u)
    with torch.no_grad():
        errors = torch.stack([(function(manifold.retr(x, t * u)) - value - t * slope).abs() for t in steps])
    return _fit(steps, errors.to(steps.dtype), 2, 1e3 * float(torch.finfo(steps.dtype).eps) * (1 + float(value.abs())))
