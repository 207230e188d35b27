"""Matrices of fixed Frobenius norm, or whose rows or columns have a fixed norm: spheres and products of spheres."""

from __future__ import annotations

import math
from math import inf

import torch
from torch import Tensor

from manifoldnorm.linalg import safe_norm
from manifoldnorm.linalg.even_functions import ANGLE_OVER_SINE, COSINE, COSINE_LESS_ONE, SINE_RATIO
from manifoldnorm.linalg.products import matrix_inner
from manifoldnorm.manifolds.checks import Violation
from manifoldnorm.manifolds.matrices import Frame, Length, MatrixManifold, steepest_across


def _frobenius_size(rows: int, columns: int) -> float:
    """Frobenius norm of a Gaussian matrix of spectral norm sqrt(rows / columns)."""
    return math.sqrt(rows / columns) * math.sqrt(rows * columns) / (math.sqrt(rows) + math.sqrt(columns))


class _Spheres(MatrixManifold):
    """Products of spheres: the entries along `_dims` have norm `radius`."""

    _dims: tuple[int, ...] = (-2, -1)

    def _dot(self, u: Tensor, v: Tensor) -> Tensor:
        return (u * v).sum(self._dims, keepdim=True)

    def _length(self, u: Tensor) -> Tensor:
        return torch.linalg.vector_norm(u, dim=self._dims, keepdim=True)

    def projx(self, x: Tensor) -> Tensor:
        """Scale to norm `radius`; NaN where the norm is zero, since every point is equally near."""
        return x * (self._radius() / safe_norm(x, self._dims, keepdim=True))

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Subtract the component along `x`."""
        return self.project_with(x, u, self.normal_frame(x))

    def normal_frame(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the squared norms, which differ from `radius` squared where `x` has drifted."""
        return (self._dot(x, x),)

    def project_with(self, x: Tensor, u: Tensor, frame: Frame) -> Tensor:
        """Compute `proju(x, u)` from a kept frame."""
        (square,) = self.normal_frame(x) if frame is None else frame
        return torch.addcmul(u, x, self._dot(x, u) / square, value=-1)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Add and scale back to norm `radius`."""
        y = x + u
        return y * self._rescaling(y)

    def _rescaling(self, y: Tensor) -> Tensor:
        return self._radius() / self._length(y)

    def retract_along(
        self, x: Tensor, u: Tensor, length: Length, *, project: bool = False, frame: Frame = None, bound: float = inf
    ) -> tuple[Tensor, Frame]:
        """Compute `retr(x, length * u)`; a projection only changes the multiple of `x` that is added."""
        u = u.to(x.dtype)
        length = torch.as_tensor(length, dtype=x.dtype, device=x.device)
        start = x
        if project:
            (square,) = self.normal_frame(x) if frame is None else frame
            start = x * (1 - length * (self._dot(x, u) / square))
        y = torch.addcmul(start, u, length)
        return y.mul_(self._rescaling(y)), None

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Follow great circles."""
        square = self._dot(u, u) / self._radius() ** 2
        return COSINE.value(square) * x + SINE_RATIO.value(square) * u

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the velocity of the shorter great circle; one of many, of length pi `radius`, for opposite points."""
        apart, together = x - y, x + y
        far, near = self._dot(apart, apart), self._dot(together, together)
        opposite = near <= (4 * torch.finfo(x.dtype).eps * self._radius()) ** 2
        half_tangent = far / torch.where(opposite, torch.ones_like(near), near)
        toward = self.proju(x, -apart)
        # The second projection removes what cancellation has left of the first.
        velocity = ANGLE_OVER_SINE.value(half_tangent) * self.proju(x, toward)
        anywhere = self.proju(x, self._least_aligned(x).expand_as(velocity))
        size = safe_norm(anywhere, self._dims, keepdim=True)
        turned = anywhere * (math.pi * self._radius() / torch.where(size > 0, size, torch.ones_like(size)))
        return torch.where(opposite, turned, velocity)

    def _least_aligned(self, x: Tensor) -> Tensor:
        """Mark one entry of smallest magnitude in each sphere."""
        flat = x.detach().abs()
        flat = flat.flatten(-2) if len(self._dims) == 2 else flat.movedim(self._dims[0], -1)
        marked = torch.zeros_like(flat).scatter(-1, flat.argmin(-1, keepdim=True), 1.0)
        return marked.unflatten(-1, x.shape[-2:]) if len(self._dims) == 2 else marked.movedim(-1, self._dims[0])

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Transport in parallel along the great circles."""
        velocity = self.logmap(x, y) / self._radius()
        square = self._dot(velocity, velocity)
        turned = COSINE_LESS_ONE.value(square) * velocity - SINE_RATIO.value(square) * x / self._radius()
        return v + self._dot(velocity, v) * turned

    def center(self, x: Tensor, base: Tensor) -> Tensor:
        """Return log at `base`, carried to the origin by the rotation along the great circle."""
        origin = self.origin(*base.shape, dtype=base.dtype, device=base.device)
        return self.transp(base, origin, self.logmap(base, x))

    def uncenter(self, t: Tensor, base: Tensor) -> Tensor:
        """Invert `center`."""
        origin = self.origin(*base.shape, dtype=base.dtype, device=base.device)
        return self.expmap(base, self.transp(origin, base, t))

    def constraint_error(self, x: Tensor) -> Tensor:
        """Return the largest | |x| / radius - 1 | over the spheres of each matrix."""
        return (self._length(x) / self._radius() - 1).abs().amax((-2, -1))

    def _point_violations(self, x: Tensor) -> list[Violation]:
        return [Violation("of norm radius, but | |x| / radius - 1 |", self.constraint_error(x))]


class FrobeniusSphere(_Spheres):
    """Matrices of Frobenius norm `radius`.

    Parameters
    ----------
    radius : float or Tensor
        The norm.

    Examples
    --------
    >>> sphere = FrobeniusSphere(2.0)
    >>> x = sphere.random(3, 4)
    >>> sphere.check_point_on_manifold(sphere.retr(x, sphere.random_tangent(x)))
    True
    """

    name = "the Frobenius sphere"

    def _dot(self, u: Tensor, v: Tensor) -> Tensor:
        return matrix_inner(u, v)

    def origin(self, *size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return the matrix with equal entries on the diagonal and zeros elsewhere."""
        self.check_event_shape(size)
        point = torch.eye(*size[-2:], dtype=dtype, device=device) / math.sqrt(min(size[-2:]))
        return self._radius() * point.expand(size)

    def radius_of(self, x: Tensor) -> Tensor:
        """Return the Frobenius norm."""
        return safe_norm(x, (-2, -1))

    def even_norm(self, rows: int, columns: int) -> float | Tensor:  # noqa: D102
        return self.radius / math.sqrt(min(rows, columns))

    def mup_radius(self, rows: int, columns: int) -> float:  # noqa: D102
        return _frobenius_size(rows, columns)

    def dual_direction(self, x: Tensor, g: Tensor) -> Tensor:  # noqa: D102
        return steepest_across(g, self.projx(x) / self._radius())


class Oblique(_Spheres):
    """Matrices whose rows (`dim=-1`) or columns (`dim=-2`) have norm `radius`.

    Parameters
    ----------
    radius : float or Tensor
        The norm of each row or column.
    dim : {-1, -2}
        The dimension along which norms are taken.

    Examples
    --------
    >>> Oblique(dim=-2).projx(torch.tensor([[3.0, 0.0], [4.0, 2.0]]))
    tensor([[0.6000, 0.0000],
            [0.8000, 1.0000]])
    """

    name = "the oblique manifold"

    def __init__(self, radius: float | Tensor = 1.0, *, dim: int = -1) -> None:
        super().__init__(radius)
        if dim not in (-1, -2):
            raise ValueError(f"dim must be -1 (rows have norm radius) or -2 (columns have), got {dim}")
        self.dim = dim

    @property
    def _dims(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.dim,)

    def _length(self, u: Tensor) -> Tensor:
        # The norm kernel is slow along a strided dimension on the CPU; a product and a sum are not.
        return super()._length(u) if self.dim == -1 else self._dot(u, u).sqrt()

    def origin(self, *size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return the matrix whose first column (row, for `dim=-2`) is `radius` and the others zero."""
        self.check_event_shape(size)
        point = torch.zeros(size, dtype=dtype, device=device)
        first = point.narrow(self.dim, 0, 1)
        first += self._radius()
        return point

    def _count(self, rows: int, columns: int) -> int:
        return rows if self.dim == -1 else columns

    def radius_of(self, x: Tensor) -> Tensor:
        """Return the root mean square of the row (column) norms, which keeps the Frobenius norm."""
        return safe_norm(x, (-2, -1)) / math.sqrt(self._count(*x.shape[-2:]))

    def even_norm(self, rows: int, columns: int) -> float | Tensor:  # noqa: D102
        return self.radius * math.sqrt(self._count(rows, columns) / min(rows, columns))

    def mup_radius(self, rows: int, columns: int) -> float:  # noqa: D102
        return _frobenius_size(rows, columns) / math.sqrt(self._count(rows, columns))
