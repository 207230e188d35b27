"""The Frechet mean on the hypersphere: safeguarded Newton steps, differentiable through the last ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from manifoldnorm.linalg.precision import without_autocast, working_dtype
from manifoldnorm.manifolds.checks import warn_not_converged
from manifoldnorm.manifolds.mean import Reduce, conjugate_gradients, convergence_tolerance

if TYPE_CHECKING:
    from manifoldnorm.manifolds.sphere import Sphere

_MAX_STEPS = 200
_LARGEST_DENSE_HESSIAN = 64
# Below this the curvature of a far point is raised, which keeps the Hessian positive for points beyond a hemisphere.
_LEAST_CURVATURE = 0.2


def sphere_mean(sphere: Sphere, points: Tensor, weights: Tensor, *, steps: int | None, reduce: Reduce) -> Tensor:
    """Compute the mean of points (N, *rest, d) with weights (N, *rest) that sum to one.

    Parameters
    ----------
    sphere : Sphere
        The geometry.
    points, weights : Tensor
        As above.
    steps : int, optional
        A fixed number of steps from the scaled arithmetic mean, without synchronisation; by default to convergence.
    reduce : callable
        Sums a tensor over processes.

    Returns
    -------
    Tensor
        Shape (*rest, d). Its first and second derivatives come from two more Newton steps with the Hessian held fixed,
        which are exact at the mean.
    """
    with without_autocast(points):
        dtype = points.dtype
        points, share = points.to(working_dtype(points)), weights.to(working_dtype(points)).unsqueeze(-1)
        mean = _solve(sphere, points.detach(), share.detach(), steps, reduce, dtype)
        if torch.is_grad_enabled():
            hessian = _Hessian(sphere, mean, points.detach(), share.detach(), reduce, floor=None)
            for _ in range(2):
                pull = reduce((share * sphere.logmap(mean, points)).sum(0))
                mean = sphere.projx(sphere.expmap(mean, hessian.solve(sphere.proju(mean, pull))))
        return mean.to(dtype)


class _Hessian:
    """The Hessian of half the mean squared distance: sum w (k I + (1 - k) e e^T).

    Here k = theta cot(theta) for a point at the angle theta in the direction e. A floor of k makes the sum positive,
    for steps that must descend.
    """

    def __init__(
        self, sphere: Sphere, mean: Tensor, points: Tensor, share: Tensor, reduce: Reduce, *, floor: float | None
    ) -> None:
        logs = sphere.logmap(mean, points)
        angle = torch.linalg.vector_norm(logs, dim=-1, keepdim=True) / sphere.radius
        nonzero = angle > 1e-6
        guarded = torch.where(nonzero, angle, 1.0)
        bend = torch.where(nonzero, guarded / torch.tan(guarded), 1.0)
        self.bend = bend if floor is None else bend.clamp_min(floor)
        self.direction = torch.where(nonzero, logs / (guarded * sphere.radius), 0.0)
        self.share, self.reduce = share, reduce
        self.gradient = reduce((share * logs).sum(0))
        self.cost = reduce((share * angle * angle).sum(0)).squeeze(-1)
        self.dense: Tensor | None = None
        d = mean.shape[-1]
        if d <= _LARGEST_DENSE_HESSIAN:
            identity = torch.eye(d, dtype=mean.dtype, device=mean.device)
            outer = torch.einsum("i...a,i...b->...ab", share * (1 - self.bend) * self.direction, self.direction)
            self.dense = reduce((share * self.bend).sum(0).unsqueeze(-1) * identity + outer)

    def apply(self, v: Tensor) -> Tensor:
        """Multiply with a tangent vector."""
        along = (self.direction * v).sum(-1, keepdim=True)
        return self.reduce((self.share * (self.bend * v + (1 - self.bend) * along * self.direction)).sum(0))

    def solve(self, v: Tensor) -> Tensor:
        """Solve for a tangent vector, on which the dense form acts as the operator does."""
        if self.dense is not None:
            return torch.linalg.solve(self.dense, v.unsqueeze(-1)).squeeze(-1)
        return _Solve.apply(v, self)


class _Solve(torch.autograd.Function):
    """Conjugate gradients with a fixed self-adjoint operator: the derivative is the same solve."""

    @staticmethod
    def forward(v: Tensor, hessian: _Hessian) -> Tensor:
        return conjugate_gradients(hessian.apply, v, lambda a, b: (a * b).sum(-1, keepdim=True))

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[Tensor, _Hessian], output: Tensor) -> None:
        ctx.hessian = inputs[1]  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.hessian.solve(gradient), None  # type: ignore[attr-defined]


@torch.no_grad()
def _solve(
    sphere: Sphere, points: Tensor, share: Tensor, steps: int | None, reduce: Reduce, dtype: torch.dtype
) -> Tensor:
    """Descend from the scaled arithmetic mean; an element whose cost rises goes back and halves its step."""
    ambient = reduce((share * points).sum(0))
    usable = torch.linalg.vector_norm(ambient, dim=-1, keepdim=True) > 1e-6 * sphere.radius
    origin = sphere.origin(ambient.shape[-1], dtype=ambient.dtype, device=ambient.device)
    mean = sphere.projx(torch.where(usable, ambient, origin))
    if steps is not None:
        for _ in range(steps):
            hessian = _Hessian(sphere, mean, points, share, reduce, floor=_LEAST_CURVATURE)
            mean = sphere.projx(sphere.expmap(mean, hessian.solve(hessian.gradient)))
        return mean
    tolerance = convergence_tolerance(dtype, mean.shape[-1]) * sphere.radius
    slack = 16 * torch.finfo(mean.dtype).eps
    best, move = mean, torch.zeros_like(mean)
    cost = torch.full(mean.shape[:-1], torch.inf, dtype=mean.dtype, device=mean.device)
    residual, damping = cost, torch.ones_like(cost)
    for _ in range(_MAX_STEPS):
        hessian = _Hessian(sphere, mean, points, share, reduce, floor=_LEAST_CURVATURE)
        better = hessian.cost <= cost * (1 + slack)
        keep = better.unsqueeze(-1)
        best, move = torch.where(keep, mean, best), torch.where(keep, hessian.solve(hessian.gradient), move)
        residual = torch.where(better, torch.linalg.vector_norm(hessian.gradient, dim=-1), residual)
        cost = torch.where(better, hessian.cost, cost)
        damping = torch.where(better, torch.ones_like(damping), damping / 2)
        # A NaN input never gets better; it stays NaN and must not keep the others waiting.
        if bool(((residual <= tolerance) | (damping < 1e-4)).all()):
            break
        mean = sphere.projx(sphere.expmap(best, damping.unsqueeze(-1) * move))
    failed = (residual > 1e4 * tolerance) & torch.isfinite(residual)
    if failed.any():
        warn_not_converged(
            "the mean on the sphere",
            residual,
            failed,
            _MAX_STEPS,
            "the points may be too spread out for it to be unique",
        )
    return torch.where(torch.isfinite(cost).unsqueeze(-1), best, torch.nan)
