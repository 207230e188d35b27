"""Cholesky factors with a derivative that is batched; PyTorch's own works matrix by matrix on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg.precision import without_autocast, working_dtype
from manifoldnorm.linalg.symmetric import symmetrize


def half_lower(x: Tensor) -> Tensor:
    """Return the lower triangle with its diagonal halved: half_lower(x) + half_lower(x)^H = x for Hermitian x."""
    lower = torch.tril(x)
    return lower - 0.5 * torch.diag_embed(torch.diagonal(lower, dim1=-2, dim2=-1))


def inverse_triangular(factor: Tensor) -> Tensor:
    """Invert lower triangular matrices of shape (..., n, n)."""
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)


class _Cholesky(torch.autograd.Function):
    """The lower factor of (x + x^H) / 2; gradient L^-H half_lower(L^H G) L^-1, symmetrised (Murray, 2016)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        factor, info = torch.linalg.cholesky_ex(symmetrize(x))
        failed = (info != 0) | ~torch.isfinite(torch.diagonal(factor, dim1=-2, dim2=-1)).all(-1)
        return torch.where(failed[..., None, None], torch.nan, factor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (factor,) = ctx.saved_tensors
        inverse = inverse_triangular(factor)
        return symmetrize(inverse.mH @ half_lower(factor.mH @ gradient) @ inverse)


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
        factor: Tensor = _Cholesky.apply(x.to(working_dtype(x)))
    return factor.to(x.dtype)


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
