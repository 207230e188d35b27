"""Logarithm and exponential of unit lower triangular matrices, without a chain of products as long as the matrix.

For nilpotent N of size n the integrand of log(I + N) = int_0^1 N (I + t N)^-1 dt is a polynomial in t of degree at most
n - 2, and so is that of the derivative, int_0^1 (I + t N)^-1 H (I + t N)^-1 dt. Gauss quadrature with n // 2 nodes is
therefore exact: n // 2 independent triangular inverses with positive weights instead of a power series whose terms
cancel when N is large (the partial fractions of a Pade approximant: Higham, Functions of Matrices, 2008, chapter 11).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg.functions import BatchedFunction, constant_under_compile, may_look_at
from manifoldnorm.linalg.precision import without_autocast, working_dtype

_DEGREE = 16
_SQUARINGS = 6
# Up to n = 17 the Taylor polynomial is the exponential, and squarings only keep its terms from cancelling.
_SQUARINGS_OF_EXACT = 4
_LARGEST_NORM = 64.0
_MOST_SQUARINGS = 40


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


def strictly_lower(x: Tensor) -> Tensor:
    """Set the diagonal and what is above it, which must be finite, to zero: on small matrices faster than torch.tril.

    Examples
    --------
    >>> strictly_lower(torch.ones(2, 2))
    tensor([[0., 0.],
            [1., 0.]])
    """
    return x * torch.ones(x.shape[-2:], dtype=x.dtype, device=x.device).tril_(-1)


def _shifted_inverses(strict: Tensor) -> tuple[Tensor, Tensor]:
    """Return sqrt(w) (I + t N)^-1 for nodes t with weights w, shape (B, nodes, n, n), and sqrt(w) as a row."""
    n = strict.shape[-1]
    nodes, weights = gauss_legendre(n // 2)
    root = torch.tensor([[math.sqrt(w) for w in weights]], dtype=strict.dtype, device=strict.device)
    t = torch.tensor(nodes, dtype=strict.dtype, device=strict.device)[:, None, None]
    # The solver reads one strict triangle only; the ones on the diagonal are implied. It works on columns, so that the
    # transposed system needs no copy, and its solution is row-major when it is transposed back.
    shifted = t * strict.unsqueeze(1)
    right = root.mT.unsqueeze(-1) * torch.eye(n, dtype=strict.dtype, device=strict.device)
    solution = torch.linalg.solve_triangular(shifted.mT, right.expand_as(shifted), upper=True, unitriangular=True)
    return solution.mT, root


def _sandwich(inverses: Tensor, h: Tensor) -> Tensor:
    """Sum A h A over the scaled inverses A, the integral that gives the derivative of the logarithm along h.

    Shapes (B, nodes, n, n) and (B, n, n).
    """
    batch, nodes, n, _ = inverses.shape
    stacked = inverses.reshape(batch, nodes * n, n)
    left = torch.bmm(stacked, h).view(batch, nodes, n, n).transpose(1, 2).reshape(batch, n, nodes * n)
    return torch.bmm(left, stacked)


class _Log(BatchedFunction):
    """log(I + N) for strictly lower N (B, n, n); the gradient of G is the transposed sandwich of G^T."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        strict = torch.tril(x, -1)
        inverses, root = _shifted_inverses(strict)
        total = (root @ inverses.flatten(-2)).view(strict.shape)
        return strictly_lower(torch.bmm(strict, total)), inverses

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        x, inverses = ctx.saved_tensors
        if torch.is_grad_enabled():
            # A second derivative is wanted: the inverses must depend on their matrix.
            inverses = _shifted_inverses(x)[0]
        return strictly_lower(_sandwich(inverses, strictly_lower(gradient).mT).mT)


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
        if x.shape[-1] < 3:
            return torch.tril(x, -1)
        wide = x.to(working_dtype(x))
        result: Tensor = _Log.call(wide.reshape(-1, *x.shape[-2:]))[0]
    return result.reshape(x.shape).to(x.dtype)


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
    """Exponential of strictly lower triangular matrices, without synchronisation.

    Parameters
    ----------
    x : Tensor
        Shape (..., n, n), real; only the part below the diagonal is read.

    Returns
    -------
    Tensor
        Unit lower triangular, of the shape and dtype of `x` (computed in float64 for float32 on the CPU);
        differentiable to any order. From n = 18 on the largest row sum of magnitudes may be at most 2^40, or 64 on
        other devices than the CPU, under compilation and vmap, where reading it would cost a synchronisation; beyond
        that the result is NaN, for that matrix only.

    Examples
    --------
    >>> exp_strictly_lower(torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
    tensor([[1., 0.],
            [3., 1.]])
    """
    n = x.shape[-1]
    with without_autocast(x):
        wide = x.to(working_dtype(x))
        if n < 3:
            return (torch.tril(wide, -1) + torch.eye(n, dtype=wide.dtype, device=x.device)).to(x.dtype)
        flat = wide.reshape(-1, n, n)
        norms = torch.tril(flat.detach(), -1).abs().sum(-1).amax(-1)
        exact = n <= _DEGREE + 1
        squarings, bound = (_SQUARINGS_OF_EXACT, math.inf) if exact else (_SQUARINGS, _LARGEST_NORM)
        known = norms.numel() > 0 and may_look_at(norms)
        if known:
            # Matrices are squared as often as the largest norm asks for; a NaN asks for nothing.
            largest = norms.amax().item()
            finite = largest if math.isfinite(largest) else torch.nan_to_num(norms, nan=0.0, posinf=0.0).amax().item()
            needed = math.ceil(math.log2(max(finite, 1.0)))
            squarings = min(needed, squarings if exact else _MOST_SQUARINGS)
            bound = bound if exact else 2.0**squarings
            known = largest <= bound and math.isfinite(largest)
        result: Tensor = _Exp.call(flat, squarings)[0]
        result = result if known else torch.where((norms <= bound)[:, None, None], result, torch.nan)
        return result.reshape(x.shape).to(x.dtype)


class _ExpSteps(NamedTuple):
    """What the evaluation of exp(A) passes through, with R_j = B_j(A) + A^4 R_{j+1} and B_j of degree 3."""

    a: Tensor
    square: Tensor
    fourth: Tensor
    nested: tuple[Tensor, ...]
    powers: tuple[Tensor, ...]

    @classmethod
    def of(cls, x: Tensor, squarings: int) -> _ExpSteps:
        """Evaluate the Taylor polynomial of A = x / 2^squarings (Paterson and Stockmeyer, 1973), and square it.

        Its degree is 16, or n - 1 rounded up, where it is exact. `nested` holds R_1, R_2, ...; `powers` R_0 and its
        squares. A unit triangular matrix keeps small entries to full accuracy when it is squared.
        """
        a = torch.tril(x, -1).mul_(0.5**squarings)
        square = torch.bmm(a, a)
        cube, fourth = torch.bmm(square, a), torch.bmm(square, square)
        nested: list[Tensor] = []
        for constant, *others in reversed(_taylor(a.shape[-1])):
            part = _combination(others, (a, square, cube))
            part.diagonal(dim1=-2, dim2=-1).add_(constant)
            if nested:
                part = torch.baddbmm(part, fourth, nested[-1])
            elif a.shape[-1] > _DEGREE:
                part.add_(fourth, alpha=1 / math.factorial(_DEGREE))
            nested.append(part)
        powers = [nested.pop()]
        for _ in range(squarings):
            powers.append(torch.bmm(powers[-1], powers[-1]))
        return cls(a, square, fourth, tuple(reversed(nested)), tuple(powers))


def _taylor(n: int) -> list[list[float]]:
    """Return 1 / k!, four to a row, as many rows as the size n needs, up to the degree."""
    blocks = -(-min(n, _DEGREE) // 4)
    return [[1 / math.factorial(4 * j + k) for k in range(4)] for j in range(blocks)]


def _combination(coefficients: Iterable[float], terms: Sequence[Tensor]) -> Tensor:
    """Sum coefficients times terms; on small matrices faster than a product with the stacked terms."""
    first, *others = coefficients
    total = first * terms[0]
    for coefficient, term in zip(others, terms[1:]):
        total.add_(term, alpha=coefficient)
    return total


class _Exp(BatchedFunction):
    """exp(x) of the strictly lower part of x, for a batch (B, n, n), by a given number of squarings."""

    @staticmethod
    def forward(x: Tensor, squarings: int) -> tuple[Tensor, ...]:
        steps = _ExpSteps.of(x, squarings)
        *powers, result = steps.powers
        return (result, steps.a, steps.square, steps.fourth, *steps.nested, *powers)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.squarings = inputs[1]
        ctx.save_for_backward(inputs[0], *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, None]:
        if gradient is None:
            return None, None
        x, *saved = ctx.saved_tensors
        if torch.is_grad_enabled():
            steps = _ExpSteps.of(x, ctx.squarings)
            steps = steps._replace(powers=steps.powers[:-1])
        else:
            count = len(saved) - ctx.squarings
            steps = _ExpSteps(saved[0], saved[1], saved[2], tuple(saved[3:count]), tuple(saved[count:]))
        return strictly_lower(_pull_through_exp(steps, gradient)) / 2**ctx.squarings, None


def _pull_through_exp(steps: _ExpSteps, gradient: Tensor) -> Tensor:
    """Carry a gradient from the exponential back to A."""
    for power in reversed(steps.powers):
        gradient = torch.baddbmm(torch.bmm(power.mT, gradient), gradient, power.mT)
    parts, fourth = [gradient], steps.fourth.mT
    at_fourth: Tensor | None = None
    for nested in steps.nested:
        product = torch.bmm(parts[-1], nested.mT)
        at_fourth = product if at_fourth is None else at_fourth + product
        parts.append(torch.bmm(fourth, parts[-1]))
    if steps.a.shape[-1] > _DEGREE and at_fourth is not None:
        at_fourth = torch.add(at_fourth, parts[-1], alpha=1 / math.factorial(_DEGREE))
    _, at_a, at_square, at_cube = (_combination(column, parts) for column in zip(*_taylor(steps.a.shape[-1])))
    a, square = steps.a.mT, steps.square.mT
    if at_fourth is not None:
        at_square = torch.baddbmm(torch.baddbmm(at_square, square, at_fourth), at_fourth, square)
    at_square = torch.baddbmm(at_square, at_cube, a)
    at_a = torch.baddbmm(at_a, square, at_cube)
    return torch.baddbmm(torch.baddbmm(at_a, a, at_square), at_square, a)


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
