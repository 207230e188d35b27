"""What the SPD geometries share: their points, and the inner products with a trace term."""

from __future__ import annotations

import torch
from torch import Tensor

from manifoldnorm.linalg import clamp_eigenvalues, eigh, expm, symmetrize
from manifoldnorm.linalg.stable import frobenius_inner
from manifoldnorm.manifolds.checks import Violation, default_tolerance
from manifoldnorm.manifolds.mean import expand_like
from manifoldnorm.manifolds.square_matrices import SquareMatrices


class SPDPoints(SquareMatrices):
    """What the SPD geometries share: the points, their tangent vectors (symmetric matrices), and how to draw them."""

    name = "symmetric positive definite matrices"

    def projx(self, x: Tensor) -> Tensor:
        """Symmetrise and raise eigenvalues below n eps times the largest one to that floor."""
        x = symmetrize(x)
        largest = torch.linalg.matrix_norm(x, ord="fro", keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        floor = torch.finfo(x.dtype).eps * x.shape[-1]
        return clamp_eigenvalues(x / largest, floor) * largest

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Symmetrise."""
        return expand_like(symmetrize(u), x)

    def random(
        self,
        *size: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw exponentials of symmetric Gaussian matrices whose entries have standard deviation 0.5."""
        self.check_event_shape(size, "size")
        noise = torch.randn(*size, generator=generator, dtype=dtype, device=device)
        return expm(0.5 * symmetrize(noise))

    def dimension(self, *event_shape: int) -> int:
        """Return n (n + 1) / 2."""
        return event_shape[-1] * (event_shape[-1] + 1) // 2

    def is_plausible(self, x: Tensor) -> Tensor:
        """Look for a matrix that is not symmetric."""
        if x.numel() == 0:
            return super().is_plausible(x)
        # The difference is antisymmetric, and the largest entry of a positive definite matrix is on its diagonal.
        largest = torch.diagonal(x, dim1=-2, dim2=-1).amax(-1)
        return ((x - x.mT).amax((-2, -1)) <= default_tolerance(x.dtype) * largest).all()

    def _point_violations(self, x: Tensor) -> list[Violation]:
        scale = x.abs().flatten(-2).amax(-1)
        asymmetry = (x - x.mT).abs().flatten(-2).amax(-1)
        smallest = eigh(x).values[..., 0]
        return [
            Violation("symmetric, but max |x - x^T|", asymmetry, scale),
            Violation("positive definite, but its smallest eigenvalue", smallest, failed=~(smallest > 0)),
        ]


def check_positive(name: str, value: float) -> float:
    """Return the value, or raise ValueError that names it."""
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return float(value)


def congruence(factor: Tensor, x: Tensor) -> Tensor:
    """Return F x F^T, exactly symmetric."""
    return symmetrize(factor @ x @ factor.mT)


def check_trace_metric(alpha: float, beta: float, n: int) -> None:
    """Raise ValueError unless alpha tr(U V) + beta tr U tr V is positive on n x n matrices."""
    if not alpha + n * beta > 0:
        raise ValueError(
            f"alpha + n beta must be positive for a Riemannian metric, got {alpha} + {n} * {beta} = {alpha + n * beta}"
        )


def trace(x: Tensor) -> Tensor:
    """Sum the diagonals."""
    return torch.diagonal(x, dim1=-2, dim2=-1).sum(-1)


def trace_inner(z: Tensor, w: Tensor, alpha: float, beta: float) -> Tensor:
    """Compute alpha tr(z w) + beta tr z tr w of symmetric matrices."""
    product = alpha * frobenius_inner(z, w)
    return product + beta * trace(z) * trace(w) if beta else product


def raise_trace_inner(g: Tensor, alpha: float, beta: float) -> Tensor:
    """Find r with trace_inner(r, w) = tr(g w) for all symmetric w."""
    if not beta:
        return g / alpha
    n = g.shape[-1]
    shift = beta / (alpha + beta * n) * trace(g)
    return (g - shift[..., None, None] * torch.eye(n, dtype=g.dtype, device=g.device)) / alpha
