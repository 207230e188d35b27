"""The subclass of geoopt's manifold that `manifoldnorm.interop.geoopt.as_geoopt` gives; importing it imports geoopt."""

from __future__ import annotations

from typing import Any

import geoopt
from torch import Tensor

from manifoldnorm.manifolds import Manifold

Check = tuple[bool, str | None]


class WrappedManifold(geoopt.manifolds.base.Manifold):
    """One of our manifolds as one of geoopt's.

    Argument names are geoopt's, since `geoopt.Scaled` rescales arguments by name.

    Parameters
    ----------
    manifold : Manifold
        Ours; it has no parameters, and so the wrapper has none.
    """

    ndim: int
    name: str
    reversible = False

    def __init__(self, manifold: Manifold) -> None:
        super().__init__()
        self.wrapped = manifold
        self.ndim, self.name = manifold.ndim, manifold.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WrappedManifold) and self.wrapped == other.wrapped

    def __hash__(self) -> int:
        return hash(self.wrapped)

    def _check_shape(self, shape: Any, name: str) -> Check:
        return self.wrapped._check_shape(tuple(shape), name)

    def _check_point_on_manifold(self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5) -> Any:
        return self.wrapped.check_point_on_manifold(x, explain=True, atol=atol, rtol=rtol)

    def _check_vector_on_tangent(self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5) -> Any:
        return self.wrapped.check_vector_on_tangent(x, u, explain=True, atol=atol, rtol=rtol)

    def projx(self, x: Tensor) -> Tensor:
        """Project a point."""
        return self.wrapped.projx(x)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Project a vector."""
        return self.wrapped.proju(x, u)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """Convert a gradient."""
        return self.wrapped.egrad2rgrad(x, u)

    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        """Compute the metric."""
        return self.wrapped.inner(x, u, v, keepdim=keepdim)

    def component_inner(self, x: Tensor, u: Tensor, v: Tensor | None = None) -> Tensor:
        """Compute the metric per component."""
        return self.wrapped.component_inner(x, u, v)

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute a length."""
        return self.wrapped.norm(x, u, keepdim=keepdim)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Follow a geodesic."""
        return self.wrapped.expmap(x, u)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Invert `expmap`."""
        return self.wrapped.logmap(x, y)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Retract."""
        return self.wrapped.retr(x, u)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Transport."""
        return self.wrapped.transp(x, y, v)

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute a distance."""
        return self.wrapped.dist(x, y, keepdim=keepdim)

    def dist2(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute a squared distance."""
        return self.wrapped.dist2(x, y, keepdim=keepdim)

    def origin(self, *size: Any, dtype: Any = None, device: Any = None, seed: int | None = 42) -> Tensor:
        """Return the origin; `seed` is geoopt's and not used."""
        return self.wrapped.origin(*_flat(size), dtype=dtype, device=device)

    def random(self, *size: Any, dtype: Any = None, device: Any = None) -> Tensor:
        """Draw points."""
        return self.wrapped.random(*_flat(size), dtype=dtype, device=device)


def _flat(size: tuple[Any, ...]) -> tuple[int, ...]:
    """Accept a size as numbers or as one sequence, as geoopt does."""
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)
