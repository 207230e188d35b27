"""Frechet means of rotations: Newton's method on quaternions, implicit gradients, and a uniqueness check."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg.functions import BatchedFunction
from manifoldnorm.linalg.orthogonal import RotationEigen, apply_multiplier, skew_part
from manifoldnorm.linalg.precision import working_dtype
from manifoldnorm.linalg.rotation3 import (
    InverseJacobian,
    axial_vector,
    cross_matrix,
    quaternion_quadratic,
    rotation_from_quaternion,
    unit_quaternion,
)
from manifoldnorm.manifolds.mean import Reduce, conjugate_gradients, convergence_tolerance

_MAX_NEWTON_STEPS = 8
_LEAST_SINE = 1e-18
# Entries x, y, z, w -> row-major entries of the matrix of the product from the left.
_PRODUCT = torch.tensor(
    (
        (0, 0, 0, 1, 0, 0, -1, 0, 0, 1, 0, 0, -1, 0, 0, 0),
        (0, 0, 1, 0, 0, 0, 0, 1, -1, 0, 0, 0, 0, -1, 0, 0),
        (0, -1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, -1, 0),
        (1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1),
    ),
    dtype=torch.float64,
    device="cpu",
)
_CONJUGATION = torch.tensor((-1, -1, -1, 1), dtype=torch.float64, device="cpu")


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


class MeanOfRotations(NamedTuple):
    """Mean of 3 x 3 rotations (N, *rest, 3, 3), and what is known with it.

    Attributes
    ----------
    mean : Tensor
        Shape (*rest, 3, 3).
    vectors : Tensor
        The points seen from the mean, as rotation vectors (N, *rest, 3).
    converged : Tensor
        Boolean, shape (*rest).
    widest : Tensor
        The largest angle of a point to the mean, shape (*rest).
    """

    mean: Tensor
    vectors: Tensor
    converged: Tensor
    widest: Tensor


@torch.no_grad()
def newton_mean(points: Tensor, weights: Tensor, *, steps: int | None, reduce: Reduce) -> MeanOfRotations:
    """Compute the mean of 3 x 3 rotations (N, *rest, 3, 3) by Newton steps from the chordal mean.

    The Hessian of half the mean squared angle is positive definite away from the cut locus, so that a point where the
    steps end is a minimum. Weights sum to one and broadcast with (N, *rest). After a fixed number of `steps` every
    mean counts as converged.
    """
    x = points.to(working_dtype(points))
    share = weights.to(x.dtype).unsqueeze(-1)
    q = unit_quaternion(x)
    chordal = quaternion_quadratic(reduce((share.unsqueeze(-1) * x).sum(0)))
    finite = torch.isfinite(chordal.sum((-1, -2)))
    eigenvectors = torch.linalg.eigh(torch.where(finite[..., None, None], chordal, 0.0)).eigenvectors
    mean = torch.where(finite.unsqueeze(-1), eigenvectors[..., -1], torch.nan)
    seen = _Seen.of(q, mean)
    done = torch.full_like(finite, steps is not None)
    tolerance = convergence_tolerance(points.dtype, 3)
    for _ in range(_MAX_NEWTON_STEPS if steps is None else steps):
        gradient, hessian = _newton_system(seen, share, reduce)
        mean = _move(mean, torch.linalg.solve_ex(hessian, gradient)[0])
        if steps is None:
            length, widest = torch.linalg.vector_norm(gradient, dim=-1), seen.widest()
            # Newton's error is squared by a step: after a small gradient, far from the cut locus, this was the last.
            near = (length <= 0.5 * torch.finfo(points.dtype).eps ** 0.5) & (widest < 0.75 * math.pi)
            done = near | (length <= tolerance) | torch.isnan(length)
        seen = _Seen.of(q, mean)
        if steps is None and bool(done.all()):
            break
    vectors = seen.vectors.to(points.dtype)
    return MeanOfRotations(rotation_from_quaternion(mean).to(points.dtype), vectors, done, seen.widest())


def _left_matrix(q: Tensor) -> Tensor:
    """Return the matrices L with L p = q p, the product of quaternions (x, y, z, w)."""
    return (q @ _PRODUCT.to(q)).unflatten(-1, (4, 4))


def _move(mean: Tensor, step: Tensor) -> Tensor:
    """Multiply unit quaternions by those of the rotation vectors `step`, whose angles are kept to second order."""
    turn = torch.cat((0.5 * step, torch.ones_like(step[..., :1])), dim=-1)
    moved = (_left_matrix(mean) @ turn.unsqueeze(-1)).squeeze(-1)
    return moved / torch.linalg.vector_norm(moved, dim=-1, keepdim=True)


class _Seen(NamedTuple):
    """Rotations seen from a mean: axes times sines of half the angles, these sines, half the angles, and vectors."""

    axes: Tensor
    sine: Tensor
    half: Tensor
    cosine: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, q: Tensor, mean: Tensor) -> _Seen:
        """Divide unit quaternions (N, *rest, 4) by those of the means (*rest, 4)."""
        conjugate = mean * _CONJUGATION.to(mean)
        relative = (q.unsqueeze(-2) @ _left_matrix(conjugate).mT).squeeze(-2)
        v, w = relative[..., :3], relative[..., 3:]
        sine = torch.linalg.vector_norm(v, dim=-1, keepdim=True).clamp_min(_LEAST_SINE)
        cosine = w.abs()
        half = torch.atan2(sine, cosine)
        return cls(v, sine, half, cosine, torch.copysign(2 * half / sine, w) * v)

    def widest(self) -> Tensor:
        """Return the largest angle, shape (*rest)."""
        half = self.half.squeeze(-1)
        return 2 * half.amax(0) if half.shape[0] else torch.zeros_like(half.sum(0))


def _newton_system(seen: _Seen, share: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
    """Return the mean rotation vector and the Hessian.

    With h half an angle and u its axis the Hessian is mean(f I + (1 - f) u u^T), f = h cot h.
    """
    flat = seen.half * seen.cosine / seen.sine
    outer = _sum_of_products(share * (1 - flat) / (seen.sine * seen.sine) * seen.axes, seen.axes)
    packed = torch.cat(((share * seen.vectors).sum(0), (share * flat).sum(0), outer.flatten(-2)), dim=-1)
    total = reduce(packed)
    identity = torch.eye(3, dtype=total.dtype, device=total.device)
    return total[..., :3], total[..., 3, None, None] * identity + total[..., 4:].unflatten(-1, (3, 3))


def _sum_of_products(u: Tensor, v: Tensor) -> Tensor:
    """Sum u v^T over the first dimension: (N, *rest, 3) to (*rest, 3, 3)."""
    return u.movedim(0, -1) @ v.movedim(0, -2)


class VectorsAboutMean(BatchedFunction):
    """Attach derivatives to the vectors w_i = log(M^T X_i) about the mean M of X_i with weights p_i, and to M.

    For dX_i = X_i hat(e_i) and dM = M hat(m), dw_i = K_i e_i - K_i^T m with K_i = J(w_i)^-1, so that sum p_i w_i = 0
    gives m = H^-1 sum p_i K_i e_i with the symmetric H = sum p_i K_i.
    """

    @staticmethod
    def forward(  # noqa: D102
        points: Tensor, weights: Tensor, mean: Tensor, vectors: Tensor, reduce: Reduce
    ) -> tuple[Tensor, ...]:
        return vectors.clone(), mean.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: D102
        ctx.save_for_backward(inputs[0], inputs[1], *output)
        ctx.reduce = inputs[4]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(  # noqa: D102
        ctx: Any, gradient: Tensor | None, mean_gradient: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        points, weights, vectors, mean = ctx.saved_tensors
        dtype = working_dtype(points)
        x, m, w, share = points.to(dtype), mean.to(dtype), vectors.to(dtype), weights.to(dtype).unsqueeze(-1)
        log = InverseJacobian.at(w)
        hessian = ctx.reduce(log.mean(share))
        target = w.new_zeros(w.shape[1:]) if mean_gradient is None else 2 * axial_vector(m.mT @ mean_gradient.to(dtype))
        if gradient is not None:
            target = target - log.apply(gradient.to(dtype)).sum(0)
        solved = torch.linalg.solve_ex(hessian, ctx.reduce(target))[0]
        pushed = share * solved if gradient is None else gradient.to(dtype) + share * solved
        grad_points = 0.5 * x @ cross_matrix(log.apply_transpose(pushed))
        grad_weights = None
        if ctx.needs_input_grad[1]:
            grad_weights = (w * solved).sum(-1).sum_to_size(weights.shape).to(weights.dtype)
        return grad_points.to(points.dtype), grad_weights, None, None, None


class ImplicitMean(torch.autograd.Function):
    """The derivative of the mean for any n, with skew matrices M^T dM and X_i^T dX_i.

    The Hessian is inverted by conjugate gradients.
    """

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
