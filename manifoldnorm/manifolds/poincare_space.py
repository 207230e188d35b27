"""What the charts of hyperbolic space share: the curvature, drawing points, gyromidpoints and beta concatenation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.base import Manifold
from manifoldnorm.manifolds.mean import Reduce, identity_reduce, normalized_weights
from manifoldnorm.manifolds.poincare_mean import midpoint


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


class HyperbolicSpace(Manifold):
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
        >>> from manifoldnorm import PoincareBall
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
        >>> from manifoldnorm import PoincareBall
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
