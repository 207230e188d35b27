"""The Poincaré ball, in ball coordinates and in log coordinates: one manifold, two charts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manifoldnorm.linalg import safe_norm
from manifoldnorm.linalg.precision import statistics_dtype
from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.base import Manifold
from manifoldnorm.manifolds.checks import Violation
from manifoldnorm.manifolds.mean import Reduce, identity_reduce, normalized_weights
from manifoldnorm.manifolds.poincare_mean import frechet_mean, midpoint


def _checked_curvature(c: float | Tensor) -> float | Tensor:
    if isinstance(c, Tensor):
        if c.ndim or not c.is_floating_point():
            raise ValueError(f"c must be a positive number or a scalar tensor, got shape {tuple(c.shape)}, {c.dtype}")
        return c
    if not 0 < c < float("inf"):
        raise ValueError(
            f"c must be positive and finite (the curvature is -c), got {c}; for flat space use Euclidean(), or a c as "
            "small as 1e-6"
        )
    return float(c)


class _HyperbolicSpace(Manifold):
    """What both charts share: the curvature, drawing points, gyromidpoints and beta concatenation."""

    ndim = 1

    def __init__(self, c: float | Tensor = 1.0) -> None:
        self.c = _checked_curvature(c)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Return the argument, broadcast against `x`: every vector is tangent."""
        return u.expand(torch.broadcast_shapes(x.shape, u.shape))

    def origin(self, *size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return zero vectors."""
        self.check_event_shape(size, "size")
        return torch.zeros(*size, dtype=dtype, device=device)

    def random(
        self,
        *size: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw points with Gaussian log coordinates, at a root mean square distance 1/sqrt(c) from the origin."""
        self.check_event_shape(size, "size")
        noise = torch.randn(*size, generator=generator, dtype=dtype, device=device)
        return self._from_log(noise / (2 * maps.root(self.c) * size[-1] ** 0.5))

    def _to_log(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define this")

    def _from_log(self, u: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define this")

    def midpoint(
        self,
        x: Tensor,
        weights: Tensor | None = None,
        dim: int | tuple[int, ...] = 0,
        *,
        reduce: Reduce = identity_reduce,
    ) -> Tensor:
        """Compute the weighted gyromidpoint, the centroid on the hyperboloid; a closed form, not the Frechet mean.

        It commutes with every translation x -> a (+) x. On scattered points it lies 0.03 to 0.1 from the Frechet mean.

        Parameters
        ----------
        x : Tensor
            Points, shape (*batch, n).
        weights : Tensor, optional
            Nonnegative, broadcastable with the batch shape; uniform by default.
        dim : int or tuple of int
            Batch dimensions that are averaged.
        reduce : callable
            Sums a tensor over processes.

        Notes
        -----
        Ungar (2008); the same point as the Einstein midpoint and the Lorentz centroid.

        Examples
        --------
        >>> PoincareBall().midpoint(torch.tensor([[0.5, 0.0], [-0.5, 0.0]]))
        tensor([0., 0.])
        """
        points, weights = normalized_weights(self._to_log(x), weights, dim, 1, reduce)
        return self._from_log(midpoint(points, weights[..., None], 0, self.c, vector_dim=-1, reduce=reduce))

    def beta_concat(self, points: Sequence[Tensor]) -> Tensor:
        """Concatenate points of balls of dimensions n_i to one of dimension sum n_i.

        Log coordinates are concatenated after multiplication with the beta factors.

        Notes
        -----
        Shimizu, Mukuta and Harada, "Hyperbolic neural networks++", ICLR 2021, section 3.3.

        Examples
        --------
        >>> ball = PoincareBall()
        >>> joined = ball.beta_concat([torch.full((2,), 0.1), torch.full((3,), 0.2)])
        >>> [part.shape for part in ball.beta_split(joined, [2, 3])]
        [torch.Size([2]), torch.Size([3])]
        """
        if not points:
            raise ValueError("points must hold at least one tensor")
        sizes = [p.shape[-1] for p in points]
        factors = maps.beta_scale(sizes, sum(sizes))
        return self._from_log(torch.cat([self._to_log(p) * factor for p, factor in zip(points, factors)], dim=-1))

    def beta_split(self, x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        """Split a point into points of balls of the given dimensions; the inverse of `beta_concat`."""
        if sum(sizes) != x.shape[-1] or min(sizes, default=0) < 1:
            raise ValueError(f"sizes must be positive and sum to {x.shape[-1]}, the length of x; got {list(sizes)}")
        factors = maps.beta_scale(sizes, x.shape[-1])
        parts = torch.split(self._to_log(x), list(sizes), dim=-1)
        return tuple(self._from_log(part / factor) for part, factor in zip(parts, factors))


class PoincareBall(_HyperbolicSpace):
    """Hyperbolic space of curvature -c as the ball |x| < 1/sqrt(c).

    Parameters
    ----------
    c : float or Tensor
        Positive. A scalar tensor may require a gradient; its value is not looked at (that would synchronise), see
        `manifoldnorm.nn.Curvature` for one that stays positive.

    Notes
    -----
    Ganea, Becigneul and Hofmann, "Hyperbolic neural networks", NeurIPS 2018; gyrovector operations: Ungar (2008).
    The metric at x is 4/(1 - c|x|^2)^2 times the Euclidean one, so distances from the origin are 2|log_0 x|.

    Everything is computed in float64 for float32 input: 1 - c|x|^2 is exact up to the rim, where float32 formulas lose
    all digits. Results are kept strictly inside the ball of their dtype. Points outside give NaN, never a finite wrong
    number; `check_point_on_manifold` explains them. `codomain` is the same space in log coordinates.

    Examples
    --------
    >>> ball = PoincareBall(c=1.0)
    >>> ball.dist(torch.tensor([0.0, 0.0]), torch.tensor([0.5, 0.0]))
    tensor(1.0986)
    >>> ball.mean(torch.tensor([[0.5, 0.0], [-0.5, 0.0]]))
    tensor([0., 0.])
    """

    name = "the Poincaré ball"

    # Precision.

    def _raise(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Convert to float64, but for devices that have none."""
        dtype = torch.float64 if tensors[0].device.type != "mps" else statistics_dtype(tensors[0])
        return tuple(t.to(dtype) for t in tensors)

    def _inside(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Round to `dtype`, strictly inside the ball."""
        return maps.clip_norm(x, maps.largest_norm(dtype) / maps.root(self.c), -1).to(dtype)

    def _to_log(self, x: Tensor) -> Tensor:
        (raised,) = self._raise(x)
        return maps.log0(raised, self.c, -1).to(x.dtype)

    def _from_log(self, u: Tensor) -> Tensor:
        (raised,) = self._raise(u)
        limit = 20 / maps.root(self.c)
        return self._inside(maps.exp0(maps.clip_norm(raised, limit, -1), self.c, -1), u.dtype)

    # Points and vectors.

    def projx(self, x: Tensor) -> Tensor:
        """Shorten the vectors that reach the rim to (1 - 4 eps)/sqrt(c); infinite entries count as very large."""
        return maps.clip_norm(x, maps.largest_norm(x.dtype) / maps.root(self.c), -1)

    def _point_violations(self, x: Tensor) -> list[Violation]:
        norm = safe_norm(self._raise(x)[0].detach(), -1)
        limit = 1 / maps.root(self.c.detach() if isinstance(self.c, Tensor) else self.c)
        return [Violation(f"shorter than 1/sqrt(c) = {float(limit):.6g}, but its norm", norm, failed=~(norm < limit))]

    def is_plausible(self, x: Tensor) -> Tensor:
        """Tell whether every vector is shorter than 1/sqrt(c)."""
        return (self.c * maps.squared_norm(self._raise(x)[0], -1) < 1).all()

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """Divide by the squared conformal factor."""
        point, gradient = self._raise(x, u)
        return (gradient * (maps.gap(point, self.c, -1) / 2) ** 2).to(x.dtype)

    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        """Compute 4 <u, v> / (1 - c|x|^2)^2."""
        point, first, second = self._raise(x, u, u if v is None else v)
        product = maps.dot(first, second, -1) * (2 / maps.gap(point, self.c, -1)) ** 2
        return (product if keepdim else product.squeeze(-1)).to(x.dtype)

    # Gyrovector operations.

    def mobius_add(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute x (+) y, the translation of y by x."""
        first, second = self._raise(x, y)
        return self._inside(maps.mobius_add(first, second, self.c, -1), x.dtype)

    def mobius_scalar_mul(self, r: Tensor | float, x: Tensor) -> Tensor:
        """Compute r (x) x, the point at r times the distance from the origin in the direction of x."""
        return self._from_log(self._over_events(r) * self._to_log(x))

    def gyration(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Compute gyr[x, y] v, the rotation by which (x (+) (y (+) v)) and ((x (+) y) (+) v) differ."""
        first, second, vector = self._raise(x, y, v)
        return maps.gyration(first, second, vector, self.c, -1).to(v.dtype)

    # Moving and measuring.

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Follow the geodesic: x (+) exp_0(u / (1 - c|x|^2))."""
        point, vector = self._raise(x, u)
        return self._uncenter(vector / maps.gap(point, self.c, -1), point, x.dtype)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute (1 - c|x|^2) log_0((-x) (+) y)."""
        start, end = self._raise(x, y)
        return (maps.gap(start, self.c, -1) * maps.center(end, start, self.c, -1)).to(x.dtype)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Transport parallel along the geodesic: a gyration and the ratio of conformal factors."""
        start, end, vector = self._raise(x, y, v)
        ratio = maps.gap(end, self.c, -1) / maps.gap(start, self.c, -1)
        return (ratio * maps.gyration(end, -start, vector, self.c, -1)).to(v.dtype)

    def dist2(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute the squared distance by asinh of |x - y|^2 over both conformal gaps."""
        start, end = self._raise(x, y)
        square = 4 * maps.squared_norm(maps.center(end, start, self.c, -1), -1)
        return (square if keepdim else square.squeeze(-1)).to(x.dtype)

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute the distance; its gradient at coincident points is zero."""
        start, end = self._raise(x, y)
        return (2 * safe_norm(maps.center(end, start, self.c, -1), -1, keepdim=keepdim)).to(x.dtype)

    # Statistics and normalising.

    def mean(
        self,
        x: Tensor,
        weights: Tensor | None = None,
        dim: int | tuple[int, ...] = 0,
        *,
        steps: int | None = None,
        reduce: Reduce = identity_reduce,
    ) -> Tensor:
        """Compute the Frechet mean by Newton's method in log coordinates; see `Manifold.mean`."""
        chart = self.codomain
        (raised,) = self._raise(x)
        mean = chart.mean(maps.log0(raised, self.c, -1), weights, dim, steps=steps, reduce=reduce)
        return self._inside(maps.exp0(mean, self.c, -1), x.dtype)

    @property
    def codomain(self) -> PoincareLogChart:
        """The same space in log coordinates."""
        return PoincareLogChart(self.c)

    def deform(self, x: Tensor) -> Tensor:
        """Compute log_0."""
        return self._to_log(x)

    def undeform(self, z: Tensor) -> Tensor:
        """Compute exp_0."""
        return self._from_log(z)

    def center(self, x: Tensor, base: Tensor) -> Tensor:
        """Compute log_0((-base) (+) x)."""
        point, start = self._raise(x, base)
        return maps.center(point, start, self.c, -1).to(x.dtype)

    def uncenter(self, t: Tensor, base: Tensor) -> Tensor:
        """Compute base (+) exp_0(t)."""
        vector, start = self._raise(t, base)
        return self._uncenter(vector, start, t.dtype)

    def _uncenter(self, t: Tensor, base: Tensor, dtype: torch.dtype) -> Tensor:
        u = maps.boost(maps.log0(base, self.c, -1), t, self.c, -1)
        return self._inside(maps.exp0(u, self.c, -1), dtype)


class PoincareLogChart(_HyperbolicSpace):
    """Hyperbolic space of curvature -c in log coordinates: the point x of the ball is carried as u = log_0(x).

    The same manifold as `PoincareBall(c)`, of which it is the `codomain`, in a chart that is a whole vector space. The
    hyperbolic layers exchange features in this form: no rim, no projection, and Moebius addition is a Lorentz boost.

    Parameters
    ----------
    c : float or Tensor
        Positive; see `PoincareBall`.

    Notes
    -----
    Points farther from the origin than rho = 2 sqrt(c)|u| = 7/8 log(1/eps) (13.9 in float32, 31.5 in float64) are not
    resolved by their dtype any more; results are cut there.

    Examples
    --------
    >>> chart = PoincareLogChart(c=1.0)
    >>> chart.dist(torch.zeros(2), torch.tensor([0.5493, 0.0]))
    tensor(1.0986)
    """

    name = "hyperbolic space in log coordinates"

    def _to_log(self, x: Tensor) -> Tensor:
        return x

    def _from_log(self, u: Tensor) -> Tensor:
        return u

    def _radius(self, dtype: torch.dtype) -> float | Tensor:
        return maps.largest_radius(dtype) / (2 * maps.root(self.c))

    def projx(self, x: Tensor) -> Tensor:
        """Shorten the vectors beyond the largest radius of the dtype."""
        return maps.clip_norm(x, self._radius(x.dtype), -1)

    def _point_violations(self, x: Tensor) -> list[Violation]:
        norm = safe_norm(x.detach(), -1)
        radius = self._radius(x.dtype)
        limit = float(radius.detach() if isinstance(radius, Tensor) else radius)
        failed = ~(norm <= limit * (1 + 1e-3))
        return [Violation(f"shorter than {limit:.6g}, which {x.dtype} resolves, but its norm", norm, failed=failed)]

    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        """Compute 4 <u', v'> of the vectors carried to the origin."""
        first = maps.to_frame(x, u, self.c, -1)
        second = first if v is None else maps.to_frame(x, v, self.c, -1)
        product = 4 * maps.dot(first, second, -1)
        return product if keepdim else product.squeeze(-1)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """Apply the inverse metric."""
        return maps.from_frame(x, maps.from_frame(x, u, self.c, -1), self.c, -1) / 4

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Follow the geodesic: x (+) u' with u' the vector carried to the origin."""
        return maps.boost(x, maps.to_frame(x, u, self.c, -1), self.c, -1)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Carry (-x) (+) y from the origin to x."""
        return maps.from_frame(x, maps.boost(-x, y, self.c, -1), self.c, -1)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Transport parallel along the geodesic: to the origin, a gyration, and out again."""
        ball_x, ball_y = maps.exp0(x, self.c, -1), maps.exp0(y, self.c, -1)
        turned = maps.gyration(ball_y, -ball_x, maps.to_frame(x, v, self.c, -1), self.c, -1)
        return maps.from_frame(y, turned, self.c, -1)

    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """Compute x (+) t ((-x) (+) y)."""
        return self.uncenter(self._over_events(t) * self.center(y, x), x)

    def dist2(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute 4 |(-x) (+) y|^2."""
        square = 4 * maps.squared_norm(self.center(y, x), -1)
        return square if keepdim else square.squeeze(-1)

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute 2 |(-x) (+) y|; the gradient at coincident points is zero."""
        return 2 * safe_norm(self.center(y, x), -1, keepdim=keepdim)

    def mean(
        self,
        x: Tensor,
        weights: Tensor | None = None,
        dim: int | tuple[int, ...] = 0,
        *,
        steps: int | None = None,
        reduce: Reduce = identity_reduce,
    ) -> Tensor:
        """Compute the Frechet mean by Newton's method from the midpoint; see `Manifold.mean`.

        The gradient is exact in the points, the weights and the curvature, to second order.
        """
        points, weights = normalized_weights(x, weights, dim, 1, reduce)
        return frechet_mean(points, weights, self.c, steps=steps, reduce=reduce)

    def center(self, x: Tensor, base: Tensor) -> Tensor:
        """Compute (-base) (+) x."""
        return maps.boost(-base, x, self.c, -1)

    def uncenter(self, t: Tensor, base: Tensor) -> Tensor:
        """Compute base (+) t."""
        return maps.boost(base, t, self.c, -1)
