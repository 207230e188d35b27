"""Matrices with orthonormal columns (rows, when there are fewer of them): Stiefel and Grassmann manifolds."""

from __future__ import annotations

import math
from math import inf
from typing import Literal, get_args

import torch
from torch import Tensor

from manifoldnorm.linalg import safe_norm, spectral, symmetrize
from manifoldnorm.linalg.even_functions import ANGLE_OVER_SINE, COSINE, COSINE_LESS_ONE, SINE_RATIO
from manifoldnorm.linalg.polar import msign, polar_factor_nearby
from manifoldnorm.linalg.products import add_product, matrix_inner, product, symmetric_part
from manifoldnorm.manifolds.checks import Violation
from manifoldnorm.manifolds.matrices import Frame, Length, MatrixManifold

RetractionMethod = Literal["polar", "qr"]


def _on_tall(x: Tensor) -> bool:
    return x.shape[-2] >= x.shape[-1]


def _completed_polar_factor(x: Tensor) -> Tensor:
    """Polar factor with the directions of zero singular values filled in; its gradient is the polar factor's."""
    factor = msign(x, "svd")
    left, _, right = torch.linalg.svd(x.detach(), full_matrices=False)
    return factor + (left @ right - factor).detach()


class _Frames(MatrixManifold):
    """X with X^T X = radius^2 I (X X^T when X is wide)."""

    projects_by_products = True

    def __init__(self, radius: float | Tensor = 1.0, *, retraction: RetractionMethod = "polar") -> None:
        super().__init__(radius)
        if retraction not in get_args(RetractionMethod):
            raise ValueError(f"retraction must be one of {', '.join(get_args(RetractionMethod))}, got {retraction!r}")
        self.retraction = retraction

    def _coefficient(self, x: Tensor, u: Tensor) -> Tensor:
        """Return X^T u / radius^2 (u X^T / radius^2 for wide X)."""
        mixed = product(x.mT, u) if _on_tall(x) else product(u, x.mT)
        weight = self._radius() ** -2
        return mixed * (weight.to(mixed.dtype) if isinstance(weight, Tensor) else weight)

    def _project(self, x: Tensor, u: Tensor) -> Tensor:
        coefficient = self._coefficient(x, u)
        if _on_tall(x):
            return add_product(u, x, coefficient, alpha=-1.0)
        return add_product(u, coefficient, x, alpha=-1.0)

    def project_rounded(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `proju(x, u)` by products in bfloat16; return it with a bound on its rounding, shape (..., 1, 1).

        The multiple of X in `u`, which may be far larger than the tangent part, is subtracted in full precision first.
        """
        square = self._radius() ** 2 * min(x.shape[-2:])
        multiple = matrix_inner(x, u) / square
        rest = torch.addcmul(u, x, multiple, value=-1)
        size = torch.linalg.vector_norm(rest, dim=(-2, -1), keepdim=True)
        tangent = self.proju(x.to(torch.bfloat16), rest.to(torch.bfloat16))
        whole = torch.sqrt(size**2 + multiple**2 * square)
        return tangent, torch.finfo(torch.bfloat16).eps * size + 10 * torch.finfo(x.dtype).eps * whole

    def projx(self, x: Tensor) -> Tensor:
        """Return the nearest point, `radius` times the polar factor; one of many where `x` is rank-deficient."""
        return self._radius() * _completed_polar_factor(x)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Add, then take the polar factor, or the orthogonal factor with positive diagonal of a QR decomposition."""
        y = (x + u) / self._radius()
        if self.retraction == "polar":
            return self._radius() * msign(y, "eigh")
        tall = y if _on_tall(y) else y.mT
        orthogonal, upper = torch.linalg.qr(tall)
        sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(y.dtype).unsqueeze(-2)
        orthogonal = self._radius() * orthogonal * sign
        return orthogonal if _on_tall(y) else orthogonal.mT

    def retract_along(
        self, x: Tensor, u: Tensor, length: Length, *, project: bool = False, frame: Frame = None, bound: float = inf
    ) -> tuple[Tensor, Frame]:
        """Compute `retr(x, length * u)`, for a tangent step of at most 0.6 radius by a short series of products."""
        if project:
            u = self.proju(x.to(u.dtype), u)
        u = u.to(x.dtype)
        # For tangent u the Gram matrix is radius^2 I + u^T u: the bound on u bounds its distance from the identity. The
        # linear term allows for a projection in bfloat16.
        excess = 1e-5 + 0.005 * bound + 1.05 * bound**2
        if self.retraction != "polar" or excess >= 0.4:
            return self.retr(x, length * u), None
        y = torch.addcmul(x, u, torch.as_tensor(length, dtype=x.dtype, device=x.device))
        return polar_factor_nearby(y, bound=excess, size=self._radius()), None

    def radius_of(self, x: Tensor) -> Tensor:
        """Return the root mean square of the singular values, which keeps the Frobenius norm."""
        return safe_norm(x, (-2, -1)) / math.sqrt(min(x.shape[-2:]))

    def constraint_error(self, x: Tensor) -> Tensor:
        """Return the largest entry of |X^T X / radius^2 - I|."""
        y = x / self._radius()
        gram = y.mT @ y if _on_tall(y) else y @ y.mT
        return (gram - torch.eye(gram.shape[-1], dtype=x.dtype, device=x.device)).abs().amax((-2, -1))

    def _point_violations(self, x: Tensor) -> list[Violation]:
        return [Violation("orthonormal up to radius, but |X^T X / radius^2 - I|", self.constraint_error(x))]


class Stiefel(_Frames):
    """Matrices with X^T X = radius^2 I, or X X^T when there are fewer rows, with the Euclidean metric.

    Parameters
    ----------
    radius : float or Tensor
        The singular values.
    retraction : {"polar", "qr"}
        What `retr` takes.

    Examples
    --------
    >>> stiefel = Stiefel()
    >>> x = stiefel.random(5, 3)
    >>> stiefel.check_point_on_manifold(stiefel.retr(x, stiefel.random_tangent(x)))
    True
    """

    name = "the Stiefel manifold"

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Subtract X sym(X^T u) / radius^2."""
        return self._project(x, u)

    def _coefficient(self, x: Tensor, u: Tensor) -> Tensor:
        return symmetric_part(super()._coefficient(x, u))

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Follow the geodesic of the Euclidean metric (Edelman, Arias and Smith 1998, equation 2.42)."""
        if not _on_tall(x):
            return self.expmap(x.mT, u.mT).mT
        size = x.shape[-1]
        x, u = x / self._radius(), u / self._radius()
        along = x.mT @ u
        along = (along - along.mT) / 2
        square = u.mT @ u
        identity = torch.eye(size, dtype=x.dtype, device=x.device).expand_as(square)
        generator = torch.cat((torch.cat((along, -square), -1), torch.cat((identity, along), -1)), -2)
        flow = torch.linalg.matrix_exp(generator)[..., :size]
        return self._radius() * (torch.cat((x, u), -1) @ flow @ torch.linalg.matrix_exp(-along))

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Not available: the Euclidean metric has no closed form."""
        self._missing("logmap", "minimise a distance with retr, or use Grassmann when only the subspace matters")

    def dual_direction(self, x: Tensor, g: Tensor) -> Tensor:
        """Return the exact steepest direction: in closed form for square X, else by 400 steps of subgradient ascent."""
        x, g = (self.projx(x) / self._radius()).double(), g.double()
        if not _on_tall(x):
            return Stiefel().dual_direction(x.mT, g.mT).mT
        along = x.mT @ g
        if x.shape[-2] == x.shape[-1]:
            return x @ msign((along - along.mT) / 2, "svd")
        multiplier = -symmetrize(along) / 2
        step = torch.linalg.svdvals(g)[..., :1].unsqueeze(-1) / 4
        steps = 400
        for k in range(steps):
            direction = msign(g + 2 * x @ multiplier, "svd")
            multiplier = multiplier - step * (1 - k / steps) * symmetrize(x.mT @ direction)
        return self.proju(x, msign(g + 2 * x @ multiplier, "svd"))


class Grassmann(_Frames):
    """Subspaces of fixed dimension, each given by `radius` times an orthonormal basis in the columns (rows) of X.

    Tangent vectors are horizontal: X^T u = 0. Points that differ by a rotation of the basis are the same subspace.

    Parameters
    ----------
    radius : float or Tensor
        The singular values of the representative.
    retraction : {"polar", "qr"}
        What `retr` takes.

    Examples
    --------
    >>> x = torch.tensor([[1.0], [0.0]])
    >>> Grassmann().dist(x, torch.tensor([[0.0], [-1.0]]))
    tensor(1.5708)
    """

    name = "the Grassmann manifold"

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Subtract X X^T u / radius^2."""
        return self._project(x, u)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Follow the geodesic X cos(S) + u sin(S) / S with S = (u^T u)^(1/2) / radius."""
        if not _on_tall(x):
            return self.expmap(x.mT, u.mT).mT
        square = u.mT @ u / self._radius() ** 2
        return self.projx(x @ spectral(square, COSINE) + u @ spectral(square, SINE_RATIO))

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the horizontal velocity of the shortest geodesic to the subspace of `y`.

        With y rotated so that C = x^T y is symmetric, the tangents of half the principal angles are the roots of the
        eigenvalues of (I + C)^-1 L^T L (I + C)^-1 for the horizontal part L of y: no cancellation at small angles.
        """
        if not _on_tall(x):
            return self.logmap(x.mT, y.mT).mT
        scaled, other = x / self._radius(), y / self._radius()
        other = other @ _completed_polar_factor(other.mT @ scaled)
        cosine = symmetrize(scaled.mT @ other)
        horizontal = self.proju(x, self.proju(x, other))
        identity = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        half = torch.linalg.solve(identity + cosine, horizontal, left=False)
        return self._radius() * (horizontal @ spectral(half.mT @ half, ANGLE_OVER_SINE))

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Transport in parallel along the shortest geodesic, to the representative that `expmap` reaches."""
        if not _on_tall(x):
            return self.transp(x.mT, y.mT, v.mT).mT
        velocity = self.logmap(x, y) / self._radius()
        square = velocity.mT @ velocity
        along = velocity.mT @ v
        moved = (
            v
            - x / self._radius() @ (spectral(square, SINE_RATIO) @ along)
            + velocity @ (spectral(square, COSINE_LESS_ONE) @ along)
        )
        # y need not be the representative at the end of the geodesic: carry the vector over to its basis.
        return moved @ _completed_polar_factor(self.expmap(x, velocity * self._radius()).mT @ y)

    def dual_direction(self, x: Tensor, g: Tensor) -> Tensor:
        """Return msign of the projected gradient, which is horizontal."""
        return msign(self.proju(x, g).double(), "svd")
