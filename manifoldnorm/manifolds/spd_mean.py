"""The affine-invariant Frechet mean of SPD matrices, and its derivative by the implicit function theorem."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg import (
    Eigendecomposition,
    Log,
    cholesky,
    expm,
    frechet,
    inverse_triangular,
    logm,
    symmetrize,
    x_coth,
)
from manifoldnorm.linalg.precision import working_dtype
from manifoldnorm.linalg.spectral_functions import negative_gap
from manifoldnorm.manifolds.checks import warn_not_converged
from manifoldnorm.manifolds.mean import Reduce, conjugate_gradients, convergence_tolerance
from manifoldnorm.manifolds.relative_spectrum import relative_eigh
from manifoldnorm.manifolds.spd_points import congruence

_MAX_KARCHER_STEPS = 200


def affine_invariant_mean(
    points: Tensor, weights: Tensor, *, steps: int | None, reduce: Reduce
) -> tuple[Tensor, Eigendecomposition]:
    """Compute the affine-invariant mean of SPD matrices (N, *rest, n, n) with weights that sum to one.

    Parameters
    ----------
    points : Tensor
        SPD matrices.
    weights : Tensor
        Broadcastable with (N, *rest).
    steps : int, optional
        A fixed number of steps from the arithmetic mean, without synchronisation; by default to convergence.
    reduce : callable
        Sums a tensor over processes.

    Returns
    -------
    mean : Tensor
        Shape (*rest, n, n).
    eigen : Eigendecomposition
        That of L^-1 x L^-T for L = chol(mean), which the iteration leaves behind.
    """
    mean, eigen = _karcher_mean(points.detach(), weights.detach(), steps, reduce)
    if torch.is_grad_enabled() and (points.requires_grad or weights.requires_grad):
        mean = _ImplicitKarcherMean.apply(points, weights, mean, eigen.values, eigen.vectors, steps, reduce)
    return mean, eigen


def _whiten(points: Tensor, mean: Tensor) -> tuple[Tensor, Eigendecomposition]:
    """Return L = chol(mean) and the eigendecomposition of L^-1 x L^-T."""
    factor = cholesky(mean)
    inverse = inverse_triangular(factor)
    return factor, relative_eigh(inverse, points, congruence(inverse, points))


@torch.no_grad()
def _karcher_mean(
    points: Tensor, weights: Tensor, steps: int | None, reduce: Reduce
) -> tuple[Tensor, Eigendecomposition]:
    """Iterate m <- L exp(c T) L^T, T = sum w log(L^-1 x L^-T), with c = 2 / (1 + h), h a bound of the Hessian.

    The Hessian's eigenvalues lie between 1 and h = sum w (d/2) coth(d/2), d the widest difference of log-eigenvalues;
    that step contracts even for data where unit steps oscillate. It is halved for an element whose |T| grows.
    """
    dtype = points.dtype
    points, weights = points.to(working_dtype(points)), weights.to(working_dtype(weights))
    mean = symmetrize(reduce((weights[..., None, None] * points).sum(0)))
    if steps is None:
        mean, eigen = _converge(points, weights, mean, reduce, dtype)
        return mean.to(dtype), eigen
    factor, eigen = _whiten(points, mean)
    for _ in range(steps):
        gradient, step = _gradient_and_step(eigen, weights, reduce)
        mean = congruence(factor, expm(step * gradient))
        factor, eigen = _whiten(points, mean)
    return mean.to(dtype), eigen


def _gradient_and_step(eigen: Eigendecomposition, weights: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
    values, vectors = eigen
    logs = torch.log(values)
    gradient = reduce((weights[..., None, None] * symmetrize((vectors * logs.unsqueeze(-2)) @ vectors.mT)).sum(0))
    bound = reduce((weights * x_coth((logs[..., -1] - logs[..., 0]) / 2)).sum(0))
    return gradient, (2 / (1 + bound))[..., None, None]


def _converge(
    points: Tensor, weights: Tensor, mean: Tensor, reduce: Reduce, dtype: torch.dtype
) -> tuple[Tensor, Eigendecomposition]:
    tolerance = convergence_tolerance(dtype, mean.shape[-1])
    factor, eigen = _whiten(points, mean)
    move, step = _gradient_and_step(eigen, weights, reduce)
    norm = torch.linalg.matrix_norm(move)
    damping = torch.ones_like(norm)
    for _ in range(_MAX_KARCHER_STEPS):
        # A NaN input never gets better; it stays NaN and must not keep the others waiting.
        if bool(((norm <= tolerance) | (damping < 1e-3) | torch.isnan(norm)).all()):
            break
        trial = congruence(factor, expm(damping[..., None, None] * step * move))
        trial_factor, trial_eigen = _whiten(points, trial)
        trial_move, trial_step = _gradient_and_step(trial_eigen, weights, reduce)
        trial_norm = torch.linalg.matrix_norm(trial_move)
        better = trial_norm < norm
        keep = better[..., None, None]
        damping = torch.where(better, damping, damping / 2)
        mean, factor = torch.where(keep, trial, mean), torch.where(keep, trial_factor, factor)
        move, step = torch.where(keep, trial_move, move), torch.where(keep, trial_step, step)
        norm = torch.where(better, trial_norm, norm)
        eigen = Eigendecomposition(
            torch.where(better.unsqueeze(-1), trial_eigen.values, eigen.values),
            torch.where(keep, trial_eigen.vectors, eigen.vectors),
        )
    # A matrix that is not positive definite has no logarithm: its mean is NaN, not the arithmetic one.
    mean = torch.where(torch.isnan(norm)[..., None, None], torch.nan, mean)
    failed = (norm > 1e5 * tolerance) & torch.isfinite(norm)
    if failed.any():
        warn_not_converged(
            "the affine-invariant mean", norm, failed, _MAX_KARCHER_STEPS, "check the conditioning of the data"
        )
    return mean, eigen


class _ImplicitKarcherMean(torch.autograd.Function):
    """Attach the exact derivative to a Karcher mean m of x_i with weights w_i.

    With L = chol(m), y_i = L^-1 x_i L^-T and F = sum w_i log y_i = 0, moving m by L xi L^T changes F by -H[xi],
    H[xi] = sum w_i Dlog(y_i)[(xi y_i + y_i xi) / 2], which is symmetric with eigenvalues from 1 on. Hence for a
    gradient G at m and a = H^-1 (L^T G L): dL/dx_i = w_i L^-T Dlog(y_i)[a] L^-1 and dL/dw_i = <a, log y_i>.
    """

    @staticmethod
    def forward(
        ctx: Any,
        points: Tensor,
        weights: Tensor,
        mean: Tensor,
        values: Tensor,
        vectors: Tensor,
        steps: int | None,
        reduce: Reduce,
    ) -> Tensor:
        result = mean.clone()
        ctx.save_for_backward(points, weights, result, values, vectors)
        ctx.steps, ctx.reduce = steps, reduce
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        points, weights, mean, values, vectors = ctx.saved_tensors
        dtype = working_dtype(points)
        x, w, m = points.to(dtype), weights.to(dtype), mean.to(dtype)
        factor = cholesky(m)
        inverse = inverse_triangular(factor)
        eigen = Eigendecomposition(values, vectors)
        target = ctx.reduce(congruence(factor.mT, symmetrize(gradient.to(dtype))))
        if torch.is_grad_enabled() or ctx.needs_input_grad[1]:
            y = congruence(inverse, x)
        else:
            # Functions of y take its decomposition; y itself would only matter to derivatives.
            y = x
        if torch.is_grad_enabled():
            a = _solve_dense(y, w, target, eigen, ctx.reduce)
        else:
            a = _solve_iteratively(w, target, eigen, ctx.steps, ctx.reduce)
        logs = frechet(y, a.expand_as(y), Log(), eigen=eigen)
        grad_points = w[..., None, None] * congruence(inverse.mT, logs)
        grad_weights = None
        if ctx.needs_input_grad[1]:
            full = (a * logm(y, eigen=eigen)).sum((-1, -2))
            grad_weights = full.sum_to_size(weights.shape).to(weights.dtype)
        return grad_points.to(points.dtype), grad_weights, None, None, None, None, None


def _solve_iteratively(
    weights: Tensor, target: Tensor, eigen: Eigendecomposition, steps: int | None, reduce: Reduce
) -> Tensor:
    """Solve H[a] = target by conjugate gradients, as many as the mean takes steps when that number is fixed."""
    values, vectors = eigen
    logs = torch.log(values)
    # With x = -|log a - log b| half of it times its hyperbolic cotangent is x / 2 (1 + e^x) / (e^x - 1).
    x = negative_gap(logs.unsqueeze(-1), logs.unsqueeze(-2))
    decay = torch.expm1(x)
    kernel = (decay + 2).mul_(x).div_(decay).mul_(0.5 * weights[..., None, None])

    def hessian(xi: Tensor) -> Tensor:
        return reduce((vectors @ (kernel * (vectors.mT @ xi @ vectors)) @ vectors.mT).sum(0))

    def inner(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum((-1, -2), keepdim=True)

    return conjugate_gradients(hessian, target, inner, steps=None if steps is None else 1 + steps)


def _solve_dense(y: Tensor, weights: Tensor, target: Tensor, eigen: Eigendecomposition, reduce: Reduce) -> Tensor:
    """Solve H[a] = target with ordinary operations, so that the solution can be differentiated again.

    Forms H on all n(n+1)/2 symmetric basis matrices: for second derivatives of small matrices.
    """
    n = y.shape[-1]
    rows, columns = torch.tril_indices(n, n, device=y.device)
    basis = torch.zeros(len(rows), n, n, dtype=y.dtype, device=y.device)
    index = torch.arange(len(rows), device=y.device)
    basis[index, rows, columns] += 0.5
    basis[index, columns, rows] += 0.5
    basis = basis / torch.linalg.matrix_norm(basis, keepdim=True)
    basis = basis.reshape(len(rows), *(1,) * (y.ndim - 2), n, n)
    expanded = Eigendecomposition(
        eigen.values.expand(len(rows), *eigen.values.shape),
        eigen.vectors.expand(len(rows), *eigen.vectors.shape),
    )
    images = frechet(y.expand(len(rows), *y.shape), symmetrize(basis @ y), Log(), eigen=expanded)
    columns_of_h = reduce((weights[..., None, None] * images).sum(1))
    batch = columns_of_h.movedim(0, -3)
    flat_basis = basis.reshape(len(rows), n * n)
    matrix = batch.flatten(-2) @ flat_basis.mT
    right = target.flatten(-2) @ flat_basis.mT
    coordinates = torch.linalg.solve(matrix.mT, right.unsqueeze(-1)).squeeze(-1)
    return (coordinates @ flat_basis).unflatten(-1, (n, n))
