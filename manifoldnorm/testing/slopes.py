"""Numerical checks by the slope of an error over step sizes, as in Manifolds.jl and pymanopt."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from manifoldnorm.manifolds import Manifold

_FITTED_STEPS = 5


class SlopeReport(NamedTuple):
    """Outcome of a slope check: the steps, the errors at them, the fitted slope in log-log scale, and the verdict."""

    steps: Tensor
    errors: Tensor
    slope: float
    passed: bool


def _fit(steps: Tensor, errors: Tensor, order: float, exact: float) -> SlopeReport:
    """Take the median slope of the smallest steps whose errors are not round-off.

    Not the best of all slopes: where steps are large, higher orders make a wrong first order look steep.
    """
    if bool((errors <= exact).all()):
        return SlopeReport(steps, errors, float("inf"), True)
    slopes = torch.diff(torch.log(errors.clamp_min(torch.finfo(errors.dtype).tiny))) / torch.diff(torch.log(steps))
    usable = slopes[(errors[1:] > exact) & (errors[:-1] > exact)][:_FITTED_STEPS]
    slope = float(usable.median()) if len(usable) else float("nan")
    return SlopeReport(steps, errors, slope, slope > order - 0.15)


def _check_point(manifold: Manifold, x: Tensor) -> None:
    manifold.assert_check_point_on_manifold(x.detach())
    if x.ndim != manifold.ndim:
        raise ValueError(f"x must be one point, with {manifold.ndim} dimensions, got shape {tuple(x.shape)}")


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

    Raises
    ------
    ValueError
        When `x` is not one point of the manifold or `u` not a tangent vector there, or zero.

    Examples
    --------
    >>> from manifoldnorm import SPDLogEuclidean
    >>> m = SPDLogEuclidean()
    >>> x = m.random(2, 2, dtype=torch.float64)
    >>> check_retraction(m, x, m.random_tangent(x)).passed
    True
    """
    _check_point(manifold, x)
    tangent, reason = cast("tuple[bool, str]", manifold.check_vector_on_tangent(x, u, explain=True))
    scale = manifold.norm(x, u)
    if not tangent or u.shape != x.shape or not bool(scale > 0):
        raise ValueError(f"u must be one tangent vector at x, not zero; {reason or f'got shape {tuple(u.shape)}'}")
    steps = torch.logspace(-4, 0, 17, dtype=x.dtype if x.is_floating_point() else x.real.dtype)
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

    Raises
    ------
    ValueError
        When `x` is not one point of the manifold, or the function's value not a real scalar that depends on it.

    Examples
    --------
    >>> from manifoldnorm import SPDAffineInvariant
    >>> m = SPDAffineInvariant()
    >>> check_gradient(m, lambda x: torch.logdet(x), m.random(3, 3, dtype=torch.float64)).passed
    True
    """
    _check_point(manifold, x)
    point = x.detach().requires_grad_()
    with torch.enable_grad():
        value = function(point)
        if value.ndim or value.is_complex() or not value.requires_grad:
            raise ValueError(
                "function must map a point to a real scalar that depends on it, got a "
                f"{'tensor' if value.requires_grad else 'constant'} of shape {tuple(value.shape)} and {value.dtype}"
            )
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
