"""What bounded symmetric domains share: the scale of the metric, and how close to the boundary points may come."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manifoldnorm.linalg import safe_sqrt
from manifoldnorm.manifolds.complex_points import ComplexPoints

_PROJECTION_MARGIN = {torch.complex128: 1e-6, torch.complex64: 1e-4}


class BoundedDomain(ComplexPoints):
    """What the matrix ball and the complex ball share: the scale of the metric and how close to the boundary to go.

    Parameters
    ----------
    scale : float
        The metric at the origin is scale^2 times the Frobenius product; distances grow with it, variances with its
        square, and nothing else depends on it.
    """

    def __init__(self, scale: float = 1.0) -> None:
        if not scale > 0 or not math.isfinite(scale):
            raise ValueError(
                f"scale must be positive and finite, got {scale}; 1 is geomstats' convention, 2 is geoopt's"
            )
        self.scale = float(scale)

    def origin(self, *size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return zeros of the given batch and event size."""
        self.check_event_shape(size, "size")
        return torch.zeros(*size, dtype=self.complex_dtype(dtype), device=device)

    def random(
        self,
        *size: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw exponentials at the origin of complex Gaussian tangent vectors of length about one."""
        zero = self.origin(*size, dtype=dtype, device=device)
        spread = 1 / (self.scale * math.sqrt(max(1, zero[(0,) * (zero.ndim - self.ndim)].numel())))
        return self.expmap(zero, spread * self.random_tangent(zero, generator=generator)).contiguous()

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute the geodesic distance; the squared one is exactly zero at equal points, and so is its gradient."""
        return safe_sqrt(self.dist2(x, y, keepdim=keepdim))

    def projection_margin(self, dtype: torch.dtype) -> float:
        """Return the distance to the boundary that `projx` leaves: 1e-6 for complex128, 1e-4 for complex64."""
        return _PROJECTION_MARGIN.get(dtype, 1e-2)


def inside_margin(dtype: torch.dtype, size: int) -> float:
    """Room for the round-off of I - Z Z^H: what a computed point keeps from the boundary."""
    return 8 * max(2, size) * torch.finfo(dtype).eps
