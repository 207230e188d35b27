"""Means in hyperbolic space, in log coordinates: the gyromidpoint and the Frechet mean."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manifoldnorm.linalg import x_coth
from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.checks import warn_not_converged
from manifoldnorm.manifolds.mean import Reduce, conjugate_gradients, convergence_tolerance

_MAX_NEWTON_STEPS = 50
_LARGEST_DENSE_HESSIAN = 64


def midpoint(
    points: Tensor,
    weights: Tensor | None,
    dims: int | tuple[int, ...],
    c: float | Tensor,
    *,
    vector_dim: int,
    reduce: Reduce,
) -> Tensor:
    """Compute the gyromidpoint over `dims`: the weighted sum on the hyperboloid, scaled back onto it.

    Parameters
    ----------
    points : Tensor
        Log coordinates, any shape.
    weights : Tensor, optional
        Nonnegative, broadcastable with `points` and of size one along `vector_dim`; uniform by default.
    dims : int or tuple of int
        Dimensions that are averaged; they are removed.
    c : float or Tensor
        Curvature.
    vector_dim : int
        The dimension that holds the vectors.
    reduce : callable
        Sums a tensor over processes.
    """
    spatial, time = hyperboloid(points, c, vector_dim)
    if weights is not None:
        spatial, time = spatial * weights, time * weights
    total, total_time = reduce(spatial.sum(dims, keepdim=True)), reduce(time.sum(dims, keepdim=True))
    if points.dtype != torch.float64:
        return from_sums(total, total_time, c, vector_dim, points.dtype).squeeze(dims)
    gap = reduce(_gap_terms(points, weights, total, c, vector_dim).sum(dims, keepdim=True))
    return _from_gap(total, total_time, gap, c, vector_dim).squeeze(dims)


def hyperboloid(points: Tensor, c: float | Tensor, vector_dim: int) -> tuple[Tensor, Tensor]:
    """Return hyperboloid coordinates sinh(rho) u/|u| / (2 s) and cosh(rho) in float64.

    In float32 the norm of a sum, S0^2 - |S|^2, would lose all digits from rho = 6 on.
    """
    u = points.to(torch.float64) if points.device.type != "mps" else points
    stretch, time = maps.clipped_hyperboloid(4 * c * maps.squared_norm(u, vector_dim))
    return stretch * u, time


def from_sums(spatial: Tensor, time: Tensor, c: float | Tensor, vector_dim: int, dtype: torch.dtype) -> Tensor:
    """Scale sums of hyperboloid coordinates back to the hyperboloid and return log coordinates of `dtype`.

    Good for float32 points; where float64 ones are farther out than rho = 12, see `midpoint`.
    """
    velocity = spatial / time
    ratio = 4 * c * maps.squared_norm(velocity, vector_dim)
    # tanh rounds to 1 where the ratio stops resolving the radius.
    bound = min(math.tanh(maps.largest_radius(dtype)) ** 2, 1 - 2 * torch.finfo(velocity.dtype).eps)
    return (velocity * maps.atanhc_of_square(ratio.clamp_max(bound))).to(dtype)


def _gap_terms(points: Tensor, weights: Tensor | None, total: Tensor, c: float | Tensor, vector_dim: int) -> Tensor:
    """Return e^-rho + sinh(rho) |u/|u| - S/|S||^2 / 2, whose weighted sum is S0 - |S|, without cancellation."""
    square = maps.squared_norm(points, vector_dim)
    nonzero = square > 0
    direction = points * torch.rsqrt(torch.where(nonzero, square, 1.0))
    total_square = maps.squared_norm(total, vector_dim)
    axis = total * torch.rsqrt(torch.where(total_square > 0, total_square, 1.0))
    # Near the origin, where the direction has no derivative, cosh(rho) - sinh(rho) u/|u| . S/|S| cancels nothing.
    near = 4 * c * square < 1
    rho = torch.where(near, 1.0, 2 * maps.root(c) * torch.sqrt(torch.where(near, 1.0, square))).clamp_max(300.0)
    far_terms = torch.exp(-rho) + torch.sinh(rho) * maps.squared_norm(direction - axis, vector_dim) / 2
    spatial, time = hyperboloid(points, c, vector_dim)
    near_terms = time - 2 * maps.root(c) * maps.dot(spatial, axis, vector_dim)
    terms = torch.where(near, near_terms, far_terms)
    return terms if weights is None else terms * weights


def _from_gap(spatial: Tensor, time: Tensor, gap: Tensor, c: float | Tensor, vector_dim: int) -> Tensor:
    """Return log coordinates S/|S| log((S0 + |S|)/(S0 - |S|)) / (4 s), near the origin by the power series."""
    near = from_sums(spatial, time, c, vector_dim, spatial.dtype)
    square = 4 * c * maps.squared_norm(spatial, vector_dim)
    far = square > 0.25 * time**2
    norm = torch.sqrt(torch.where(far, square, 1.0))
    ratio = torch.where(far, time + norm, 1.0) / torch.where(far, gap, 1.0)
    radius = (torch.log(ratio) / 2).clamp_max(maps.largest_radius(spatial.dtype))
    return torch.where(far, spatial * (radius / norm), near)


def frechet_mean(points: Tensor, weights: Tensor, c: float | Tensor, *, steps: int | None, reduce: Reduce) -> Tensor:
    """Compute the Frechet mean of log coordinates (N, *rest, n) with weights (N, *rest) that sum to one.

    Newton's method from the midpoint. With L_i = (-m) (+) x_i, t_i = rho(L_i) and v_i = L_i/|L_i| the gradient is
    -sum w_i L_i and the Hessian sum w_i (k_i I + (1 - k_i) v_i v_i^T), k_i = t_i coth t_i, at least the identity. The
    gradient of the result comes from two more steps with that Hessian held fixed, which is exact to second order.

    Parameters
    ----------
    points, weights : Tensor
        As above.
    c : float or Tensor
        Curvature.
    steps : int, optional
        A fixed number of Newton steps, without synchronisation; by default to convergence.
    reduce : callable
        Sums a tensor over processes.
    """
    share = weights[..., None]
    mean, hessian = _newton(points, share, c, steps, reduce)
    if not torch.is_grad_enabled():
        return mean
    for _ in range(2):
        pull = reduce((share * maps.boost(-mean, points, c, -1)).sum(0))
        mean = maps.boost(mean, hessian.solve(pull), c, -1)
    return mean


class _Hessian:
    """The Hessian of half the mean squared distance: dense for short vectors, else applied term by term."""

    def __init__(self, logs: Tensor, share: Tensor, c: float | Tensor, reduce: Reduce) -> None:
        square = maps.squared_norm(logs, -1)
        bend = x_coth(torch.sqrt(4 * c * square))
        self.direction = logs * torch.rsqrt(torch.where(square > 0, square, 1.0))
        self.across, self.share, self.reduce = bend, share, reduce
        self.dense: Tensor | None = None
        if logs.shape[-1] <= _LARGEST_DENSE_HESSIAN:
            n = logs.shape[-1]
            identity = torch.eye(n, dtype=logs.dtype, device=logs.device)
            weighted = share * (1 - bend) * self.direction
            outer = torch.einsum("i...a,i...b->...ab", weighted, self.direction)
            self.dense = reduce((share * bend).sum(0)[..., None] * identity + outer)

    def apply(self, v: Tensor) -> Tensor:
        """Multiply with a vector."""
        along = maps.dot(self.direction, v, -1)
        return self.reduce((self.share * (self.across * v + (1 - self.across) * along * self.direction)).sum(0))

    def solve(self, v: Tensor) -> Tensor:
        """Solve for a vector; differentiable in it."""
        if self.dense is not None:
            return torch.linalg.solve(self.dense, v)
        return conjugate_gradients(self.apply, v, lambda a, b: maps.dot(a, b, -1), steps=20)


@torch.no_grad()
def _newton(
    points: Tensor, share: Tensor, c: float | Tensor, steps: int | None, reduce: Reduce
) -> tuple[Tensor, _Hessian]:
    """Iterate; an element whose gradient grows goes back and halves its step."""
    mean = midpoint(points, share, 0, c, vector_dim=-1, reduce=reduce)
    tolerance = convergence_tolerance(points.dtype, points.shape[-1])
    best, best_norm = mean, torch.full_like(mean[..., :1], torch.inf)
    step, move = torch.ones_like(best_norm), torch.zeros_like(mean)
    for _ in range(_MAX_NEWTON_STEPS if steps is None else steps):
        logs = maps.boost(-mean, points, c, -1)
        hessian = _Hessian(logs, share, c, reduce)
        pull = reduce((share * logs).sum(0))
        norm = 2 * torch.sqrt(maps.squared_norm(pull, -1))
        better = norm < best_norm
        best, best_norm = torch.where(better, mean, best), torch.where(better, norm, best_norm)
        move = torch.where(better, hessian.solve(pull), move)
        step = torch.where(better, step, step / 2)
        if steps is None and bool(((best_norm <= tolerance) | (step < 1e-4)).all()):
            break
        mean = maps.boost(best, step * move, c, -1)
    else:
        if steps is not None:
            return mean, _Hessian(maps.boost(-mean, points, c, -1), share, c, reduce)
    _warn_unless_converged(best_norm, tolerance)
    return best, _Hessian(maps.boost(-best, points, c, -1), share, c, reduce)


def _warn_unless_converged(norm: Tensor, tolerance: float) -> None:
    failed = ~(norm <= 1e5 * tolerance)
    if failed.any():
        warn_not_converged(
            "the mean in hyperbolic space",
            norm.squeeze(-1),
            failed.squeeze(-1),
            _MAX_NEWTON_STEPS,
            "the points are too far apart for their dtype; use float64, or a smaller c",
        )
