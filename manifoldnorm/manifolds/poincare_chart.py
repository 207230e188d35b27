"""Hyperbolic space in log coordinates, the chart that the hyperbolic layers work in."""

from __future__ import annotations

import torch
from torch import Tensor

from manifoldnorm.linalg import safe_norm
from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.checks import Violation
from manifoldnorm.manifolds.mean import Reduce, identity_reduce, normalized_weights
from manifoldnorm.manifolds.poincare_mean import frechet_mean
from manifoldnorm.manifolds.poincare_space import HyperbolicSpace


class PoincareLogChart(HyperbolicSpace):
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
        """Compute base (+) t, with a t that would overflow cut on its way."""
        step = maps.clip_norm(t, maps.overflow_radius(t.dtype) / (2 * maps.root(self.c)), -1)
        return maps.boost(base, step, self.c, -1)
