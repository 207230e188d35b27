"""The largest singular value of matrices, and the vectors that belong to it."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from manifoldnorm.linalg.polar import _check_matrices
from manifoldnorm.linalg.precision import statistics_dtype, without_autocast
from manifoldnorm.linalg.products import gram_matrix, product
from manifoldnorm.linalg.stable import safe_sqrt

SpectralNormMethod = Literal["exact", "schatten", "power"]

_DEFAULT_STEPS = {"exact": 0, "schatten": 7, "power": 10}


class LeadingPair(NamedTuple):
    """Largest singular value, shape (...), with a left and a right singular vector, shapes (..., m, 1), (..., n, 1)."""

    value: Tensor
    left: Tensor
    right: Tensor


def spectral_norm(x: Tensor, method: SpectralNormMethod = "exact", *, steps: int | None = None) -> Tensor:
    """Largest singular value of each matrix.

    Parameters
    ----------
    x : Tensor
        Shape (..., m, n), real or complex.
    method : {"exact", "schatten", "power"}
        "exact" takes eigenvalues of the Gram matrix: relative error below 1e-6 in float32, 1e-14 in float64.
        "schatten" needs products only and never comes out below the norm: by 2^`steps` = p it returns the Schatten norm
        of order 2p, at most r^(1/2p) too large for rank r (1.03 for r = 512 and the default of 7 steps).
        "power" iterates `steps` times (10) and comes out below the norm, by several per cent where large singular
        values are close together.
    steps : int, optional
        Squarings for "schatten", iterations for "power".

    Returns
    -------
    Tensor
        Shape (...), differentiable; NaN for a matrix that is not finite.

    Examples
    --------
    >>> spectral_norm(torch.diag(torch.tensor([1.0, 3.0, 2.0])))
    tensor(3.)
    """
    return _estimate(x, method, steps, None, vectors=False).value


def leading_singular_pair(
    x: Tensor, method: SpectralNormMethod = "exact", *, steps: int | None = None, start: Tensor | None = None
) -> LeadingPair:
    """Largest singular value with one pair of singular vectors; see `spectral_norm` for the methods.

    The vectors carry no gradient. Their common sign is arbitrary; the product left @ right^H is not. Where the largest
    value is repeated they are one pair out of many.

    Parameters
    ----------
    x : Tensor
        Shape (..., m, n).
    method : {"exact", "schatten", "power"}
        How the value is found. The vectors come from inverse iteration ("exact"), a column of the power of the Gram
        matrix ("schatten"), or the power iteration.
    steps : int, optional
        As in `spectral_norm`.
    start : Tensor, optional
        Where the power iteration starts, on the shorter side: shape (..., min(m, n), 1); a fixed vector by default.

    Examples
    --------
    >>> pair = leading_singular_pair(torch.diag(torch.tensor([1.0, 3.0])))
    >>> (pair.left @ pair.right.mT).round(decimals=4)
    tensor([[0., 0.],
            [0., 1.]])
    """
    return _estimate(x, method, steps, start, vectors=True)


def _estimate(
    x: Tensor, method: SpectralNormMethod, steps: int | None, start: Tensor | None, *, vectors: bool
) -> LeadingPair:
    _check_matrices(x)
    if method not in get_args(SpectralNormMethod):
        raise ValueError(f"method must be one of {', '.join(get_args(SpectralNormMethod))}, got {method!r}")
    steps = _DEFAULT_STEPS[method] if steps is None else steps
    if method != "exact" and steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    with without_autocast(x):
        y = x.to(statistics_dtype(x))
        # The float64 norm of float32 entries cannot overflow, so the scaled Gram matrix is safe at any magnitude.
        norm = torch.linalg.vector_norm(
            y.detach(), dim=(-2, -1), keepdim=True, dtype=torch.promote_types(y.dtype, torch.float64)
        )
        usable = torch.isfinite(norm) & (norm > 0)
        scale = torch.where(usable, norm, torch.ones_like(norm)).to(y.real.dtype)
        y = y / scale
        wide = y.shape[-2] < y.shape[-1]
        tall = y.mH if wide else y
        gram = gram_matrix(tall)
        identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        # Decompositions refuse what is not finite; such a matrix gets its NaN at the end.
        gram = torch.nan_to_num(gram, nan=0.0, posinf=0.0, neginf=0.0)
        if method == "exact":
            square, right = _exact(gram, identity, vectors)
        elif method == "schatten":
            square, right = _schatten(gram, steps, vectors)
        else:
            square, right = _power(gram, steps, start)
        value = safe_sqrt(square) * scale.squeeze((-2, -1))
        value = torch.where(torch.isfinite(norm.squeeze((-2, -1))), value, torch.full_like(value, torch.nan))
        if right is None:
            return LeadingPair(value.to(x.real.dtype), value, value)
        left = product(tall.detach(), right)
        left = left / torch.linalg.vector_norm(left, dim=-2, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny)
        left, right = (right, left) if wide else (left, right)
        return LeadingPair(value.to(x.real.dtype), left, right)


def _start_vector(gram: Tensor) -> Tensor:
    """Return a fixed vector without symmetry, so that every process and every run iterates from the same place."""
    angles = torch.arange(1, gram.shape[-1] + 1, dtype=gram.real.dtype, device=gram.device) * 1.7
    vector = (1 + 0.5 * torch.sin(angles)).to(gram.dtype).unsqueeze(-1)
    return (vector / torch.linalg.vector_norm(vector)).expand(*gram.shape[:-1], 1)


def _exact(gram: Tensor, identity: Tensor, vectors: bool) -> tuple[Tensor, Tensor | None]:
    # Less their mean, eigenvalues that are nearly equal keep digits that the eigensolver would lose.
    mean = gram.detach().diagonal(dim1=-2, dim2=-1).real.mean(-1)
    square = torch.linalg.eigvalsh(gram - mean[..., None, None] * identity)[..., -1] + mean
    if not vectors:
        return square, None
    size = gram.shape[-1]
    # Just above the largest eigenvalue, by enough that the shifted matrix stays positive definite in floating point.
    margin = 4 * math.sqrt(size) * torch.finfo(gram.dtype).eps
    shift = (square.detach() * (1 + margin) + torch.finfo(gram.dtype).tiny)[..., None, None]
    factor, _ = torch.linalg.cholesky_ex(shift * identity - gram.detach())
    right = _start_vector(gram)
    for _ in range(4):
        right = torch.cholesky_solve(right, factor)
        right = right / torch.linalg.vector_norm(right, dim=-2, keepdim=True)
    return square, right


def _schatten(gram: Tensor, steps: int, vectors: bool) -> tuple[Tensor, Tensor | None]:
    logarithm = torch.zeros_like(gram[..., 0, 0].real)
    power = gram
    for step in range(steps):
        norm = torch.linalg.vector_norm(power, dim=(-2, -1), keepdim=True).clamp(min=torch.finfo(gram.dtype).tiny)
        logarithm = logarithm + torch.log(norm.squeeze((-2, -1))) / 2**step
        power = power / norm
        if step < steps - 1:
            power = power @ power
    # |G^(p/2)|_F^(2/p) bounds the largest eigenvalue from above; the factor covers the rounding of the products.
    square = torch.exp(logarithm) * (1 + 2 * math.sqrt(gram.shape[-1]) * torch.finfo(gram.dtype).eps)
    if not vectors:
        return square, None
    largest = power.detach().diagonal(dim1=-2, dim2=-1).real.argmax(-1)[..., None, None]
    right = power.detach().gather(-1, largest.expand(*power.shape[:-1], 1))
    return square, right / torch.linalg.vector_norm(right, dim=-2, keepdim=True).clamp(min=torch.finfo(gram.dtype).tiny)


def _power(gram: Tensor, steps: int, start: Tensor | None) -> tuple[Tensor, Tensor]:
    fixed = gram.detach()
    # A little of the fixed vector revives a start that is orthogonal to the leading one.
    right = _start_vector(gram) if start is None else start.to(gram.dtype) + 1e-3 * _start_vector(gram)
    for _ in range(steps):
        right = fixed @ right
        right = right / torch.linalg.vector_norm(right, dim=-2, keepdim=True).clamp(min=torch.finfo(gram.dtype).tiny)
    return (right.mH @ gram @ right).real.squeeze((-2, -1)), right
