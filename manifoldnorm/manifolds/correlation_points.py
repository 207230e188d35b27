"""What the correlation geometries share: their points, and how a covariance becomes one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg import clamp_eigenvalues, eigh, expm, symmetrize
from manifoldnorm.linalg.functions import BatchedFunction
from manifoldnorm.linalg.precision import without_autocast
from manifoldnorm.manifolds.checks import Violation, default_tolerance
from manifoldnorm.manifolds.correlation_solvers import hollow
from manifoldnorm.manifolds.square_matrices import SquareMatrices


def correlation_from_covariance(covariance: Tensor) -> Tensor:
    """Divide rows and columns of covariance matrices by the standard deviations.

    Parameters
    ----------
    covariance : Tensor
        Shape (..., n, n), symmetric with a positive diagonal.

    Returns
    -------
    Tensor
        Exactly symmetric with an exactly unit diagonal; NaN, for that matrix only, where the diagonal is not positive.

    Examples
    --------
    >>> correlation_from_covariance(torch.tensor([[4.0, 1.0], [1.0, 1.0]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    with without_autocast(covariance):
        result: Tensor = _Correlation.call(covariance)[0]
    return result


class _Correlation(BatchedFunction):
    """Y = S A S with S = diag(A)^(-1/2), symmetrised, and its diagonal exactly one (or NaN)."""

    @staticmethod
    def forward(covariance: Tensor) -> tuple[Tensor, Tensor]:
        scale = torch.rsqrt(diagonal_of(covariance))
        # Symmetrised last: the products with the scales round differently on either side of the diagonal.
        result = symmetrize(scaled_both_ways(covariance, scale))
        diagonal = diagonal_of(result)
        diagonal.div_(diagonal.clone())
        return result, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], *output)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        covariance, correlation, scale = ctx.saved_tensors
        if torch.is_grad_enabled():
            scale = torch.rsqrt(diagonal_of(covariance))
        inner = hollow(symmetrize(gradient))
        # The scale of a row is that of a column: -s^3 / 2 for the change of s, twice sum_j inner_ij y_ij / s.
        through_scale = -scale * scale * (inner * correlation).sum(-1)
        return scaled_both_ways(inner, scale) + torch.diag_embed(through_scale)


def scaled_both_ways(x: Tensor, scale: Tensor) -> Tensor:
    """Multiply rows and columns of matrices (..., n, n) by `scale`, of shape (..., n)."""
    return x * scale.unsqueeze(-2) * scale.unsqueeze(-1)


def with_unit_diagonal(x: Tensor) -> Tensor:
    """Replace a diagonal that is one up to rounding; the derivative passes through."""
    return x + torch.diag_embed(1 - diagonal_of(x).detach())


def diagonal_of(x: Tensor) -> Tensor:
    """Return a view of the diagonals, shape (..., n)."""
    return torch.diagonal(x, dim1=-2, dim2=-1)


class CorrelationPoints(SquareMatrices):
    """What the correlation geometries share: the points, their tangent vectors (hollow symmetric), how to draw them."""

    name = "correlation matrices"
    smallest = 2
    excluded = "the only 1 x 1 correlation matrix is 1"

    def dimension(self, *event_shape: int) -> int:
        """Return n (n - 1) / 2."""
        n = event_shape[-1]
        return n * (n - 1) // 2

    def projx(self, x: Tensor) -> Tensor:
        """Symmetrise, raise eigenvalues below n eps times the norm to that floor, and scale the diagonal to one."""
        x = symmetrize(x)
        norm = torch.linalg.matrix_norm(x, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        floor = torch.finfo(x.dtype).eps * x.shape[-1]
        return correlation_from_covariance(clamp_eigenvalues(x / norm, floor))

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Symmetrise and set the diagonal to zero."""
        return hollow(symmetrize(u)).expand(torch.broadcast_shapes(x.shape, u.shape))

    def random(
        self,
        *size: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw the correlations of exponentials of symmetric Gaussian matrices of standard deviation 0.5."""
        self.check_event_shape(size, "size")
        noise = torch.randn(*size, generator=generator, dtype=dtype, device=device)
        return correlation_from_covariance(expm(0.5 * symmetrize(noise)))

    def is_plausible(self, x: Tensor) -> Tensor:
        """Look for a matrix that is not symmetric or whose diagonal is not one."""
        if x.numel() == 0:
            return super().is_plausible(x)
        # The difference is antisymmetric: its largest entry is the largest magnitude.
        deviation = torch.maximum((x - x.mT).amax(), (diagonal_of(x) - 1).abs().amax())
        return deviation <= default_tolerance(x.dtype)

    def _point_violations(self, x: Tensor) -> list[Violation]:
        asymmetry = (x - x.mT).abs().flatten(-2).amax(-1)
        diagonal = (diagonal_of(x) - 1).abs().amax(-1)
        smallest = eigh(x).values[..., 0]
        unit = "a matrix with unit diagonal (correlation_from_covariance makes one), but max |x_ii - 1|"
        return [
            Violation("symmetric, but max |x - x^T|", asymmetry),
            Violation(unit, diagonal),
            Violation("positive definite, but its smallest eigenvalue", smallest, failed=~(smallest > 0)),
        ]


def check_positive_at(n: int, smallest: int, expression: str, value: float) -> None:
    """Raise ValueError, naming the expression, unless its value is positive or n is below `smallest`."""
    if n >= smallest and not value > 0:
        raise ValueError(f"{expression} must be positive for a Riemannian metric at n = {n}, got {value:g}")
