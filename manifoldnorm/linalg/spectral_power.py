"""Powers and log-moments of positive definite matrices from one eigendecomposition that they share.

Both have a first derivative in closed form; a second one is taken through `expm(exponent * logm(x))`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg.functions import BatchedFunction, pullback
from manifoldnorm.linalg.precision import without_autocast
from manifoldnorm.linalg.spectral_functions import Log, Power, first_difference_of_power
from manifoldnorm.linalg.symmetric import Eigendecomposition, eigh, expm, logm, spectral, symmetrize


def _power_by_logarithm(x: Tensor, exponent: Tensor, eigen: Eigendecomposition) -> Tensor:
    """Compute the power with functions that can be differentiated twice."""
    scaled = eigen.map(Log()).scaled(exponent.detach())
    return expm(exponent[..., None, None] * logm(x, eigen=eigen), eigen=scaled)


class _Power(BatchedFunction):
    """V w^k V^T; gradients V (L o V^T G V) V^T, L the divided differences of w^k, and sum diag(V^T G V) w^k log w."""

    @staticmethod
    def forward(x: Tensor, exponent: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
        powers = Log().value(values).mul(exponent.to(values.dtype).unsqueeze(-1)).exp()
        return symmetrize((vectors * powers.unsqueeze(-2)) @ vectors.mT).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, exponent, values, vectors = ctx.saved_tensors
        if torch.is_grad_enabled():
            eigen = Eigendecomposition(values, vectors)
            _, pull = pullback(lambda a, k: _power_by_logarithm(a, k, eigen), x, exponent)
            return (*pull(gradient), None, None)
        power = exponent.to(values.dtype).unsqueeze(-1)
        logs = torch.log(values)
        rotated = vectors.mT @ gradient.to(vectors.dtype) @ vectors
        moved = torch.diagonal(rotated, dim1=-2, dim2=-1) * torch.exp(power * logs) * logs
        inner = rotated * first_difference_of_power(values, logs, power)
        return symmetrize(vectors @ inner @ vectors.mT).to(x.dtype), moved.sum(-1).to(exponent.dtype), None, None


class _LogMoments(BatchedFunction):
    """Sums of log w and of (log w)^2; the gradients have eigenvalues 1 / w and 2 log w / w."""

    @staticmethod
    def forward(x: Tensor, values: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        logs = Log().value(values)
        return logs.sum(-1).to(x.dtype), logs.square().sum(-1).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor | None, ...]:
        x, values, vectors = ctx.saved_tensors
        if torch.is_grad_enabled():
            eigen = Eigendecomposition(values, vectors)
            _, pull = pullback(lambda a: _moments_of(logm(a, eigen=eigen)), x)
            return pull((first, second))[0], None, None
        slopes = (
            first.to(values.dtype)[..., None] + 2 * second.to(values.dtype)[..., None] * torch.log(values)
        ) / values
        return symmetrize((vectors * slopes.unsqueeze(-2)) @ vectors.mT).to(x.dtype), None, None


def _moments_of(logarithm: Tensor) -> tuple[Tensor, Tensor]:
    return torch.diagonal(logarithm, dim1=-2, dim2=-1).sum(-1), logarithm.square().sum((-1, -2))


def scaled_power(x: Tensor, exponent: Tensor, eigen: Eigendecomposition) -> Tensor:
    """Compute x^exponent of real SPD matrices (..., n, n) for an exponent of exactly the batch shape.

    Parameters
    ----------
    x : Tensor
        SPD matrices.
    exponent : Tensor
        Of the batch shape of `x`; differentiable.
    eigen : Eigendecomposition
        That of `x`.

    Examples
    --------
    >>> from manifoldnorm.linalg import eigh
    >>> x = 4 * torch.eye(2)
    >>> scaled_power(x, torch.tensor(0.5), eigh(x))
    tensor([[2., 0.],
            [0., 2.]])
    """
    with without_autocast(x):
        result: Tensor = _Power.call(x, exponent, eigen.values, eigen.vectors)
    return result


def log_moments(x: Tensor, eigen: Eigendecomposition) -> tuple[Tensor, Tensor]:
    """Compute tr log x and |log x|^2 of real SPD matrices (..., n, n).

    Examples
    --------
    >>> from manifoldnorm.linalg import eigh
    >>> x = torch.e * torch.eye(2)
    >>> [round(float(value), 4) for value in log_moments(x, eigh(x))]
    [2.0, 2.0]
    """
    with without_autocast(x):
        trace, square = _LogMoments.call(x, eigen.values, eigen.vectors)
    return trace, square


def powm(x: Tensor, exponent: float | Tensor, *, eigen: Eigendecomposition | None = None) -> Tensor:
    """Real power of positive definite matrices, differentiable also in a tensor `exponent`.

    Parameters
    ----------
    x : Tensor
        Shape (..., n, n), positive definite.
    exponent : float or Tensor
        A tensor broadcasts with the batch shape of `x`.
    eigen : Eigendecomposition, optional
        A known decomposition of `x`.

    Examples
    --------
    >>> powm(4 * torch.eye(2), 0.5)
    tensor([[2., 0.],
            [0., 2.]])
    """
    if not isinstance(exponent, Tensor):
        return spectral(x, Power(float(exponent)), eigen=eigen)
    eigen = eigh(x) if eigen is None else eigen
    batch = torch.broadcast_shapes(x.shape[:-2], exponent.shape)
    n = x.shape[-1]
    expanded = Eigendecomposition(eigen.values.expand(*batch, n), eigen.vectors.expand(*batch, n, n))
    x, exponent = x.expand(*batch, n, n), exponent.expand(batch)
    if x.is_complex():
        return _power_by_logarithm(x, exponent, expanded)
    return scaled_power(x, exponent, expanded)
