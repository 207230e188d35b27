"""Cholesky factors with a derivative that is batched; PyTorch's own works matrix by matrix on the CPU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg.functions import BatchedFunction, may_look_at
from manifoldnorm.linalg.precision import without_autocast, working_dtype
from manifoldnorm.linalg.symmetric import symmetrize


def half_lower(x: Tensor) -> Tensor:
    """Return the lower triangle with its diagonal halved: half_lower(x) + half_lower(x)^H = x for Hermitian x."""
    # Multiplying by a constant is several times faster than torch.tril on batches of small matrices.
    return x * torch.ones(x.shape[-2:], dtype=x.dtype, device=x.device).tril_().fill_diagonal_(0.5)


def inverse_triangular(factor: Tensor) -> Tensor:
    """Invert lower triangular matrices of shape (..., n, n)."""
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)


def lower_factor(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower Cholesky factor in row-major order, and LAPACK's report, zero for success.

    LAPACK writes columns. Taking the upper factor leaves rows in its transpose, which saves mixed orders, slow in
    elementwise operations on small matrices, from what follows. Only the upper triangle of `x` is read.
    """
    factor, info = torch.linalg.cholesky_ex(x, upper=True)
    return factor.mH, info


def _factor(x: Tensor) -> Tensor:
    """Factor the Hermitian part; a matrix that is not positive definite gives NaN."""
    factor, info = lower_factor(symmetrize(x))
    if may_look_at(factor) and math.isfinite(factor.real.sum().item()) and not bool(info.any()):
        return factor
    # Entries that are NaN or infinite do not always set `info`, but they reach a pivot.
    failed = (info != 0) | ~torch.isfinite(torch.diagonal(factor, dim1=-2, dim2=-1).real.sum(-1))
    return factor.masked_fill(failed[..., None, None], torch.nan)


def _pull_back(factor: Tensor, gradient: Tensor) -> Tensor:
    """Map a gradient at the factor to one at the matrix: L^-H half_lower(L^H G) L^-1, symmetrised (Murray, 2016)."""
    half = torch.linalg.solve_triangular(factor.mH, half_lower(factor.mH @ gradient), upper=True)
    # From the left again, since only the Hermitian part of the result counts.
    return symmetrize(torch.linalg.solve_triangular(factor.mH, half.mH, upper=True))


class _Cholesky(BatchedFunction):
    """The lower factor of (x + x^H) / 2."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _factor(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (factor,) = ctx.saved_tensors
        return _pull_back(factor, gradient)


def _diagonal_mapped(x: Tensor, diagonal: Tensor) -> Tensor:
    """Return the lower triangle of `x` with another diagonal."""
    result = x * torch.ones(x.shape[-2:], dtype=x.dtype, device=x.device).tril_(-1)
    torch.diagonal(result, dim1=-2, dim2=-1).copy_(diagonal)
    return result


class _LogCholesky(BatchedFunction):
    """The strictly lower Cholesky factor of (x + x^H) / 2 plus the logarithm of its diagonal."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        factor = _factor(x)
        return _diagonal_mapped(factor, torch.log(torch.diagonal(factor, dim1=-2, dim2=-1)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        pivots = torch.exp(torch.diagonal(z, dim1=-2, dim2=-1))
        moved = _diagonal_mapped(gradient, torch.diagonal(gradient, dim1=-2, dim2=-1) / pivots)
        return _pull_back(_diagonal_mapped(z, pivots), moved)


class _ExpCholesky(BatchedFunction):
    """L L^H for the factor L that is z below the diagonal and the exponential of z's diagonal."""

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        factor = _diagonal_mapped(z, torch.exp(torch.diagonal(z, dim1=-2, dim2=-1)))
        return symmetrize(factor @ factor.mH)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        pivots = torch.exp(torch.diagonal(z, dim1=-2, dim2=-1))
        moved = (gradient + gradient.mH) @ _diagonal_mapped(z, pivots)
        return _diagonal_mapped(moved, torch.diagonal(moved, dim1=-2, dim2=-1) * pivots)


def cholesky(x: Tensor) -> Tensor:
    """Compute the lower Cholesky factor of positive definite matrices.

    Parameters
    ----------
    x : Tensor
        Shape (..., n, n), real symmetric or Hermitian; the Hermitian part is used.

    Returns
    -------
    Tensor
        Lower triangular with a positive diagonal, of the shape and dtype of `x` (computed in float64 for float32 on the
        CPU). NaN for a matrix that is not positive definite, alone in its batch. Differentiable twice.

    Examples
    --------
    >>> cholesky(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
    tensor([[2., 0.],
            [1., 2.]])
    """
    with without_autocast(x):
        factor: Tensor = _Cholesky.call(x.to(working_dtype(x)))
    return factor.to(x.dtype)


def log_cholesky(x: Tensor) -> Tensor:
    """Compute the lower Cholesky factor with the logarithm of its diagonal; see `cholesky`.

    Examples
    --------
    >>> log_cholesky(torch.tensor([[1.0, 2.0], [2.0, 5.0]]))
    tensor([[0., 0.],
            [2., 0.]])
    """
    with without_autocast(x):
        z: Tensor = _LogCholesky.call(x.to(working_dtype(x)))
    return z.to(x.dtype)


def exp_cholesky(z: Tensor) -> Tensor:
    """Invert `log_cholesky`; the entries above the diagonal of `z` are not looked at.

    Examples
    --------
    >>> exp_cholesky(torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
    tensor([[1., 2.],
            [2., 5.]])
    """
    with without_autocast(z):
        x: Tensor = _ExpCholesky.call(z.to(working_dtype(z)))
    return x.to(z.dtype)


def cholesky_frechet(factor: Tensor, u: Tensor) -> Tensor:
    """Directional derivative of the Cholesky factor: L half_lower(L^-1 u L^-H) for Hermitian u.

    Parameters
    ----------
    factor : Tensor
        The factor L at the base point, shape (..., n, n).
    u : Tensor
        Hermitian direction, broadcastable with `factor`.

    Examples
    --------
    >>> cholesky_frechet(torch.eye(2), torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    tensor([[1., 0.],
            [1., 1.]])
    """
    inverse = inverse_triangular(factor)
    return factor @ half_lower(inverse @ u @ inverse.mH)
