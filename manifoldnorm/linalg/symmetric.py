"""Functions of symmetric and Hermitian matrices with derivatives that are right at repeated eigenvalues.

For A = V diag(w) V^H a spectral function is f(A) = V diag(f(w)) V^H. Its derivative is
Df(A)[G] = V (L o (V^H G V)) V^H with L_ij = f[w_i, w_j], a divided difference (Daleckii and Krein, 1965): nothing in it
divides by a vanishing gap, unlike the derivative of the eigenvectors that automatic differentiation goes through.
First and second derivatives are supported, and `torch.func.vmap`, `torch.func` transforms and `torch.compile`. There
is no forward-mode rule, since one would break `torch.compile(fullgraph=True)`; `frechet` is the directional derivative.

A matrix with NaN or infinite entries, or outside the domain of f, gives NaN in its own place of the batch only.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg.functions import BatchedFunction, may_look_at
from manifoldnorm.linalg.precision import without_autocast, working_dtype
from manifoldnorm.linalg.spectral_functions import (
    ClampMin,
    Exp,
    InverseSqrt,
    Log,
    SpectralFunction,
    Sqrt,
)

# On the CPU the closed form costs some thirty small operations, which pays from about this many 2 x 2 matrices.
_CLOSED_FORM_BATCH = 256


class Eigendecomposition(NamedTuple):
    """Eigenvalues in ascending order, shape (..., n), and unitary eigenvectors in columns, shape (..., n, n)."""

    values: Tensor
    vectors: Tensor

    def scaled(self, factor: Tensor) -> Eigendecomposition:
        """Decompose the matrix times `factor`, of the batch's shape (the values need not ascend any more)."""
        return Eigendecomposition(self.values * factor.to(self.values.dtype).unsqueeze(-1), self.vectors)

    def map(self, function: SpectralFunction) -> Eigendecomposition:
        """Decompose the function of the matrix (the values need not ascend any more)."""
        return Eigendecomposition(function.value(self.values), self.vectors)


def symmetrize(x: Tensor) -> Tensor:
    """Return the Hermitian part (x + x^H) / 2 of matrices of shape (..., n, n)."""
    return (x + x.mH).mul_(0.5)


def _check_square(x: Tensor, name: str = "x") -> None:
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"{name} must hold square matrices of shape (..., n, n), got shape {tuple(x.shape)}")
    if not (x.is_floating_point() or x.is_complex()):
        raise TypeError(f"{name} must be floating point or complex, got {x.dtype}; convert it first")


def _eigh_2x2(x: Tensor) -> Eigendecomposition:
    """Decompose [[a, b], [b*, c]]; the eigenvalue of smaller magnitude is the determinant over the other."""
    a, c, b = x[..., 0, 0].real, x[..., 1, 1].real, x[..., 0, 1]
    mean, half = (a + c) / 2, (a - c) / 2
    magnitude = b.abs()
    radius = torch.hypot(half, magnitude)
    large = mean + torch.where(mean < 0, -radius, radius)
    nonzero = large != 0
    small = torch.where(nonzero, (a * c - magnitude**2) / torch.where(nonzero, large, torch.ones_like(large)), large)
    values = torch.stack((torch.minimum(large, small), torch.maximum(large, small)), dim=-1)
    angle = 0.5 * torch.atan2(magnitude, half)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    coupled = magnitude > 0
    phase = torch.where(
        coupled, b.conj() / torch.where(coupled, magnitude, torch.ones_like(magnitude)), torch.ones_like(b)
    )
    first = torch.stack((-sine.to(b.dtype), cosine * phase), dim=-1)
    second = torch.stack((cosine.to(b.dtype), sine * phase), dim=-1)
    return Eigendecomposition(values, torch.stack((first, second), dim=-1))


def eigh(x: Tensor) -> Eigendecomposition:
    """Decompose symmetric or Hermitian matrices; a matrix that is not finite gets NaN eigenvalues, alone in its batch.

    The result carries no gradient: functions of the matrix are differentiated by `spectral`, not through eigenvectors.

    Parameters
    ----------
    x : Tensor
        Shape (..., n, n). The Hermitian part is decomposed. On the CPU float32 is computed, and returned, in float64.

    Returns
    -------
    Eigendecomposition
        `values` ascending, real, shape (..., n); `vectors` in columns, shape (..., n, n).

    Examples
    --------
    >>> eigh(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).values
    tensor([1., 3.], dtype=torch.float64)
    """
    _check_square(x)
    with without_autocast(x):
        x = symmetrize(x.detach().to(working_dtype(x)))
        n = x.shape[-1]
        closed = n == 2 and (x.is_cuda or x.numel() >= 4 * _CLOSED_FORM_BATCH)
        if not closed and may_look_at(x) and math.isfinite(x.real.sum().item() if x.is_complex() else x.sum().item()):
            return Eigendecomposition(*torch.linalg.eigh(x))
        # One entry that is not finite makes the sum so; LAPACK would refuse the whole batch.
        broken = ~torch.isfinite(x.sum((-1, -2)))
        x = x.masked_fill(broken[..., None, None], 0)
        if closed:
            values, vectors = _eigh_2x2(x)
        else:
            values, vectors = torch.linalg.eigh(x)
        return Eigendecomposition(values.masked_fill(broken[..., None], torch.nan), vectors)


def _sandwich(vectors: Tensor, inner: Tensor) -> Tensor:
    return vectors @ inner @ vectors.mH


class _Spectral(BatchedFunction):
    """f(A) from a decomposition of A; the gradient is the Frechet derivative, which is self-adjoint."""

    @staticmethod
    def forward(x: Tensor, values: Tensor, vectors: Tensor, function: SpectralFunction) -> Tensor:
        result = (vectors * function.value(values).unsqueeze(-2)) @ vectors.mH
        return symmetrize(result).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, values, vectors, ctx.function = inputs
        ctx.save_for_backward(x, values, vectors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, values, vectors = ctx.saved_tensors
        return _Frechet.call(x, values, vectors, gradient, ctx.function), None, None, None


class _Frechet(BatchedFunction):
    """Df(A)[G]; linear and self-adjoint in G, and differentiable once more in A."""

    @staticmethod
    def forward(x: Tensor, values: Tensor, vectors: Tensor, u: Tensor, function: SpectralFunction) -> Tensor:
        with without_autocast(u):
            # Symmetric coefficients commute with taking the Hermitian part, which is therefore taken once, at the end.
            rotated = vectors.mH @ u.to(vectors.dtype) @ vectors
            differences = function.first(values.unsqueeze(-1), values.unsqueeze(-2))
            return symmetrize(_sandwich(vectors, differences * rotated)).to(u.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, values, vectors, u, ctx.function = inputs
        ctx.save_for_backward(x, values, vectors, u)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, values, vectors, u = ctx.saved_tensors
        grad_x = grad_u = None
        if ctx.needs_input_grad[0]:
            grad_x = _SecondFrechet.call(x, values, vectors, u, gradient, ctx.function)
        if ctx.needs_input_grad[3]:
            grad_u = _Frechet.call(x, values, vectors, gradient, ctx.function)
        return grad_x, None, None, grad_u, None


class _SecondFrechet(BatchedFunction):
    """The gradient in A of Re <H, Df(A)[G]>: V S V^H, S_ij = sum_k f[w_i, w_k, w_j] (G_ik H_kj + H_ik G_kj)."""

    @staticmethod
    def forward(x: Tensor, values: Tensor, vectors: Tensor, u: Tensor, v: Tensor, function: SpectralFunction) -> Tensor:
        with without_autocast(u):
            left = vectors.mH @ symmetrize(u.to(vectors.dtype)) @ vectors
            right = vectors.mH @ symmetrize(v.to(vectors.dtype)) @ vectors
            differences = function.second(
                values[..., :, None, None], values[..., None, :, None], values[..., None, None, :]
            )
            products = left.unsqueeze(-1) * right.unsqueeze(-3) + right.unsqueeze(-1) * left.unsqueeze(-3)
            return symmetrize(_sandwich(vectors, (differences * products).sum(-2))).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        return None

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        raise NotImplementedError("third derivatives of spectral functions are not available; use at most second ones")


def spectral(x: Tensor, function: SpectralFunction, *, eigen: Eigendecomposition | None = None) -> Tensor:
    """Apply a scalar function to the eigenvalues of symmetric or Hermitian matrices.

    Parameters
    ----------
    x : Tensor
        Shape (..., n, n), real or complex; the Hermitian part is used.
    function : SpectralFunction
        The function and its divided differences.
    eigen : Eigendecomposition, optional
        A decomposition of `x` that is known already, as from `eigh(x)`; it must belong to `x`.

    Returns
    -------
    Tensor
        Exactly Hermitian, of the shape and dtype of `x`.

    Examples
    --------
    >>> x = torch.eye(2).requires_grad_()
    >>> spectral(x, Log()).diagonal().sum().backward()
    >>> x.grad
    tensor([[1., 0.],
            [0., 1.]])
    """
    _check_square(x)
    values, vectors = eigh(x) if eigen is None else eigen
    with without_autocast(x):
        result: Tensor = _Spectral.call(x, values, vectors, function)
    return result


def frechet(x: Tensor, u: Tensor, function: SpectralFunction, *, eigen: Eigendecomposition | None = None) -> Tensor:
    """Compute the directional derivative Df(x)[u] of a spectral function.

    Parameters
    ----------
    x, u : Tensor
        Shapes (..., n, n), broadcastable; Hermitian parts are used.
    function : SpectralFunction
        The function and its divided differences.
    eigen : Eigendecomposition, optional
        A known decomposition of `x`.

    Returns
    -------
    Tensor
        Exactly Hermitian, of the dtype of `u`; differentiable in `x` and `u`.

    Examples
    --------
    >>> frechet(torch.eye(2), torch.tensor([[0.0, 1.0], [1.0, 0.0]]), Exp())
    tensor([[0.0000, 2.7183],
            [2.7183, 0.0000]])
    """
    _check_square(x)
    _check_square(u, "u")
    values, vectors = eigh(x) if eigen is None else eigen
    if x.shape != u.shape:
        shape = torch.broadcast_shapes(x.shape, u.shape)
        x, u, vectors = x.expand(shape), u.expand(shape), vectors.expand(shape)
        values = values.expand(shape[:-1])
    with without_autocast(x):
        result: Tensor = _Frechet.call(x, values, vectors, u, function)
    return result


def logm(x: Tensor, *, eigen: Eigendecomposition | None = None) -> Tensor:
    """Matrix logarithm of positive definite matrices; NaN, for that matrix only, where one is not.

    Examples
    --------
    >>> logm(torch.eye(2))
    tensor([[0., 0.],
            [0., 0.]])
    """
    return spectral(x, Log(), eigen=eigen)


def expm(x: Tensor, *, eigen: Eigendecomposition | None = None) -> Tensor:
    """Matrix exponential of symmetric or Hermitian matrices.

    Examples
    --------
    >>> expm(torch.zeros(2, 2))
    tensor([[1., 0.],
            [0., 1.]])
    """
    return spectral(x, Exp(), eigen=eigen)


def sqrtm(x: Tensor, *, eigen: Eigendecomposition | None = None) -> Tensor:
    """Principal square root of positive semidefinite matrices; NaN, for that matrix only, where one is not.

    Examples
    --------
    >>> sqrtm(4 * torch.eye(2))
    tensor([[2., 0.],
            [0., 2.]])
    """
    return spectral(x, Sqrt(), eigen=eigen)


def inv_sqrtm(x: Tensor, *, eigen: Eigendecomposition | None = None) -> Tensor:
    """Inverse square root of positive definite matrices; NaN, for that matrix only, where one is not.

    Examples
    --------
    >>> inv_sqrtm(4 * torch.eye(2))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """
    return spectral(x, InverseSqrt(), eigen=eigen)


def clamp_eigenvalues(x: Tensor, minimum: float, *, eigen: Eigendecomposition | None = None) -> Tensor:
    """Raise the eigenvalues of symmetric or Hermitian matrices to at least `minimum`.

    Examples
    --------
    >>> clamp_eigenvalues(torch.diag(torch.tensor([1e-9, 1.0])), 1e-2)
    tensor([[0.0100, 0.0000],
            [0.0000, 1.0000]])
    """
    return spectral(x, ClampMin(minimum), eigen=eigen)
