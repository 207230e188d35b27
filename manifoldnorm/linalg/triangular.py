"""Logarithm and exponential of unit lower triangular matrices, without a chain of products as long as the matrix.

For nilpotent N of size n the integrand of log(I + N) = int_0^1 N (I + t N)^-1 dt is a polynomial in t of degree at most
n - 2, and so is that of the derivative, int_0^1 (I + t N)^-1 H (I + t N)^-1 dt. Gauss quadrature with n // 2 nodes is
therefore exact: n // 2 independent triangular inverses with positive weights instead of a power series whose terms
cancel when N is large (N. Higham, Functions of Matrices, 2008, chapter 11: the partial fractions of a Pade approximant).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg.precision import without_autocast, working_dtype

_SQUARINGS = 6
_LARGEST_NORM = 2.0 * 2**_SQUARINGS
_TAYLOR = tuple(1 / math.factorial(k) for k in range(17))


@torch.compiler.assume_constant_result
def gauss_legendre(count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes and weights of Gauss quadrature on [0, 1], exact for polynomials of degree below twice their number.

    Parameters
    ----------
    count : int
        Number of nodes.

    Examples
    --------
    >>> gauss_legendre(1)
    ((0.5,), (1.0,))
    """
    return _gauss_legendre(count)


@lru_cache(maxsize=256)
def _gauss_legendre(count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    nodes, weights = [], []
    for k in range(count):
        x = math.cos(math.pi * (k + 0.75) / (count + 0.5))
        for _ in range(100):
            value, slope = _legendre(count, x)
            x -= value / slope
            if abs(value / slope) < 1e-15:
                break
        slope = _legendre(count, x)[1]
        nodes.append((1 - x) / 2)
        weights.append(1 / ((1 - x * x) * slope * slope))
    return tuple(nodes), tuple(weights)


def _legendre(degree: int, x: float) -> tuple[float, float]:
    """Evaluate the Legendre polynomial and its derivative, by the three-term recurrence."""
    previous, value = 1.0, x
    for k in range(2, degree + 1):
        previous, value = value, ((2 * k - 1) * x * value - (k - 1) * previous) / k
    return value, degree * (previous - x * value) / (1 - x * x)


def _shifted_inverses(strict: Tensor) -> tuple[Tensor, Tensor]:
    """Return (I + t N)^-1 for the nodes t, of shape (..., nodes, n, n), and the weights, of shape (nodes, 1, 1)."""
    n = strict.shape[-1]
    nodes, weights = gauss_legendre(n // 2)
    identity = torch.eye(n, dtype=strict.dtype, device=strict.device)
    t = torch.tensor(nodes, dtype=strict.dtype, device=strict.device)[:, None, None]
    # The solver reads the strictly lower part only, the ones on the diagonal are implied.
    shifted = t * strict.unsqueeze(-3)
    inverses = torch.linalg.solve_triangular(shifted, identity.expand_as(shifted), upper=False, unitriangular=True)
    return inverses, torch.tensor(weights, dtype=strict.dtype, device=strict.device)[:, None, None]


def _sandwich(inverses: Tensor, weights: Tensor, h: Tensor) -> Tensor:
    """Sum weight A h A over the nodes, the integral that gives the derivative of the logarithm along h."""
    left = (weights * inverses).transpose(-3, -2).flatten(-2)
    right = h.unsqueeze(-3) @ inverses
    return left @ right.flatten(-3, -2)


class _Log(torch.autograd.Function):
    """log(I + N) for strictly lower N; the derivative of the transpose along G is sum w A^T G A^T, A = (I + t N)^-1."""

    generate_vmap_rule = True

    @staticmethod
    def forward(strict: Tensor) -> tuple[Tensor, Tensor]:
        inverses, weights = _shifted_inverses(strict)
        return torch.tril(strict @ (weights * inverses).sum(-3), -1), inverses

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        strict, inverses = ctx.saved_tensors
        if torch.is_grad_enabled():
            # A second derivative is wanted: the inverses must depend on their matrix.
            inverses, weights = _shifted_inverses(strict)
        else:
            _, weight_values = gauss_legendre(strict.shape[-1] // 2)
            weights = torch.tensor(weight_values, dtype=strict.dtype, device=strict.device)[:, None, None]
        return torch.tril(_sandwich(inverses, weights, torch.tril(gradient, -1).mT).mT, -1)


def log_unit_lower(x: Tensor) -> Tensor:
    """Logarithm of unit lower triangular matrices.

    Parameters
    ----------
    x : Tensor
        Shape (..., n, n), real; only the part below the diagonal is read, the diagonal counts as one.

    Returns
    -------
    Tensor
        Strictly lower triangular, of the shape and dtype of `x` (computed in float64 for float32 on the CPU);
        differentiable twice.

    Examples
    --------
    >>> log_unit_lower(torch.tensor([[1.0, 0.0], [3.0, 1.0]]))
    tensor([[0., 0.],
            [3., 0.]])
    """
    with without_autocast(x):
        strict = torch.tril(x.to(working_dtype(x)), -1)
        if x.shape[-1] < 3:
            return strict.to(x.dtype)
        result: Tensor = _Log.apply(strict)[0]
    return result.to(x.dtype)


def log_unit_lower_frechet(x: Tensor, u: Tensor) -> Tensor:
    """Directional derivative of `log_unit_lower` at `x` along the strictly lower part of `u`.

    Examples
    --------
    >>> log_unit_lower_frechet(torch.eye(2), torch.ones(2, 2))
    tensor([[0., 0.],
            [1., 0.]])
    """
    x, u = torch.broadcast_tensors(torch.tril(x, -1), torch.tril(u, -1))
    if x.shape[-1] < 3:
        return u
    with without_autocast(x):
        inverses, weights = _shifted_inverses(x.to(working_dtype(x)))
        return torch.tril(_sandwich(inverses, weights, u.to(inverses.dtype)), -1).to(u.dtype)


def exp_strictly_lower(x: Tensor) -> Tensor:
    """Exponential of strictly lower triangular matrices, by a fixed number of squarings (no synchronisation).

    Parameters
    ----------
    x : Tensor
        Shape (..., n, n), real; only the part below the diagonal is read.

    Returns
    -------
    Tensor
        Unit lower triangular, of the shape and dtype of `x` (computed in float64 for float32 on the CPU);
        differentiable to any order. NaN, for that matrix only, where the largest row sum of magnitudes exceeds 128:
        the exponential then spans more than the digits of float64.

    Examples
    --------
    >>> exp_strictly_lower(torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
    tensor([[1., 0.],
            [3., 1.]])
    """
    with without_autocast(x):
        strict = torch.tril(x.to(working_dtype(x)), -1)
        identity = torch.eye(x.shape[-1], dtype=strict.dtype, device=x.device)
        if x.shape[-1] < 3:
            return (identity + strict).to(x.dtype)
        excess = _expm1_of_small(strict / 2**_SQUARINGS)
        # exp(2 A) - I = 2 (exp A - I) + (exp A - I)^2 keeps small entries to full relative accuracy.
        for _ in range(_SQUARINGS):
            excess = 2 * excess + excess @ excess
        representable = strict.detach().abs().sum(-1).amax(-1) <= _LARGEST_NORM
        return torch.where(representable[..., None, None], identity + excess, torch.nan).to(x.dtype)


def _expm1_of_small(a: Tensor) -> Tensor:
    """Evaluate the Taylor polynomial of degree 16 of exp(a) - I in six products (Paterson and Stockmeyer, 1973)."""
    square = a @ a
    cube = square @ a
    fourth = square @ square
    c = _TAYLOR

    def block(k: int) -> Tensor:
        return c[k + 1] * a + c[k + 2] * square + c[k + 3] * cube

    result = block(12) + c[16] * fourth
    for k in (8, 4, 0):
        result = block(k) + c[k + 4] * fourth + fourth @ result
    return result


def exp_strictly_lower_frechet(x: Tensor, u: Tensor) -> Tensor:
    """Directional derivative of `exp_strictly_lower` at `x` along the strictly lower part of `u`.

    It is a block of the exponential of the strictly lower triangular matrix [[x, 0], [u, x]].

    Examples
    --------
    >>> exp_strictly_lower_frechet(torch.zeros(2, 2), torch.ones(2, 2))
    tensor([[0., 0.],
            [1., 0.]])
    """
    n = x.shape[-1]
    x, u = torch.broadcast_tensors(torch.tril(x, -1), torch.tril(u, -1))
    top = torch.cat((x, torch.zeros_like(x)), dim=-1)
    block = torch.cat((top, torch.cat((u, x), dim=-1)), dim=-2)
    return exp_strictly_lower(block)[..., n:, :n]
