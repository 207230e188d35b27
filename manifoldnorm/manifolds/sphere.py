"""The hypersphere, with a one-parameter family of retractions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manifoldnorm.linalg import safe_norm, sinc
from manifoldnorm.linalg.precision import computed_in, statistics_dtype
from manifoldnorm.linalg.rotation import (
    check_turning_power,
    turning_coefficients,
    turning_length,
    turning_versine,
)
from manifoldnorm.manifolds.base import Manifold
from manifoldnorm.manifolds.checks import Violation
from manifoldnorm.manifolds.mean import Reduce, identity_reduce, normalized_weights
from manifoldnorm.manifolds.sphere_mean import sphere_mean


class Sphere(Manifold):
    """Vectors of a fixed norm, with the metric of the surrounding space.

    Parameters
    ----------
    radius : float
        Positive.
    retraction : float
        A number p in (0, inf] for what `retr` does: a step of length t (in units of the radius) turns by the angle
        p atan(t / p). 1 is the metric projection of x + u, 2 the Cayley transform, `math.inf` the exponential map.
        Up to p = 2 the retraction is injective and `inverse_retr` inverts it.

    Notes
    -----
    Angles come from the two-argument arctangent of |x - y| and |x + y|, so that distances and logarithms keep their
    digits at close, orthogonal and nearly antipodal points. For exactly antipodal points every direction is a shortest
    one; the logarithm takes that of the coordinate axis on which x is smallest.

    Examples
    --------
    >>> sphere = Sphere()
    >>> sphere.dist(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1e-4]))
    tensor(1.0000e-04)
    >>> Sphere(retraction=1.0).retr(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    tensor([0.7071, 0.7071])
    """

    name = "the sphere"
    ndim = 1

    def __init__(self, radius: float = 1.0, retraction: float = math.inf) -> None:
        if not 0 < radius < math.inf:
            raise ValueError(f"radius must be positive and finite, got {radius}")
        self.radius = float(radius)
        self.retraction = check_turning_power(retraction, "retraction")

    # Points.

    @computed_in(statistics_dtype)
    def projx(self, x: Tensor) -> Tensor:
        """Scale to the radius; NaN for a zero vector, which has no nearest point."""
        return self.radius * (x / safe_norm(x, keepdim=True))

    def origin(self, *size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return the end point of the first axis, (radius, 0, ..., 0)."""
        self.check_event_shape(size, "size")
        point = torch.zeros(*size, dtype=dtype, device=device)
        point[..., 0] = self.radius
        return point

    def random(
        self,
        *size: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw uniformly distributed points."""
        self.check_event_shape(size, "size")
        return self.projx(torch.randn(*size, generator=generator, dtype=dtype, device=device))

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError unless `shape` ends in at least one coordinate."""
        super().check_event_shape(shape, name)
        if shape[-1] == 0:
            raise ValueError(f"{name} must hold vectors with at least one coordinate, got shape {tuple(shape)}")

    def _point_violations(self, x: Tensor) -> list[Violation]:
        norm = torch.linalg.vector_norm(x.to(torch.float64), dim=-1)
        return [Violation(f"of norm {self.radius:g}, but | |x| - radius |", (norm - self.radius).abs(), self.radius)]

    # Tangent vectors.

    @computed_in(statistics_dtype)
    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Remove the radial part."""
        return u - (x * u).sum(-1, keepdim=True) / self.radius**2 * x

    @computed_in(statistics_dtype)
    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """Remove the radial part, and what is left of a radial vector by rounding.

        An adaptive optimizer scales that up to a full step, so that weight decay alone would move a point.
        """
        tangent = self.proju(x, u)
        floor = 10 * torch.finfo(tangent.dtype).eps * torch.linalg.vector_norm(u, dim=-1, keepdim=True)
        return torch.where(torch.linalg.vector_norm(tangent, dim=-1, keepdim=True) <= floor, 0.0, tangent)

    @computed_in(statistics_dtype)
    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        """Compute the sum of products."""
        return (u * (u if v is None else v)).sum(-1, keepdim=keepdim)

    # Moving.

    @computed_in(statistics_dtype)
    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Follow the great circle: cos(|u|) x + sin(|u|) / |u| u for the unit sphere."""
        return self._turn(x, u, math.inf)[0]

    @computed_in(statistics_dtype)
    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Turn along `u` by the angle of the chosen retraction."""
        return self._turn(x, u, self.retraction)[0]

    @computed_in(statistics_dtype)
    def expmap_transp(self, x: Tensor, u: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        """Follow the great circle and transport `v` (and `more`) in parallel along it, however long it is."""
        return self._turn(x, u, math.inf, v, *more)

    @computed_in(statistics_dtype)
    def retr_transp(self, x: Tensor, u: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        """Retract along `u` and rotate `v` (and `more`) with the point."""
        return self._turn(x, u, self.retraction, v, *more)

    def _turn(self, x: Tensor, u: Tensor, p: float, *vectors: Tensor) -> tuple[Tensor, ...]:
        """Rotate x, and tangent vectors, in the plane of x and u by p atan(|u| / (p R))."""
        square = self.radius**2
        tau = (u * u).sum(-1, keepdim=True) / square
        cosine, ratio = turning_coefficients(tau, p)
        moved = cosine * x + ratio * u
        if not vectors:
            return (moved,)
        versine = turning_versine(tau, p)
        turned = []
        for v in vectors:
            along = (u * v).sum(-1, keepdim=True) / square
            turned.append(v - along * (ratio * x + versine * u))
        return (moved, *turned)

    @computed_in(statistics_dtype)
    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the initial velocity of the shortest great circle from `x` to `y`; at the antipode one of them."""
        angle = self._angle(x, y)
        obtuse = (x * y).sum(-1, keepdim=True) < 0
        tangent = self.proju(x, torch.where(obtuse, y + x, y - x))
        # theta / sin(theta) on either side of a right angle; the sine itself is |tangent| / R beyond it.
        acute_factor = 1 / sinc(torch.where(obtuse, 0.0, angle))
        sine = safe_norm(tangent, keepdim=True) / self.radius
        antipodal = obtuse & (sine <= 0)
        far_factor = angle / torch.where(antipodal | ~obtuse, 1.0, sine)
        log = torch.where(obtuse, far_factor, acute_factor) * tangent
        return torch.where(antipodal, (math.pi * self.radius) * self._perpendicular(x), log)

    def _angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the angle between points; its derivative at coincident and antipodal points is zero."""
        chord, middle = safe_norm(x - y, keepdim=True), safe_norm(x + y, keepdim=True)
        # Of an infinite point both are infinite, which would make a right angle.
        return 2 * torch.atan2(chord, torch.where(torch.isinf(chord), torch.nan, middle))

    def _perpendicular(self, x: Tensor) -> Tensor:
        """Return a unit vector orthogonal to `x`: its least axis, orthogonalised. Zero in one dimension."""
        x = x.detach()
        least = x.abs().argmin(-1, keepdim=True)
        axis = (torch.arange(x.shape[-1], device=x.device) == least).to(x.dtype)
        tangent = self.proju(x, axis)
        return tangent / safe_norm(tangent, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)

    @computed_in(statistics_dtype)
    def inverse_retr(self, x: Tensor, y: Tensor) -> Tensor:
        """Find the tangent vector that `retr` takes from `x` to `y`.

        NaN where none exists: from a right angle on for p = 1, in general from p pi / 2 on.

        Raises
        ------
        NotImplementedError
            For p > 2, where the retraction is not injective; `logmap` inverts the exponential map.
        """
        if self.retraction > 2:
            self._missing(f"inverse_retr with retraction={self.retraction:g}", "use a retraction up to 2, or logmap")
        log = self.logmap(x, y)
        angle = safe_norm(log, keepdim=True) / self.radius
        positive = angle > 0
        guarded = torch.where(positive, angle, 1.0)
        return torch.where(positive, turning_length(guarded, self.retraction) / guarded, 1.0) * log

    @computed_in(statistics_dtype)
    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Transport `v` in parallel along the shortest great circle: the reflection that takes x to -y."""
        middle = x + y
        length = safe_norm(middle, keepdim=True)
        antipodal = length <= 0
        axis = torch.where(antipodal, self._perpendicular(x), middle / torch.where(antipodal, 1.0, length))
        return v - 2 * (axis * v).sum(-1, keepdim=True) * axis

    # Measuring and statistics.

    @computed_in(statistics_dtype)
    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute the length of the shortest great circle; its gradient at coincident points is zero."""
        distance = self.radius * self._angle(x, y)
        return distance if keepdim else distance.squeeze(-1)

    def mean(
        self,
        x: Tensor,
        weights: Tensor | None = None,
        dim: int | tuple[int, ...] = 0,
        *,
        steps: int | None = None,
        reduce: Reduce = identity_reduce,
    ) -> Tensor:
        """Compute the Frechet mean by safeguarded Newton steps; see `Manifold.mean`.

        It is unique when the points lie in an open hemisphere.
        """
        points, weights = normalized_weights(x, weights, dim, self.ndim, reduce)
        return sphere_mean(self, points, weights, steps=steps, reduce=reduce)

    # Normalising.

    @computed_in(statistics_dtype)
    def center(self, x: Tensor, base: Tensor) -> Tensor:
        """Take the logarithm at `base` and move it to the origin along the great circle; see `Manifold.center`."""
        origin = self.origin(x.shape[-1], dtype=x.dtype, device=x.device)
        return self.transp(base, origin, self.logmap(base, x))

    @computed_in(statistics_dtype)
    def uncenter(self, t: Tensor, base: Tensor) -> Tensor:
        """Invert `center`."""
        origin = self.origin(t.shape[-1], dtype=t.dtype, device=t.device)
        return self.expmap(base, self.transp(origin, base, t))
