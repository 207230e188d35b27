"""Sets of weight matrices of fixed size: what all of them have in common.

They are embedded: the metric is the Frobenius inner product of the ambient matrices. `matrix_spheres` has those whose
entries, rows or columns have a fixed norm, `spectral_sphere` those of fixed spectral norm, `frames` those with
orthonormal columns or rows.
"""

from __future__ import annotations

import math
from math import inf
from typing import TypeAlias

import torch
from torch import Tensor

from manifoldnorm.linalg.polar import msign
from manifoldnorm.manifolds.base import Manifold

Frame: TypeAlias = tuple[Tensor, ...] | None
"""What a manifold keeps about a point for projections there: see `MatrixManifold.normal_frame`."""

Length: TypeAlias = float | Tensor
"""A factor on tangent vectors: a number, or a tensor that broadcasts with them."""


class MatrixManifold(Manifold):
    """Matrices of shape (..., m, n) whose size is fixed by a radius; the metric is <u, v> = sum of u * v.

    Besides the protocol of `Manifold` it answers what an optimizer of weights asks.

    Parameters
    ----------
    radius : float or Tensor
        Positive; a tensor has the batch shape and gives every matrix its own.
    """

    ndim = 2
    projects_by_products = False
    """Whether `proju` is made of products of large matrices; optimizers run those as precisely as their direction."""

    def __init__(self, radius: float | Tensor = 1.0) -> None:
        if not isinstance(radius, Tensor):
            radius = float(radius)
            if not (radius > 0 and math.isfinite(radius)):
                raise ValueError(f"radius must be positive and finite, got {radius}")
        self.radius = radius

    def _radius(self) -> float | Tensor:
        return self._over_events(self.radius)

    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:  # noqa: D102
        shape = torch.broadcast_shapes(x.shape, u.shape)
        return (u * (u if v is None else v)).expand(shape).sum((-2, -1), keepdim=keepdim)

    def retr_transp(self, x: Tensor, u: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        """Retract along `u` and project `v` (and `more` vectors) onto the new tangent space: a vector transport."""
        y = self.retr(x, u)
        return (y, *(self.proju(y, vector) for vector in (v, *more)))

    def origin(self, *size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return `radius` times the identity, padded with zeros."""
        self.check_event_shape(size)
        return self._radius() * torch.eye(*size[-2:], dtype=dtype, device=device).expand(size)

    def random(
        self,
        *size: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw Gaussian matrices and project them, which is uniform but for the spectral sphere."""
        self.check_event_shape(size)
        return self.projx(torch.randn(size, generator=generator, dtype=dtype, device=device))

    # What an optimizer asks.

    def radius_of(self, x: Tensor) -> Tensor:
        """Return the radius of the manifold on which matrices of any norm lie, or nearly lie; shape (...)."""
        self._missing("radius_of", "define it in the subclass")

    def constraint_error(self, x: Tensor) -> Tensor:
        """Return the relative deviation of each matrix from the manifold; shape (...)."""
        self._missing("constraint_error", "define it in the subclass")

    def even_norm(self, rows: int, columns: int) -> float | Tensor:
        """Return the spectral norm of a point whose singular values are all equal, of the radius' shape."""
        return self.radius

    def mup_radius(self, rows: int, columns: int) -> float:
        """Return the radius at which a point acts like a Gaussian matrix of spectral norm sqrt(rows / columns).

        For fan-out `rows` and fan-in `columns` this is the scale of maximal-update parametrisation.
        """
        return math.sqrt(rows / columns)

    def normal_frame(self, x: Tensor) -> Frame:
        """Return what `proju` would compute from `x` alone, where that is worth keeping for several projections."""
        return None

    def project_with(self, x: Tensor, u: Tensor, frame: Frame) -> Tensor:
        """Compute `proju(x, u)` from a kept `normal_frame(x)`."""
        return self.proju(x, u)

    def project_rounded(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return `proju(x, u)` rounded to bfloat16, with a bound on its rounding error, shape (..., 1, 1)."""
        self._missing("project_rounded", "define it in the subclass, or leave projects_by_products False")

    def retract_along(
        self, x: Tensor, u: Tensor, length: Length, *, project: bool = False, frame: Frame = None, bound: float = inf
    ) -> tuple[Tensor, Frame]:
        """Compute `retr(x, length * u)` without a gradient, and the normal frame there if it comes for nothing.

        Parameters
        ----------
        x : Tensor
            Points, shape (..., m, n).
        u : Tensor
            Vectors, of the same shape and of the dtype of `x` or a narrower one.
        length : Length
            A factor on `u`.
        project : bool
            Take `proju(x, u)` instead of `u`, in the precision of `u` where `projects_by_products`.
        frame : tuple of Tensor, optional
            `normal_frame(x)`, where it is known.
        bound : float
            An upper bound on |length * u|_2 / radius, which may make it cheaper.
        """
        u = u.to(x.dtype)
        return self.retr(x, length * (self.project_with(x, u, frame) if project else u)), None

    def dual_direction(self, x: Tensor, g: Tensor) -> Tensor:
        """Return the tangent matrix of spectral norm at most one that maximises <g, .>, in the exact sense.

        An iteration that takes tens of polar factors: a reference to measure cheaper directions against.
        """
        self._missing("dual_direction", "project, take msign and project again (direction='tangent')")


def steepest_across(g: Tensor, normal: Tensor) -> Tensor:
    """Maximise <g, D> over |D|_2 <= 1 and <normal, D> = 0, in float64; shapes (..., m, n).

    The Lagrangian dual minimises the convex |g + l normal|_* over the number l, with derivative <normal, msign(g + l
    normal)>; the minimiser lies within 2 |g|_* / |normal|_*. Where the derivative jumps over zero, the maximiser is the
    convex combination of its two sides.
    """
    g, normal = g.double(), normal.double()
    nuclear = torch.linalg.svdvals(g).sum(-1) / torch.linalg.svdvals(normal).sum(-1)
    high = (2 * nuclear)[..., None, None]
    low = -high

    def slope(at: Tensor) -> tuple[Tensor, Tensor]:
        direction = msign(g + at * normal, "svd")
        return direction, (normal * direction).sum((-2, -1), keepdim=True)

    for _ in range(60):
        middle = (low + high) / 2
        below = slope(middle)[1] < 0
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    (first, left), (second, right) = slope(low), slope(high)
    gap = right - left
    weight = torch.where(gap > 0, -left / torch.where(gap > 0, gap, torch.ones_like(gap)), torch.zeros_like(gap))
    return torch.lerp(first, second, weight.clamp(0, 1))
