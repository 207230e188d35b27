"""Sets of weight matrices of fixed size: Frobenius sphere, oblique manifold, spectral sphere.

The matrices with orthonormal columns are in `manifoldnorm.manifolds.frames`. All of them are embedded: the metric is
the Frobenius inner product of the ambient matrices.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

from manifoldnorm.linalg import safe_norm
from manifoldnorm.linalg.even_functions import ANGLE_OVER_SINE, COSINE, COSINE_LESS_ONE, SINE_RATIO
from manifoldnorm.linalg.polar import msign
from manifoldnorm.linalg.spectral_norm import SpectralNormMethod, leading_singular_pair, spectral_norm
from manifoldnorm.manifolds.base import Manifold
from manifoldnorm.manifolds.checks import Violation

Frame: TypeAlias = tuple[Tensor, ...] | None
"""What a manifold keeps about a point for projections there: see `MatrixManifold.normal_frame`."""


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
    """Whether `proju` consists of matrix products, which optimizers run in the precision of their direction."""

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

    def retract_along(
        self, x: Tensor, u: Tensor, length: float | Tensor, *, bound: float | None = None
    ) -> tuple[Tensor, Frame]:
        """Compute `retr(x, length * u)`, without a gradient, and the normal frame there if it comes for nothing.

        `length` broadcasts with `u`; a bound on |length * u|_2 / radius may make it cheaper.
        """
        return self.retr(x, length * u), None

    def dual_direction(self, x: Tensor, g: Tensor) -> Tensor:
        """Return the tangent matrix of spectral norm at most one that maximises <g, .>, in the exact sense.

        An iteration that takes tens of polar factors: a reference to measure cheaper directions against.
        """
        self._missing("dual_direction", "project, take msign and project again (direction='tangent')")


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
        self, x: Tensor, u: Tensor, length: float | Tensor, *, bound: float | None = None
    ) -> tuple[Tensor, Frame]:
        """Compute `retr(x, length * u)` in place of one temporary."""
        y = torch.addcmul(x, u, torch.as_tensor(length, dtype=u.dtype, device=u.device))
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

    def random(
        self,
        *size: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw uniformly distributed points."""
        self.check_event_shape(size)
        return self.projx(torch.randn(size, generator=generator, dtype=dtype, device=device))

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
        if u.shape != v.shape:
            u, v = torch.broadcast_tensors(u, v)
        if u.ndim > 2 and u.shape[0] > 1:
            return super()._dot(u, v)
        # One matrix at a time a product needs no temporary; the batched product is several times slower than a sum.
        return u.flatten(-2).unsqueeze(-2) @ v.flatten(-2).unsqueeze(-1)

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
        return _dual_over_line(g, self.projx(x) / self._radius())


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


class SpectralSphere(MatrixManifold):
    """Matrices of spectral norm `radius`: a manifold where the largest singular value is simple, else a set with edges.

    Where singular values are tied with the largest one, the tangent cone is replaced by the linear space in which none
    of them moves: for orthonormal columns, the tangent space of the Stiefel manifold.

    Parameters
    ----------
    radius : float or Tensor
        The spectral norm.
    estimator : {"exact", "schatten", "power"}
        How retractions find the norm, see `manifoldnorm.linalg.spectral_norm`. The first two never let it exceed
        `radius` (beyond rounding); "schatten" leaves it up to 3 % below.
    tie : float
        Singular values above (1 - `tie`) times the largest count as tied with it.

    Examples
    --------
    >>> sphere = SpectralSphere(2.0)
    >>> sphere.projx(torch.diag(torch.tensor([1.0, 4.0])))
    tensor([[0.5000, 0.0000],
            [0.0000, 2.0000]])
    """

    name = "the spectral sphere"

    def __init__(
        self, radius: float | Tensor = 1.0, *, estimator: SpectralNormMethod = "exact", tie: float = 1e-3
    ) -> None:
        super().__init__(radius)
        if not 0 <= tie < 1:
            raise ValueError(f"tie must lie in [0, 1), got {tie}")
        self.estimator = estimator
        self.tie = tie

    def projx(self, x: Tensor) -> Tensor:
        """Scale to spectral norm `radius`; NaN for a zero matrix."""
        return x * (self._radius() / spectral_norm(x)[..., None, None])

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Subtract U sym(U^T u V) V^T for the singular vectors U, V of the largest (and tied) singular values."""
        return self.project_with(x, u, self.normal_frame(x))

    def normal_frame(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the leading singular vectors, zero in the columns of singular values that are not tied.

        Raises
        ------
        RuntimeError
            When `x` asks for a gradient, which would silently be missing.
        """
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("projections of the spectral sphere are not differentiable in x; pass x.detach()")
        left, values, right = torch.linalg.svd(x, full_matrices=False)
        tied = (values >= (1 - self.tie) * values[..., :1]).to(x.dtype).unsqueeze(-2)
        return left * tied, right.mT * tied

    def project_with(self, x: Tensor, u: Tensor, frame: Frame) -> Tensor:
        """Compute `proju(x, u)` from a kept frame."""
        left, right = self.normal_frame(x) if frame is None else frame
        block = left.mT @ u @ right
        return u - left @ ((block + block.mT) / 2) @ right.mT

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Add and scale back to spectral norm `radius`."""
        y = x + u
        return y * (self._radius() / spectral_norm(y, self.estimator)[..., None, None])

    def retract_along(
        self, x: Tensor, u: Tensor, length: float | Tensor, *, bound: float | None = None
    ) -> tuple[Tensor, Frame]:
        """Compute `retr(x, length * u)` with the leading pair of singular vectors, from one decomposition."""
        y = x + length * u
        value, left, right = leading_singular_pair(y, self.estimator)
        return y * (self._radius() / value[..., None, None]), (left, right)

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
        """Draw Gaussian matrices and scale them."""
        self.check_event_shape(size)
        return self.projx(torch.randn(size, generator=generator, dtype=dtype, device=device))

    def radius_of(self, x: Tensor) -> Tensor:
        """Return the spectral norm."""
        return spectral_norm(x)

    def constraint_error(self, x: Tensor) -> Tensor:
        """Return | |x|_2 / radius - 1 |."""
        return (spectral_norm(x) / self.radius - 1).abs()

    def _point_violations(self, x: Tensor) -> list[Violation]:
        return [Violation("of spectral norm radius, but | |x| / radius - 1 |", self.constraint_error(x))]

    def dual_direction(self, x: Tensor, g: Tensor) -> Tensor:  # noqa: D102
        pair = leading_singular_pair(x)
        return _dual_over_line(g, pair.left @ pair.right.mT)


def _dual_over_line(g: Tensor, normal: Tensor) -> Tensor:
    """Maximise <g, D> over |D|_2 <= 1 and <normal, D> = 0.

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
