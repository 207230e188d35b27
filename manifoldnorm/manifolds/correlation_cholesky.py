"""The two correlation geometries that come from the unit triangular Cholesky factor."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg import cholesky, half_lower, inverse_triangular, symmetrize
from manifoldnorm.linalg.cholesky import lower_factor
from manifoldnorm.linalg.functions import BatchedFunction
from manifoldnorm.linalg.precision import without_autocast, working_dtype
from manifoldnorm.linalg.triangular import (
    exp_strictly_lower,
    exp_strictly_lower_frechet,
    log_unit_lower,
    log_unit_lower_frechet,
    strictly_lower,
)
from manifoldnorm.manifolds.correlation_points import CorrelationPoints, diagonal_of
from manifoldnorm.manifolds.correlation_solvers import hollow
from manifoldnorm.manifolds.pullback import Flat


class CholeskyCorrelation(CorrelationPoints, Flat):
    """What the two Cholesky geometries share: the unit lower triangular factor of C = D U U^T D."""

    def project_chart(self, z: Tensor) -> Tensor:
        """Keep the strictly lower triangle."""
        return torch.tril(z, -1)


def strict_cholesky(x: Tensor) -> Tensor:
    """Return the strictly lower part of the Cholesky factor whose rows are divided by the diagonal."""
    with without_autocast(x):
        factor: Tensor = _StrictCholesky.call(x.to(working_dtype(x)))[0]
    return factor.to(x.dtype)


class _StrictCholesky(BatchedFunction):
    """N and d of x = D U U^T D, U = I + N, D = diag(d).

    The differentials are dU = U P - diag(P) U and dd = d o diag(P), where P = half_lower(L^-1 dx L^-T), L = D U.
    """

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        # The factor of twice the Hermitian part has the same unit factor, and saves a pass over the matrices.
        factor, info = lower_factor(x + x.mT)
        diagonal = diagonal_of(factor)
        # An infinite entry does not always set `info`, but it reaches a pivot.
        failed = (info != 0) | ~torch.isfinite(diagonal.sum(-1))
        diagonal = diagonal.masked_fill(failed.unsqueeze(-1), torch.nan)
        strict = factor / diagonal.unsqueeze(-1)
        diagonal_of(strict).zero_()
        return strict, math.sqrt(0.5) * diagonal

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, diagonal_gradient: Tensor | None) -> Tensor | None:
        strict, diagonal = ctx.saved_tensors
        gradient = torch.zeros_like(strict) if gradient is None else gradient
        product = strict * gradient
        on_diagonal = product.sum(-2) - product.sum(-1)
        if diagonal_gradient is not None:
            on_diagonal = on_diagonal + diagonal * diagonal_gradient
        inner = strictly_lower(gradient + strict.mT @ gradient) + torch.diag_embed(0.5 * on_diagonal)
        # Two solves from the left with the same matrix, since only the symmetric part of the result counts.
        half = torch.linalg.solve_triangular(strict.mT, inner, upper=True, unitriangular=True)
        full = torch.linalg.solve_triangular(strict.mT, half.mT, upper=True, unitriangular=True)
        scaled = full * (1 / diagonal).unsqueeze(-2) * (0.5 / diagonal).unsqueeze(-1)
        return scaled + scaled.mT


def _unit_cholesky_frechet(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unit factor U and its derivative U P - diag(P) U with P = half_lower(L^-1 u L^-T)."""
    factor = cholesky(x)
    inverse = inverse_triangular(factor)
    unit = factor / diagonal_of(factor).unsqueeze(-1)
    inner = half_lower(inverse @ symmetrize(u) @ inverse.mT)
    return unit, torch.tril(unit @ inner - diagonal_of(inner).unsqueeze(-1) * unit, -1)


def _unit_rows(strict: Tensor) -> tuple[Tensor, Tensor]:
    """Return the reciprocal row lengths of I + N, shape (..., n, 1), and its rows with length one.

    N is the part of `strict` below the diagonal; what is above it must be finite.
    """
    identity = torch.eye(strict.shape[-1], dtype=strict.dtype, device=strict.device)
    factor = torch.addcmul(identity, strict, torch.tril(torch.ones_like(identity), -1))
    scale = 1 / torch.linalg.vector_norm(factor, dim=-1, keepdim=True)
    return scale, scale * factor


def correlation_of_factor(z: Tensor) -> Tensor:
    """Divide the rows of I + N, N strictly lower, by their lengths, and return the matrix times its transpose."""
    with without_autocast(z):
        result: Tensor = _CorrelationOfFactor.call(z)[0]
    return result


class _CorrelationOfFactor(BatchedFunction):
    """R R^T for the rows R of I + N divided by their lengths, with an exactly unit diagonal."""

    @staticmethod
    def forward(strict: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale, rows = _unit_rows(strict)
        # Symmetric, and one on the diagonal, up to rounding; made so exactly.
        result = symmetrize(rows @ rows.mT)
        diagonal_of(result).fill_(1)
        return result, scale, rows

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        strict, scale, rows = ctx.saved_tensors
        if torch.is_grad_enabled():
            scale, rows = _unit_rows(strict)
        # The diagonal of the result is constant, and the part of the gradient along a row changes nothing.
        moved = hollow(gradient + gradient.mT) @ rows
        along = (moved * rows).sum(-1, keepdim=True)
        return strictly_lower(scale * torch.addcmul(moved, along, rows, value=-1))


def _correlation_of_factor_frechet(strict: Tensor, u: Tensor) -> Tensor:
    scale, rows = _unit_rows(strict)
    moved = scale * u
    moved = moved - (moved * rows).sum(-1, keepdim=True) * rows
    product = moved @ rows.mT
    return hollow(product + product.mT)


class CorrelationEuclideanCholesky(CholeskyCorrelation):
    """The Euclidean-Cholesky metric: the unit lower triangular Cholesky factor is an isometry.

    Notes
    -----
    Thanwerdas and Pennec (2022). It needs no eigendecomposition, which makes it the cheapest of the four; distances
    depend on the order of the variables.

    Examples
    --------
    >>> metric = CorrelationEuclideanCholesky()
    >>> metric.dist(torch.eye(2), torch.tensor([[1.0, 0.6], [0.6, 1.0]]))
    tensor(0.7500)
    """

    name = "correlation matrices with the Euclidean-Cholesky metric"

    def deform(self, x: Tensor) -> Tensor:
        """Return the strictly lower part of the unit Cholesky factor."""
        return strict_cholesky(x)

    def undeform(self, z: Tensor) -> Tensor:
        """Scale (I + z)(I + z)^T to unit diagonal."""
        return correlation_of_factor(z)

    def ddeform(self, x: Tensor, u: Tensor) -> Tensor:
        """Differentiate `deform` at `x` along `u`."""
        return _unit_cholesky_frechet(x, u)[1]

    def dundeform(self, z: Tensor, w: Tensor) -> Tensor:
        """Differentiate `undeform` at `z` along `w`."""
        return _correlation_of_factor_frechet(z, torch.tril(w, -1))


class CorrelationLogEuclideanCholesky(CholeskyCorrelation):
    """The log-Euclidean-Cholesky metric: the logarithm of the unit Cholesky factor is an isometry.

    Notes
    -----
    Thanwerdas and Pennec (2022). Distances depend on the order of the variables; the group inverse inverts the unit
    Cholesky factor.

    Examples
    --------
    >>> metric = CorrelationLogEuclideanCholesky()
    >>> metric.inv(torch.tensor([[1.0, 0.6], [0.6, 1.0]]))
    tensor([[ 1.0000, -0.6000],
            [-0.6000,  1.0000]])
    """

    name = "correlation matrices with the log-Euclidean-Cholesky metric"

    def deform(self, x: Tensor) -> Tensor:
        """Return the logarithm of the unit Cholesky factor."""
        return log_unit_lower(strict_cholesky(x))

    def undeform(self, z: Tensor) -> Tensor:
        """Scale exp(z) exp(z)^T to unit diagonal."""
        return correlation_of_factor(exp_strictly_lower(z))

    def ddeform(self, x: Tensor, u: Tensor) -> Tensor:
        """Differentiate `deform` at `x` along `u`."""
        return log_unit_lower_frechet(*_unit_cholesky_frechet(x, u))

    def dundeform(self, z: Tensor, w: Tensor) -> Tensor:
        """Differentiate `undeform` at `z` along `w`."""
        return _correlation_of_factor_frechet(exp_strictly_lower(z), exp_strictly_lower_frechet(z, w))
