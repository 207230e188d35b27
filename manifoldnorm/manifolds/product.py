"""Products of manifolds, carried as one vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from manifoldnorm.manifolds.base import Manifold, require_manifold
from manifoldnorm.manifolds.checks import Violation, shape_tuple
from manifoldnorm.manifolds.mean import Reduce, identity_reduce


class Product(Manifold):
    """The product of manifolds with the weighted sum of their metrics.

    A point is one vector that holds the factors' points flattened one after another, so that layers, optimizers and
    checkpoints see a plain tensor; `pack` and `unpack` convert.

    Parameters
    ----------
    *factors : tuple of (Manifold, shape)
        The factors with their event shapes; an int for vectors.
    weights : sequence of float, optional
        Positive factors of the metrics; 1 by default.

    Examples
    --------
    >>> from manifoldnorm import Euclidean, SPDLogEuclidean
    >>> space = Product((Euclidean(), (3,)), (SPDLogEuclidean(), (2, 2)))
    >>> x = space.pack(torch.ones(3), torch.eye(2))
    >>> x.shape, [tuple(part.shape) for part in space.unpack(x)]
    (torch.Size([7]), [(3,), (2, 2)])
    """

    name = "a product of manifolds"
    ndim = 1

    def __init__(self, *factors: tuple[Manifold, int | Sequence[int]], weights: Sequence[float] | None = None) -> None:
        if not factors:
            raise ValueError("factors must not be empty; give pairs (manifold, event shape)")
        for factor in factors:
            if not isinstance(factor, Sequence) or len(factor) != 2:
                raise TypeError(f"factors must be pairs (manifold, event shape), got {factor!r}")
            require_manifold(factor[0])
        self.factors = tuple((manifold, shape_tuple(shape)) for manifold, shape in factors)
        for manifold, shape in self.factors:
            if len(shape) != manifold.ndim:
                raise ValueError(f"{manifold!r} needs an event shape of {manifold.ndim} dimensions, got {shape}")
            manifold.check_event_shape(shape, "shape")
        self.weights = tuple(float(w) for w in weights) if weights is not None else (1.0,) * len(self.factors)
        if len(self.weights) != len(self.factors) or any(not w > 0 for w in self.weights):
            raise ValueError(f"weights must be {len(self.factors)} positive numbers, got {self.weights}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of entries of each factor."""
        return tuple(math.prod(shape) for _, shape in self.factors)

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError unless the last dimension holds all factors."""
        super().check_event_shape(shape, name)
        if shape[-1] != sum(self.sizes):
            raise ValueError(
                f"{name} must have {sum(self.sizes)} entries {self.sizes} in its last dimension, got {shape}"
            )

    def dimension(self, *event_shape: int) -> int:
        """Sum the factors' dimensions."""
        self.check_event_shape(event_shape, "event_shape")
        return sum(manifold.dimension(*shape) for manifold, shape in self.factors)

    def unpack(self, x: Tensor) -> tuple[Tensor, ...]:
        """Split a vector of shape (..., sum of sizes) into the factors' points."""
        self.check_event_shape(tuple(x.shape))
        parts = torch.split(x, list(self.sizes), dim=-1)
        return tuple(part.unflatten(-1, shape) for part, (_, shape) in zip(parts, self.factors))

    def pack(self, *parts: Tensor) -> Tensor:
        """Join the factors' points, which may broadcast over the batch, into one vector."""
        if len(parts) != len(self.factors):
            raise ValueError(f"parts must be one for each of the {len(self.factors)} factors, got {len(parts)}")
        for i, (part, (manifold, shape)) in enumerate(zip(parts, self.factors)):
            if tuple(part.shape[part.ndim - len(shape) :]) != shape:
                raise ValueError(
                    f"parts[{i}] must have shape (..., {', '.join(map(str, shape))}) for {manifold!r}, "
                    f"got {tuple(part.shape)}"
                )
        flat = [part.flatten(-len(shape)) for part, (_, shape) in zip(parts, self.factors)]
        batch = torch.broadcast_shapes(*(part.shape[:-1] for part in flat))
        return torch.cat([part.expand(*batch, part.shape[-1]) for part in flat], dim=-1)

    def _map(self, method: Callable[..., Tensor], *vectors: Tensor) -> Tensor:
        """Apply `method(manifold, *parts)` factor by factor."""
        parts = zip(self.factors, *(self.unpack(v) for v in vectors))
        return self.pack(*(method(manifold, *values) for (manifold, _), *values in parts))

    def _weighted(self, values: Iterable[Tensor]) -> list[Tensor]:
        return [weight * value for weight, value in zip(self.weights, values)]

    def projx(self, x: Tensor) -> Tensor:
        """Project every factor."""
        return self._map(lambda m, a: m.projx(a), x)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Project every factor."""
        return self._map(lambda m, a, b: m.proju(a, b), x, u)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """Convert every factor's gradient and divide by its weight."""
        parts = zip(self.factors, self.weights, self.unpack(x), self.unpack(u))
        return self.pack(*(m.egrad2rgrad(a, b) / w for (m, _), w, a, b in parts))

    def origin(self, *size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return the factors' origins."""
        self.check_event_shape(size, "size")
        return self.pack(*(m.origin(*size[:-1], *s, dtype=dtype, device=device) for m, s in self.factors))

    def random(
        self,
        *size: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw every factor."""
        self.check_event_shape(size, "size")
        return self.pack(
            *(m.random(*size[:-1], *s, generator=generator, dtype=dtype, device=device) for m, s in self.factors)
        )

    def random_tangent(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw a tangent vector of every factor."""
        return self._map(lambda m, a: m.random_tangent(a, generator=generator), x)

    def is_plausible(self, x: Tensor) -> Tensor:
        """Look at every factor."""
        return torch.stack([m.is_plausible(part) for (m, _), part in zip(self.factors, self.unpack(x))]).all()

    def _point_violations(self, x: Tensor) -> list[Violation]:
        return [
            violation._replace(requirement=f"in factor {i} {violation.requirement}")
            for i, ((manifold, _), part) in enumerate(zip(self.factors, self.unpack(x)))
            for violation in manifold._point_violations(part)
        ]

    def _inners(self, x: Tensor, u: Tensor, v: Tensor | None) -> list[Tensor]:
        parts = zip(self.factors, self.unpack(x), self.unpack(u), self.unpack(u if v is None else v))
        return self._weighted(m.inner(a, b, c) for (m, _), a, b, c in parts)

    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        """Sum the factors' inner products."""
        total = torch.stack(torch.broadcast_tensors(*self._inners(x, u, v))).sum(0)
        return total.unsqueeze(-1) if keepdim else total

    def component_inner(self, x: Tensor, u: Tensor, v: Tensor | None = None) -> Tensor:
        """Give each entry the inner product of the factor that it belongs to."""
        values = torch.broadcast_tensors(*self._inners(x, u, v))
        return torch.cat([value.unsqueeze(-1).expand(*value.shape, n) for value, n in zip(values, self.sizes)], -1)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Follow every factor's geodesic."""
        return self._map(lambda m, a, b: m.expmap(a, b), x, u)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Retract in every factor."""
        return self._map(lambda m, a, b: m.retr(a, b), x, u)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Take every factor's logarithm."""
        return self._map(lambda m, a, b: m.logmap(a, b), x, y)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Transport in every factor."""
        return self._map(lambda m, a, b, c: m.transp(a, b, c), x, y, v)

    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """Follow every factor's geodesic."""
        return self._map(lambda m, a, b: m.geodesic(a, b, t), x, y)

    def dist2(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Sum the factors' squared distances."""
        parts = zip(self.factors, self.unpack(x), self.unpack(y))
        values = self._weighted(m.dist2(a, b) for (m, _), a, b in parts)
        total = torch.stack(torch.broadcast_tensors(*values)).sum(0)
        return total.unsqueeze(-1) if keepdim else total

    def mean(
        self,
        x: Tensor,
        weights: Tensor | None = None,
        dim: int | tuple[int, ...] = 0,
        *,
        steps: int | None = None,
        reduce: Reduce = identity_reduce,
    ) -> Tensor:
        """Compute every factor's mean."""
        return self._map(lambda m, a: m.mean(a, weights, dim, steps=steps, reduce=reduce), x)

    @property
    def codomain(self) -> Manifold:
        """The product of the factors' codomains."""
        return Product(*((m.codomain, shape) for m, shape in self.factors), weights=self.weights)

    def deform(self, x: Tensor) -> Tensor:
        """Deform every factor."""
        return self._map(lambda m, a: m.deform(a), x)

    def undeform(self, z: Tensor) -> Tensor:
        """Undo `deform`."""
        return self._map(lambda m, a: m.undeform(a), z)

    def center(self, x: Tensor, base: Tensor) -> Tensor:
        """Center every factor."""
        return self._map(lambda m, a, b: m.center(a, b), x, base)

    def uncenter(self, t: Tensor, base: Tensor) -> Tensor:
        """Undo `center`."""
        return self._map(lambda m, a, b: m.uncenter(a, b), t, base)
