"""Frechet means: reduction of batch dimensions, a safeguarded Karcher iteration, and its implicit gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from manifoldnorm.linalg.functions import may_look_at
from manifoldnorm.manifolds.checks import element_index, warn_not_converged

if TYPE_CHECKING:
    from manifoldnorm.manifolds.base import Manifold

Reduce = Callable[[Tensor], Tensor]

_MAX_STEPS = 200
_MAX_CONJUGATE_GRADIENT_STEPS = 50


def identity_reduce(x: Tensor) -> Tensor:
    """Return the argument: the sum over processes when there is only one."""
    return x


def expand_like(u: Tensor, x: Tensor) -> Tensor:
    """Broadcast `u` to the common shape of `u` and `x`."""
    return u if u.shape == x.shape else u.expand(torch.broadcast_shapes(x.shape, u.shape))


def batch_dims(dim: int | tuple[int, ...], batch_ndim: int) -> tuple[int, ...]:
    """Normalise batch dimensions; negative ones count from the last batch dimension."""
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    normal = tuple(d + batch_ndim if d < 0 else d for d in dims)
    if any(not 0 <= d < batch_ndim for d in normal) or len(set(normal)) != len(normal):
        raise ValueError(f"dim must name distinct batch dimensions, of which there are {batch_ndim}; got {dim}")
    return normal


def reduce_front(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Move the dimensions `dims` to the front and flatten them into one."""
    if dims == (0,):
        return x
    moved = x.movedim(dims, tuple(range(len(dims))))
    return moved.flatten(0, len(dims) - 1) if dims else moved.unsqueeze(0)


def normalized_weights(
    x: Tensor, weights: Tensor | None, dim: int | tuple[int, ...], ndim: int, reduce: Reduce
) -> tuple[Tensor, Tensor]:
    """Return points of shape (N, *rest, *event) and real weights, broadcastable with (N, *rest), that sum to one."""
    batch_ndim = x.ndim - ndim
    dims = batch_dims(dim, batch_ndim)
    points = reduce_front(x, dims)
    if points.shape[0] == 0 and reduce is identity_reduce:
        raise ValueError(f"x must have points to average along dim {dim}, got shape {tuple(x.shape)}")
    real = points.real.dtype if points.is_complex() else points.dtype
    if weights is None:
        count = reduce(torch.full((), points.shape[0], dtype=real, device=x.device))
        ones = torch.ones((points.shape[0],) + (1,) * (batch_ndim - len(dims)), dtype=real, device=x.device)
        return points, ones / count
    if weights.is_complex():
        raise TypeError(f"weights must be real, got {weights.dtype}")
    batch = tuple(x.shape[:batch_ndim])
    try:
        broadcast = weights.to(real).expand(batch)
    except RuntimeError as error:
        raise ValueError(
            f"weights must broadcast to the batch shape of x, {batch}, got shape {tuple(weights.shape)}"
        ) from error
    expanded = reduce_front(broadcast, dims)
    total = reduce(expanded.sum(0))
    _check_weights(broadcast.detach(), total.detach())
    return points, expanded / total


def _check_weights(weights: Tensor, total: Tensor) -> None:
    """Raise for weights that are negative, not finite, or have no positive sum, where looking costs nothing."""
    if not may_look_at(weights) or not may_look_at(total):
        return
    failed = ~((weights >= 0) & torch.isfinite(weights))
    if bool(failed.any()):
        value = float(weights[failed].flatten()[0])
        raise ValueError(f"weights must be nonnegative and finite, got {value:g} at {element_index(failed) or '()'}")
    if not bool((total > 0).all()):
        raise ValueError("weights must have a positive sum over the averaged points, got zero")


def convergence_tolerance(dtype: torch.dtype, size: int) -> float:
    """Residual, in units of length, at which a mean of points with `size` entries counts as exact."""
    return float(torch.finfo(dtype).eps * 8 * max(1.0, size**0.5))


def karcher_mean(manifold: Manifold, points: Tensor, weights: Tensor, *, steps: int | None, reduce: Reduce) -> Tensor:
    """Compute the Frechet mean of `points` (N, *rest, *event) by Riemannian gradient steps.

    Unit steps at first; an element whose gradient grows goes back and halves its step. The gradient of the result comes
    from the implicit function theorem at the point returned.
    """
    mean = _solve(manifold, points, weights, steps, reduce)
    if torch.is_grad_enabled() and (points.requires_grad or weights.requires_grad):
        result: Tensor = _ImplicitMean.apply(points, weights, mean, manifold, reduce)
        return result
    return mean


@torch.no_grad()
def _solve(manifold: Manifold, points: Tensor, weights: Tensor, steps: int | None, reduce: Reduce) -> Tensor:
    over = manifold._over_events
    ambient = reduce((over(weights) * points).sum(0))
    mean = manifold.projx(ambient)
    tolerance = convergence_tolerance(mean.dtype, mean.shape[-1])
    best, best_norm = mean, torch.full(mean.shape[: mean.ndim - manifold.ndim], torch.inf, device=mean.device)
    best_norm = best_norm.to(mean.real.dtype if mean.is_complex() else mean.dtype)
    best_gradient = torch.zeros_like(mean)
    step = torch.ones_like(best_norm)
    for _ in range(_MAX_STEPS if steps is None else steps):
        gradient = reduce((over(weights) * manifold.logmap(mean, points)).sum(0))
        norm = manifold.norm(mean, gradient)
        better = norm < best_norm
        best = torch.where(over(better), mean, best)
        best_gradient = torch.where(over(better), gradient, best_gradient)
        step = torch.where(better, step, step / 2)
        best_norm = torch.where(better, norm, best_norm)
        if steps is None and bool(((best_norm <= tolerance) | (step < 1e-4)).all()):
            break
        mean = manifold.expmap(best, over(step) * best_gradient)
    if steps is not None:
        return mean
    failed = (best_norm > 1e4 * tolerance) & torch.isfinite(best_norm)
    if failed.any():
        warn_not_converged(
            f"the mean on {manifold.name}",
            best_norm,
            failed,
            _MAX_STEPS,
            "the points may be too spread out for it to be unique",
        )
    return best


class _ImplicitMean(torch.autograd.Function):
    """Attach a gradient to a mean m of x: with T(m, x) = sum w log_m x = 0, dm = -(dT/dm)^-1 (dT/dx) dx.

    The operator -dT/dm is self-adjoint in the metric, so conjugate gradients solve with it.
    """

    @staticmethod
    def forward(ctx: Any, points: Tensor, weights: Tensor, mean: Tensor, manifold: Manifold, reduce: Reduce) -> Tensor:
        ctx.save_for_backward(points, weights, mean)
        ctx.manifold, ctx.reduce = manifold, reduce
        return mean.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        points, weights, mean = ctx.saved_tensors
        manifold, reduce = ctx.manifold, ctx.reduce
        over = manifold._over_events
        with torch.enable_grad():
            at, data = mean.detach().requires_grad_(), points.detach().requires_grad_()
            share = weights.detach().requires_grad_()
            residual = (over(share) * manifold.logmap(at, data)).sum(0)
            lowered = torch.zeros_like(mean).requires_grad_()
            flat = torch.autograd.grad(manifold.inner(mean, lowered, lowered).sum() / 2, lowered, create_graph=True)[0]

        def lower(vector: Tensor) -> Tensor:
            return torch.autograd.grad(flat, lowered, vector, retain_graph=True)[0]

        def hessian(vector: Tensor) -> Tensor:
            cotangent = torch.autograd.grad(residual, at, lower(vector), retain_graph=True)[0]
            return -manifold.egrad2rgrad(mean, reduce(cotangent))

        target = manifold.egrad2rgrad(mean, reduce(gradient))
        solution = conjugate_gradients(hessian, target, lambda a, b: manifold.inner(mean, a, b, keepdim=True))
        grads = torch.autograd.grad(residual, (data, share), lower(solution))
        return grads[0], grads[1], None, None, None


def conjugate_gradients(
    operator: Callable[[Tensor], Tensor],
    target: Tensor,
    inner: Callable[[Tensor, Tensor], Tensor],
    *,
    steps: int | None = None,
) -> Tensor:
    """Solve operator(x) = target for a batch of positive self-adjoint operators.

    Parameters
    ----------
    operator : callable
        Applies the operators to a batch of vectors.
    target : Tensor
        Right-hand sides.
    inner : callable
        Inner product per batch element, with dimensions kept so that it broadcasts against the vectors.
    steps : int, optional
        A fixed number of steps, without synchronisation; by default until the residual is round-off.
    """
    solution, residual = torch.zeros_like(target), target
    direction, square = target, inner(target, target)
    goal = square * (30 * float(torch.finfo(target.dtype).eps)) ** 2
    for _ in range(_MAX_CONJUGATE_GRADIENT_STEPS if steps is None else steps):
        if steps is None and bool((square <= goal).all()):
            break
        image = operator(direction)
        curvature = inner(direction, image)
        # Past round-off the recurrence would amplify what is left, so an element that has reached its goal rests.
        usable = (curvature > 0) & (square > goal)
        length = torch.where(usable, square / torch.where(usable, curvature, torch.ones_like(curvature)), 0.0)
        solution = solution + length * direction
        residual = residual - length * image
        previous, square = square, inner(residual, residual)
        ratio = torch.where(previous > 0, square / torch.where(previous > 0, previous, torch.ones_like(square)), 0.0)
        direction = residual + ratio * direction
    return solution
