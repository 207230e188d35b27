"""Elementary functions, accurate and with finite derivatives where textbook forms cancel or divide by zero."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from manifoldnorm.linalg.functions import BatchedFunction


def safe_sqrt(x: Tensor) -> Tensor:
    """Square root of `x >= 0` whose derivative at zero is zero instead of infinite.

    Negative round-off counts as zero; NaN stays NaN.

    Examples
    --------
    >>> x = torch.tensor([0.0, 4.0], requires_grad=True)
    >>> safe_sqrt(x).sum().backward()
    >>> x.grad
    tensor([0.0000, 0.2500])
    """
    vanishes = x <= 0
    return torch.where(vanishes, torch.zeros_like(x), torch.sqrt(torch.where(vanishes, torch.ones_like(x), x)))


class _SumOfSquares(BatchedFunction):
    """The sum of the squares of the last dimension; the product rule would multiply twice."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=-1) ** 2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return cast(Tensor, (2 * gradient).unsqueeze(-1) * x)


def frobenius_inner(x: Tensor, y: Tensor, ndim: int = 2) -> Tensor:
    """Sum the products of real tensors over the last `ndim` dimensions.

    Examples
    --------
    >>> frobenius_inner(torch.eye(2), torch.ones(2, 2))
    tensor(2.)
    """
    if y is x:
        result: Tensor = _SumOfSquares.call(x.flatten(-ndim))
        return result
    return (x * y).flatten(-ndim).sum(-1)


def safe_norm(x: Tensor, dim: int | tuple[int, ...] = -1, *, keepdim: bool = False) -> Tensor:
    """Euclidean (Frobenius) norm over `dim` that neither overflows nor underflows and has gradient zero at zero.

    The entries are divided by the largest one, so the result is right whenever it is representable.

    Parameters
    ----------
    x : Tensor
        Real or complex, floating point.
    dim : int or tuple of int
        Dimensions that are summed.
    keepdim : bool
        Keep the summed dimensions with size one.

    Returns
    -------
    Tensor
        Real norms.

    Examples
    --------
    >>> safe_norm(torch.tensor([3e30, 4e30]))
    tensor(5.0000e+30)
    """
    dims = (dim,) if isinstance(dim, int) else dim
    if any(x.shape[d] == 0 for d in dims):
        return torch.linalg.vector_norm(x, dim=dims, keepdim=keepdim)
    largest = x.detach().abs().amax(dim=dims, keepdim=True)
    usable = (largest > 0) & torch.isfinite(largest)
    scale = torch.where(usable, largest, torch.ones_like(largest))
    scaled = x / scale
    squares = (scaled * scaled.conj()).real if x.is_complex() else scaled * scaled
    norm = safe_sqrt(squares.sum(dim=dims, keepdim=True)) * scale
    return norm if keepdim else norm.squeeze(dims)


def _series_below(x: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    small = x.abs() < bound
    return small, torch.where(small, torch.ones_like(x), x)


def sinhc(x: Tensor) -> Tensor:
    """Compute sinh(x) / x, equal to 1 at zero.

    Examples
    --------
    >>> sinhc(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 1.1752])
    """
    small, guarded = _series_below(x, 0.25)
    square = torch.where(small, x * x, torch.zeros_like(x))
    series = 1 + square / 6 * (1 + square / 20 * (1 + square / 42 * (1 + square / 72 * (1 + square / 110))))
    return torch.where(small, series, torch.sinh(guarded) / guarded)


def sinc(x: Tensor) -> Tensor:
    """Compute sin(x) / x (no factor pi), equal to 1 at zero.

    Examples
    --------
    >>> sinc(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 0.8415])
    """
    small, guarded = _series_below(x, 0.25)
    square = torch.where(small, x * x, torch.zeros_like(x))
    series = 1 - square / 6 * (1 - square / 20 * (1 - square / 42 * (1 - square / 72 * (1 - square / 110))))
    return torch.where(small, series, torch.sin(guarded) / guarded)


def atanhc(x: Tensor) -> Tensor:
    """Compute atanh(x) / x for |x| < 1, equal to 1 at zero.

    Examples
    --------
    >>> atanhc(torch.tensor([0.0, 0.5]))
    tensor([1.0000, 1.0986])
    """
    small, guarded = _series_below(x, 0.03)
    square = torch.where(small, x * x, torch.zeros_like(x))
    series = 1 + square * (1 / 3 + square * (1 / 5 + square * (1 / 7 + square * (1 / 9 + square / 11))))
    return torch.where(small, series, torch.atanh(guarded) / guarded)


def x_coth(x: Tensor) -> Tensor:
    """Compute x coth(x), equal to 1 at zero.

    Examples
    --------
    >>> x_coth(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 1.3130])
    """
    small, guarded = _series_below(x, 0.03)
    square = torch.where(small, x * x, torch.zeros_like(x))
    series = 1 + square / 3 * (1 - square / 15 * (1 - 2 * square / 21 * (1 - square / 10)))
    return torch.where(small, series, guarded / torch.tanh(guarded))
