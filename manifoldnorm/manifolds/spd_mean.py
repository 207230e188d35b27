"""The affine-invariant Frechet mean of SPD matrices, and its derivative by the implicit function theorem."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg import (
    Eigendecomposition,
    Log,
    cholesky,
    eigh,
    expm,
    frechet,
    inverse_triangular,
    logm,
    symmetrize,
    x_coth,
)
from manifoldnorm.linalg.precision import working_dtype
from manifoldnorm.manifolds.checks import warn_not_converged
from manifoldnorm.manifolds.mean import Reduce, conjugate_gradients, convergence_tolerance

_MAX_KARCHER_STEPS = 200


def affine_invariant_mean(points: Tensor, weights: Tensor, *, steps: int | None, reduce: Reduce) -> Tensor:
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
    """
    mean = _karcher_mean(points, weights, steps, reduce)
    if torch.is_grad_enabled() and (points.requires_grad or weights.requires_grad):
        result: Tensor = _ImplicitKarcherMean.apply(points, weights, mean, steps, reduce)
        return result
    return mean


def _whiten(points: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Eigendecomposition]:
    """Return L, L^-1 and the eigendecomposition of L^-1 x L^-T for L = chol(mean)."""
    factor = cholesky(mean)
    inverse = inverse_triangular(factor)
    return factor, inverse, eigh(_congruence(inverse, points))


def _congruence(factor: Tensor, x: Tensor) -> Tensor:
    return symmetrize(factor @ x @ factor.mT)


@torch.no_grad()
def _karcher_mean(points: Tensor, weights: Tensor, steps: int | None, reduce: Reduce) -> Tensor:
    """Iterate m <- L exp(c T) L^T, T = sum w log(L^-1 x L^-T), with c = 2 / (1 + h), h a bound of the Hessian.

    The Hessian's eigenvalues lie between 1 and h = sum w (d/2) coth(d/2), d the widest difference of log-eigenvalues;
    that step contracts even for data where unit steps oscillate. It is halved for an element whose |T| grows.
    """
    dtype = points.dtype
    points, weights = points.to(working_dtype(points)), weights.to(working_dtype(weights))
    over = weights[..., None, None]
    mean = symmetrize(reduce((over * points).sum(0)))
    tolerance = convergence_tolerance(dtype, mean.shape[-1])
    best, best_norm = mean, torch.full(mean.shape[:-2], torch.inf, dtype=mean.dtype, device=mean.device)
    damping = torch.ones_like(best_norm)
    move = torch.zeros_like(mean)
    base = mean
    for _ in range(_MAX_KARCHER_STEPS if steps is None else steps):
        factor, _, (values, vectors) = _whiten(points, mean)
        logs = torch.log(values)
        gradient = reduce((over * symmetrize((vectors * logs.unsqueeze(-2)) @ vectors.mT)).sum(0))
        spread = logs[..., -1] - logs[..., 0]
        bound = reduce((weights * x_coth(spread / 2)).sum(0))
        norm = torch.linalg.matrix_norm(gradient)
        if steps is None:
            better = norm < best_norm
            damping = torch.where(better, damping, damping / 2)
            keep = better[..., None, None]
            best, base = torch.where(keep, mean, best), torch.where(keep, factor, base)
            move = torch.where(keep, gradient * (2 / (1 + bound))[..., None, None], move)
            best_norm = torch.where(better, norm, best_norm)
            # A NaN input never gets better; it stays NaN and must not keep the others waiting.
            if bool(((best_norm <= tolerance) | (damping < 1e-3)).all()):
                break
        else:
            base, move = factor, gradient * (2 / (1 + bound))[..., None, None]
        mean = _congruence(base, expm(damping[..., None, None] * move))
    if steps is None:
        mean = best
        failed = (best_norm > 1e5 * tolerance) & torch.isfinite(best_norm)
        if failed.any():
            warn_not_converged(
                "the affine-invariant mean",
                best_norm,
                failed,
                _MAX_KARCHER_STEPS,
                "check the conditioning of the data",
            )
    return mean.to(dtype)


class _ImplicitKarcherMean(torch.autograd.Function):
    """Attach the exact derivative to a Karcher mean m of x_i with weights w_i.

    With L = chol(m), y_i = L^-1 x_i L^-T and F = sum w_i log y_i = 0, moving m by L xi L^T changes F by -H[xi],
    H[xi] = sum w_i Dlog(y_i)[(xi y_i + y_i xi) / 2], which is symmetric with eigenvalues from 1 on. Hence for a
    gradient G at m and a = H^-1 (L^T G L): dL/dx_i = w_i L^-T Dlog(y_i)[a] L^-1 and dL/dw_i = <a, log y_i>.
    """

    @staticmethod
    def forward(ctx: Any, points: Tensor, weights: Tensor, mean: Tensor, steps: int | None, reduce: Reduce) -> Tensor:
        result = mean.clone()
        ctx.save_for_backward(points, weights, result)
        ctx.steps, ctx.reduce = steps, reduce
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        points, weights, mean = ctx.saved_tensors
        dtype = working_dtype(points)
        x, w, m = points.to(dtype), weights.to(dtype), mean.to(dtype)
        factor = cholesky(m)
        inverse = inverse_triangular(factor)
        y = _congruence(inverse, x)
        eigen = eigh(y)
        target = ctx.reduce(_congruence(factor.mT, symmetrize(gradient.to(dtype))))
        if torch.is_grad_enabled():
            a = _solve_dense(y, w, target, eigen, ctx.reduce)
        else:
            a = _solve_iteratively(w, target, eigen, ctx.steps, ctx.reduce)
        logs = frechet(y, a.expand_as(y), Log(), eigen=eigen)
        grad_points = w[..., None, None] * _congruence(inverse.mT, logs)
        grad_weights = None
        if ctx.needs_input_grad[1]:
            full = (a * logm(y, eigen=eigen)).sum((-1, -2))
            grad_weights = full.sum_to_size(weights.shape).to(weights.dtype)
        return grad_points.to(points.dtype), grad_weights, None, None, None


def _solve_iteratively(
    weights: Tensor, target: Tensor, eigen: Eigendecomposition, steps: int | None, reduce: Reduce
) -> Tensor:
    """Solve H[a] = target by conjugate gradients, as many as the mean takes steps when that number is fixed."""
    values, vectors = eigen
    logs = torch.log(values)
    kernel = weights[..., None, None] * x_coth((logs.unsqueeze(-1) - logs.unsqueeze(-2)) / 2)

    def hessian(xi: Tensor) -> Tensor:
        return reduce((vectors @ (kernel * (vectors.mT @ xi @ vectors)) @ vectors.mT).sum(0))

    def inner(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum((-1, -2), keepdim=True)

    return conjugate_gradients(hessian, target, inner, steps=None if steps is None else 2 + 2 * steps)


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
