"""The Poincaré ball; `poincare_chart` has the same space in log coordinates."""

from __future__ import annotations

import torch
from torch import Tensor

from manifoldnorm.linalg import safe_norm
from manifoldnorm.linalg.precision import statistics_dtype
from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.checks import Violation
from manifoldnorm.manifolds.mean import Reduce, identity_reduce
from manifoldnorm.manifolds.poincare_chart import PoincareLogChart
from manifoldnorm.manifolds.poincare_space import HyperbolicSpace


class PoincareBall(HyperbolicSpace):
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


__all__ = ["PoincareBall", "PoincareLogChart"]
