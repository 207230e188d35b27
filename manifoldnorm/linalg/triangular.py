"""Logarithm and exponential of unit lower triangular matrices, without a chain of products as long as the matrix.

For nilpotent N of size n the integrand of log(I + N) = int_0^1 N (I + t N)^-1 dt is a polynomial in t of degree at most
n - 2, and so is that of the derivative, int_0^1 (I + t N)^-1 H (I + t N)^-1 dt. Gauss quadrature with n // 2 nodes is
therefore exact: n // 2 independent triangular inverses with positive weights instead of a power series whose terms
cancel when N is large (the partial fractions of a Pade approximant: Higham, Functions of Matrices, 2008, chapter 11).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg.functions import constant_under_compile
from manifoldnorm.linalg.precision import without_autocast, working_dtype

_DEGREE = 16
_SQUARINGS = 6
# Up to n = 17 the Taylor polynomial is the exponential, and squarings only keep its terms from cancelling.
_SQUARINGS_OF_EXACT = 4
_LARGEST_NORM = 64.0


@constant_under_compile
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
    """Return sqrt(w) (I + t N)^-1 for nodes t with weights w, shape (B, nodes, n, n), and sqrt(w) as a row."""
    n = strict.shape[-1]
    nodes, weights = gauss_legendre(n // 2)
    root = torch.tensor([[math.sqrt(w) for w in weights]], dtype=strict.dtype, device=strict.device)
    t = torch.tensor(nodes, dtype=strict.dtype, device=strict.device)[:, None, None]
    # The solver reads the strictly lower part only; the ones on the diagonal are implied.
    shifted = t * strict.unsqueeze(1)
    right = root.mT.unsqueeze(-1) * torch.eye(n, dtype=strict.dtype, device=strict.device)
    inverses = torch.linalg.solve_triangular(shifted, right.expand_as(shifted), upper=False, unitriangular=True)
    return inverses, root


def _sandwich(inverses: Tensor, h: Tensor) -> Tensor:
    """Sum A h A over the scaled inverses A, the integral that gives the derivative of the logarithm along h.

    Shapes (B, nodes, n, n) and (B, n, n).
    """
    batch, nodes, n, _ = inverses.shape
    left = inverses.transpose(1, 2).reshape(batch, n, nodes * n)
    right = torch.bmm(h, left).view(batch, n, nodes, n).transpose(1, 2).reshape(batch, nodes * n, n)
    return torch.bmm(left, right)


class _Log(torch.autograd.Function):
    """log(I + N) for strictly lower N (B, n, n); the gradient of G is the transposed sandwich of G^T."""

    generate_vmap_rule = True

    @staticmethod
    def forward(strict: Tensor) -> tuple[Tensor, Tensor]:
        inverses, root = _shifted_inverses(strict)
        total = (root @ inverses.flatten(-2)).view(strict.shape)
        return torch.tril(torch.bmm(strict, total), -1), inverses

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
            inverses = _shifted_inverses(strict)[0]
        return torch.tril(_sandwich(inverses, torch.tril(gradient, -1).mT).mT, -1)


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
        result: Tensor = _Log.apply(strict.reshape(-1, *strict.shape[-2:]))[0]
    return result.reshape(strict.shape).to(x.dtype)


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
        n, dtype = x.shape[-1], working_dtype(x)
        inverses = _shifted_inverses(x.to(dtype).reshape(-1, n, n))[0]
        result = _sandwich(inverses, u.to(dtype).reshape(-1, n, n))
        return torch.tril(result, -1).reshape(u.shape).to(u.dtype)


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
        differentiable to any order. NaN, for that matrix only, where the largest row sum of magnitudes exceeds 64:
        the exponential then spans more than the digits of float64.

    Examples
    --------
    >>> exp_strictly_lower(torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
    tensor([[1., 0.],
            [3., 1.]])
    """
    with without_autocast(x):
        strict = torch.tril(x.to(working_dtype(x)), -1)
        n = x.shape[-1]
        if n < 3:
            return (strict + torch.eye(n, dtype=strict.dtype, device=x.device)).to(x.dtype)
        squarings = _SQUARINGS if n > _DEGREE + 1 else _SQUARINGS_OF_EXACT
        flat = strict.reshape(-1, n, n)
        result: Tensor = _RepeatedSquare.apply(_exp_of_small(flat / 2**squarings), squarings)[0]
        representable = flat.detach().abs().sum(-1).amax(-1) <= _LARGEST_NORM
        result = torch.where(representable[:, None, None], result, torch.nan)
        return result.reshape(strict.shape).to(x.dtype)


def _exp_of_small(a: Tensor) -> Tensor:
    """Evaluate the Taylor polynomial of exp(a), by powers up to the fourth (Paterson and Stockmeyer, 1973).

    Its degree is 16, or n - 1 rounded up, where it is exact; at most six products. The batch has one dimension.
    """
    n = a.shape[-1]
    square = torch.bmm(a, a)
    powers = torch.stack((torch.eye(n, dtype=a.dtype, device=a.device).expand_as(a), a, square, torch.bmm(square, a)))
    blocks = -(-min(n, _DEGREE) // 4)
    table = [[1 / math.factorial(4 * j + k) for k in range(4)] for j in range(blocks)]
    coefficients = torch.tensor(table, dtype=a.dtype, device=a.device)
    parts = torch.mm(coefficients, powers.reshape(4, -1)).reshape(blocks, *a.shape).unbind(0)
    result = parts[-1]
    fourth = torch.bmm(square, square)
    if n > _DEGREE:
        result = result + fourth / math.factorial(_DEGREE)
    for j in range(blocks - 2, -1, -1):
        result = torch.baddbmm(parts[j], fourth, result)
    return result


class _RepeatedSquare(torch.autograd.Function):
    """x^(2^count) by squaring, for a batch (B, n, n). A unit triangular x keeps small entries to full accuracy."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, count: int) -> tuple[Tensor, ...]:
        powers = [x]
        for _ in range(count):
            powers.append(torch.bmm(powers[-1], powers[-1]))
        return (powers[-1], *powers[1:-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.count = inputs[1]
        ctx.save_for_backward(inputs[0], *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, None]:
        if gradient is None:
            return None, None
        powers = list(ctx.saved_tensors)
        if torch.is_grad_enabled():
            powers = powers[:1]
            for _step in range(ctx.count - 1):
                powers.append(torch.bmm(powers[-1], powers[-1]))
        for power in reversed(powers):
            gradient = torch.baddbmm(torch.bmm(power.mT, gradient), gradient, power.mT)
        return gradient, None


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
