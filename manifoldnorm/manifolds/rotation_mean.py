"""Frechet means of rotations: Newton's method on quaternions, implicit gradients, and a uniqueness check."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg.orthogonal import RotationEigen, apply_multiplier, skew_part
from manifoldnorm.linalg.precision import working_dtype
from manifoldnorm.linalg.rotation3 import (
    axial_vector,
    cross_matrix,
    inverse_jacobian,
    pull_through_log,
    quaternion_quadratic,
    rotation_from_quaternion,
    unit_quaternion,
    vector_from_rotation,
)
from manifoldnorm.manifolds.mean import Reduce, conjugate_gradients, convergence_tolerance

_MAX_NEWTON_STEPS = 8
# Entries x, y, z, w -> row-major entries of the matrix of the product from the left.
_PRODUCT = (
    (0, 0, 0, 1, 0, 0, -1, 0, 0, 1, 0, 0, -1, 0, 0, 0),
    (0, 0, 1, 0, 0, 0, 0, 1, -1, 0, 0, 0, 0, -1, 0, 0),
    (0, -1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, -1, 0),
    (1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1),
)


class UniquenessWarning(UserWarning):
    """Data are so spread out that the Frechet mean found need not be the only one."""


def warn_unless_unique(farthest: Tensor) -> None:
    """Warn when some data point is farther than a right angle (distance pi / sqrt 2) from the mean.

    Within that ball the mean is unique (Afsari, 2011): its radius is half of the injectivity radius pi sqrt 2.
    """
    too_far = farthest > math.pi / math.sqrt(2)  # not so for NaN, which speaks for itself
    if bool(too_far.any()):
        distance = float(farthest[too_far].flatten()[0])
        warnings.warn(
            f"a rotation lies at distance {distance:.3g} from the mean, outside the ball of radius pi / sqrt(2) = 2.22 "
            "in which the mean of rotations is unique; the mean may be one of several",
            UniquenessWarning,
            stacklevel=3,
        )


def newton_mean(points: Tensor, weights: Tensor, *, steps: int | None, reduce: Reduce) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the mean of 3 x 3 rotations (N, *rest, 3, 3) by Newton steps from the chordal mean.

    The Hessian of half the mean squared angle is positive definite away from the cut locus, so that a point where the
    steps end is a minimum. Weights sum to one and broadcast with (N, *rest).

    Returns
    -------
    mean : Tensor
        Shape (*rest, 3, 3).
    converged : Tensor
        Boolean, shape (*rest); all True for a fixed number of `steps`.
    widest : Tensor
        The largest angle of a point to the mean before the last step, shape (*rest).
    """
    with torch.no_grad():
        x = points.to(working_dtype(points))
        share = weights.to(x.dtype).unsqueeze(-1)
        q = unit_quaternion(x)
        chordal = quaternion_quadratic(reduce((share.unsqueeze(-1) * x).sum(0)))
        finite = torch.isfinite(chordal).all(-1).all(-1)
        eigenvectors = torch.linalg.eigh(torch.where(finite[..., None, None], chordal, 0.0)).eigenvectors
        mean = torch.where(finite.unsqueeze(-1), eigenvectors[..., -1], torch.nan)
        tolerance = convergence_tolerance(points.dtype, 3)
        done = torch.zeros_like(finite)
        widest = torch.zeros_like(mean[..., 0])
        for _ in range(_MAX_NEWTON_STEPS if steps is None else steps):
            gradient, hessian, widest = _newton_system(q, mean, share, reduce)
            length = torch.linalg.vector_norm(gradient, dim=-1)
            done = (length <= tolerance) | torch.isnan(length)
            step = torch.linalg.solve_ex(hessian, gradient)[0]
            mean = _move(mean, step)
            # Newton's error is squared by a step: after a small gradient, far from the cut locus, this one is the last.
            last = done | ((length <= 0.5 * torch.finfo(points.dtype).eps ** 0.5) & (widest < 0.75 * math.pi))
            if steps is None and bool(last.all()):
                done = last
                break
        return rotation_from_quaternion(mean).to(points.dtype), done, widest


def _left_matrix(q: Tensor) -> Tensor:
    """Return the matrices L with L p = q p, the product of quaternions (x, y, z, w)."""
    return (q @ torch.tensor(_PRODUCT, dtype=q.dtype, device=q.device)).unflatten(-1, (4, 4))


def _move(mean: Tensor, step: Tensor) -> Tensor:
    """Multiply unit quaternions by those of the rotation vectors `step`, whose angles are kept to second order."""
    turn = torch.cat((0.5 * step, torch.ones_like(step[..., :1])), dim=-1)
    moved = (_left_matrix(mean) @ turn.unsqueeze(-1)).squeeze(-1)
    return moved / torch.linalg.vector_norm(moved, dim=-1, keepdim=True)


def _newton_system(q: Tensor, mean: Tensor, share: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean rotation vector seen from `mean`, the Hessian, and the widest angle.

    With h half an angle and u its axis the Hessian is mean(f I + (1 - f) u u^T), f = h cot h.
    """
    conjugate = mean * torch.tensor((-1.0, -1.0, -1.0, 1.0), dtype=mean.dtype, device=mean.device)
    relative = (q.unsqueeze(-2) @ _left_matrix(conjugate).mT).squeeze(-2)
    v, w = relative[..., :3], relative[..., 3:]
    sine = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    half = torch.atan2(sine, w.abs())
    turned = sine > 0
    divisor = torch.where(turned, sine, 1.0)
    scale = torch.where(turned, half / divisor, 1.0)
    flat = scale * w.abs()
    vectors = (2 * share * torch.where(w < 0, -scale, scale)) * v
    axes = share * (1 - flat) / (divisor * divisor)
    outer = (axes * v).unsqueeze(-1) * v.unsqueeze(-2)
    packed = torch.cat((vectors, (share * flat).expand_as(sine), outer.flatten(-2)), dim=-1)
    total = reduce(packed.sum(0))
    identity = torch.eye(3, dtype=q.dtype, device=q.device)
    hessian = total[..., 3, None, None] * identity + total[..., 4:].unflatten(-1, (3, 3))
    widest = 2 * half.squeeze(-1).amax(0) if q.shape[0] else torch.zeros_like(mean[..., 0])
    return total[..., :3], hessian, widest


class ImplicitMean3(torch.autograd.Function):
    """Attach the derivative to the mean M of rotations X_i with weights p_i: dM = M hat(H^-1 sum p_i J_i^-1 e_i).

    Here dX_i = X_i hat(e_i), w_i is the rotation vector of M^T X_i, J_i its Jacobian, and H the mean of J_i^-1.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, points: Tensor, weights: Tensor, mean: Tensor, reduce: Reduce
    ) -> Tensor:
        result = mean.clone()
        ctx.save_for_backward(points, weights, result)
        ctx.reduce = reduce
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        points, weights, mean = ctx.saved_tensors
        dtype = working_dtype(points)
        x, m, share = points.to(dtype), mean.to(dtype), weights.to(dtype).unsqueeze(-1)
        w = vector_from_rotation(m.mT @ x)
        hessian = ctx.reduce((share.unsqueeze(-1) * inverse_jacobian(w)).sum(0))
        target = ctx.reduce(2 * axial_vector(m.mT @ gradient.to(dtype)))
        solved = torch.linalg.solve_ex(hessian, target)[0]
        grad_points = 0.5 * x @ cross_matrix(pull_through_log(w, (share * solved).expand_as(w)))
        grad_weights = None
        if ctx.needs_input_grad[1]:
            grad_weights = (w * solved).sum(-1).sum_to_size(weights.shape).to(weights.dtype)
        return grad_points.to(points.dtype), grad_weights, None, None


class ImplicitMean(torch.autograd.Function):
    """The same for any n, with skew matrices M^T dM and X_i^T dX_i; the Hessian is inverted by conjugate gradients."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, points: Tensor, weights: Tensor, mean: Tensor, reduce: Reduce
    ) -> Tensor:
        ctx.save_for_backward(points, weights, mean)
        ctx.reduce = reduce
        return mean.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        points, weights, mean = ctx.saved_tensors
        dtype = working_dtype(points)
        x, m, share = points.to(dtype), mean.to(dtype), weights.to(dtype)[..., None, None]
        relative = RotationEigen(m.mT @ x)
        kernel = share * relative.half_cotangent()

        def hessian(v: Tensor) -> Tensor:
            return ctx.reduce(apply_multiplier(relative.vectors, kernel, v).sum(0))

        def inner(a: Tensor, b: Tensor) -> Tensor:
            return (a * b).sum((-1, -2), keepdim=True)

        solved = conjugate_gradients(hessian, ctx.reduce(skew_part(m.mT @ gradient.to(dtype))), inner)
        grad_points = share * (x @ relative.pull_through_log(solved.expand_as(x)))
        grad_weights = None
        if ctx.needs_input_grad[1]:
            grad_weights = (relative.log * solved).sum((-1, -2)).sum_to_size(weights.shape).to(weights.dtype)
        return grad_points.to(points.dtype), grad_weights, None, None
