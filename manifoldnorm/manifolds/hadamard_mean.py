"""Frechet means on symmetric spaces of nonpositive curvature: a step with a guarantee, and the implicit gradient.

There the mean is unique and the Hessian of half the squared distance to a point is known: in the eigenbasis of the
curvature operator its eigenvalues are x coth(x), for roots x of the point seen from where one stands. They lie between
1 and x coth(x) at the largest root, so the step 2 / (1 + h), h the mean of the latter, contracts where unit steps
oscillate or diverge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from manifoldnorm.linalg import x_coth
from manifoldnorm.manifolds.checks import warn_not_converged
from manifoldnorm.manifolds.mean import Reduce, conjugate_gradients, convergence_tolerance

_MAX_STEPS = 200
_NEWTON_STEPS = 3


class Logarithms(Protocol):
    """Logarithms of points, in an orthonormal frame at the base, with what the Hessian needs."""

    @property
    def tangent(self) -> Tensor:
        """The logarithms, shape (N, *rest, *event)."""

    @property
    def largest_root(self) -> Tensor:
        """The largest root of each point, shape (N, *rest)."""

    def hessian(self) -> Callable[[Tensor], Tensor]:
        """Return the Hessian of half the squared distance to each point, as a linear map of a direction."""


class Frame(Protocol):
    """Coordinates of the tangent space at a point in which the metric is the Frobenius (Euclidean) product."""

    def logarithms(self, points: Tensor) -> Logarithms:
        """Return the logarithms of points, differentiable in them."""

    def exponential(self, tangent: Tensor) -> Tensor:
        """Follow the geodesic with the velocity `tangent`, given in the frame."""

    def pull(self, gradient: Tensor) -> Tensor:
        """Express a Euclidean gradient at the base in the frame."""


FrameAt = Callable[[Tensor], Frame]


def hadamard_mean(
    frame_at: FrameAt,
    points: Tensor,
    weights: Tensor,
    start: Tensor,
    *,
    ndim: int,
    name: str,
    steps: int | None,
    reduce: Reduce,
) -> Tensor:
    """Compute the Frechet mean of `points` (N, *rest, *event) with weights that sum to one.

    Parameters
    ----------
    frame_at : callable
        Gives the frame at a point.
    points, weights : Tensor
        The data; `weights` broadcasts with (N, *rest).
    start : Tensor
        Where to start, shape (*rest, *event).
    ndim : int
        Number of event dimensions.
    name : str
        The manifold's name in a warning.
    steps : int, optional
        A fixed number of steps 2 / (1 + h) along the gradient, without synchronisation. By default Newton steps until
        the gradient is round-off; where one does not lower the gradient, that step takes its place, and is halved.
    reduce : callable
        Sums a tensor over processes.
    """
    mean = _iterate(frame_at, points, weights, start, ndim, name, steps, reduce)
    if torch.is_grad_enabled() and (points.requires_grad or weights.requires_grad):
        result: Tensor = _ImplicitMean.apply(points, weights, mean, frame_at, ndim, steps, reduce)
        return result
    return mean


def _over(weights: Tensor, ndim: int) -> Tensor:
    return weights[(...,) + (None,) * ndim]


@torch.no_grad()
def _iterate(
    frame_at: FrameAt,
    points: Tensor,
    weights: Tensor,
    start: Tensor,
    ndim: int,
    name: str,
    steps: int | None,
    reduce: Reduce,
) -> Tensor:
    event = tuple(range(-ndim, 0))
    mean = best = start
    tolerance = convergence_tolerance(start.dtype, start.shape[-1])
    best_norm = torch.full(start.shape[: start.ndim - ndim], torch.inf, dtype=weights.dtype, device=start.device)
    damping = torch.ones_like(best_norm)
    newton, safe = torch.zeros_like(start), torch.zeros_like(start)
    for _ in range(_MAX_STEPS if steps is None else steps):
        logs = frame_at(mean).logarithms(points)
        gradient = reduce((_over(weights, ndim) * logs.tangent).sum(0))
        bound = reduce((weights * x_coth(logs.largest_root)).sum(0))
        step = _over(2 / (1 + bound), ndim) * gradient
        if steps is not None:
            mean = frame_at(mean).exponential(step)
            continue
        norm = torch.linalg.vector_norm(gradient, dim=event)
        better = norm < best_norm
        keep = _over(better, ndim)
        best_norm = torch.where(better, norm, best_norm)
        damping = torch.where(better, torch.ones_like(damping), damping / 2)
        best, safe = torch.where(keep, mean, best), torch.where(keep, step, safe)
        # A bad point leaves no gradient to compare; it must not keep the other means waiting, and has none itself.
        if bool(((best_norm <= tolerance) | (damping < 1e-3)).all()):
            break
        newton = torch.where(keep, _newton_step(logs, weights, gradient, ndim, reduce), newton)
        move = torch.where(_over(damping == 1, ndim), newton, _over(2 * damping, ndim) * safe)
        mean = frame_at(best).exponential(move)
    if steps is not None:
        return mean
    best = torch.where(_over(torch.isfinite(best_norm), ndim), best, torch.nan)
    failed = (best_norm > 1e5 * tolerance) & torch.isfinite(best_norm)
    if failed.any():
        remedy = "the points are too close to the boundary for this precision; project them with projx first"
        warn_not_converged(f"the mean on {name}", best_norm, failed, _MAX_STEPS, remedy)
    return best


def _newton_step(logs: Logarithms, weights: Tensor, gradient: Tensor, ndim: int, reduce: Reduce) -> Tensor:
    """Solve Hessian(step) = gradient, roughly: a few conjugate gradients, which need no new decomposition."""
    apply, over = logs.hessian(), _over(weights, ndim)
    return conjugate_gradients(
        lambda direction: reduce((over * apply(direction)).sum(0)),
        gradient,
        lambda a, b: (a * b.conj()).real.sum(tuple(range(-ndim, 0)), keepdim=True),
        steps=_NEWTON_STEPS,
    )


class _ImplicitMean(torch.autograd.Function):
    """Attach the exact derivative to a mean m of x_i with weights w_i.

    In the frame at m let T(m, x) = sum w_i log x_i = 0. Moving m by xi changes it by -H[xi] with H the mean of the
    Hessians, symmetric with eigenvalues from 1 on. So for a gradient G at m and a = H^-1 pull(G), dL/dx_i is the
    gradient of w_i <a, log x_i> in x_i, and dL/dw_i = <a, log x_i>.
    """

    @staticmethod
    def forward(
        ctx: Any,
        points: Tensor,
        weights: Tensor,
        mean: Tensor,
        frame_at: FrameAt,
        ndim: int,
        steps: int | None,
        reduce: Reduce,
    ) -> Tensor:
        result = mean.clone()
        ctx.save_for_backward(points, weights, result)
        ctx.frame_at, ctx.ndim, ctx.steps, ctx.reduce = frame_at, ndim, steps, reduce
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        points, weights, mean = ctx.saved_tensors
        ndim, reduce = ctx.ndim, ctx.reduce
        event = tuple(range(-ndim, 0))
        frame = ctx.frame_at(mean)
        with torch.enable_grad():
            data, share = points.detach().requires_grad_(), weights.detach().requires_grad_()
            logs = frame.logarithms(data)
            total = (_over(share, ndim) * logs.tangent).sum(0)

        apply, over = logs.hessian(), _over(weights, ndim)

        def hessian(direction: Tensor) -> Tensor:
            return reduce((over * apply(direction)).sum(0))

        def inner(a: Tensor, b: Tensor) -> Tensor:
            return (a * b.conj()).real.sum(event, keepdim=True)

        steps = None if ctx.steps is None else 2 + 2 * ctx.steps
        solution = conjugate_gradients(hessian, reduce(frame.pull(gradient)), inner, steps=steps)
        grad_points, grad_weights = torch.autograd.grad(total, (data, share), solution)
        return grad_points, grad_weights, None, None, None, None, None
