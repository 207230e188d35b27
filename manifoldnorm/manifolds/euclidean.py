"""Euclidean space, the geometry in which a Riemannian layer is the ordinary one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manifoldnorm.manifolds.checks import Violation
from manifoldnorm.manifolds.mean import expand_like
from manifoldnorm.manifolds.pullback import Flat


class Euclidean(Flat):
    """Tensors with addition as the group and the sum of products as the inner product.

    Parameters
    ----------
    ndim : int
        Number of event dimensions, 1 for vectors (the default), 2 for matrices.

    Examples
    --------
    >>> Euclidean().dist(torch.zeros(2), torch.tensor([3.0, 4.0]))
    tensor(5.)
    """

    name = "Euclidean space"

    def __init__(self, ndim: int = 1) -> None:
        if ndim < 1:
            raise ValueError(f"ndim must be at least 1, got {ndim}; use vectors of length one for scalars")
        self.ndim = ndim

    def dimension(self, *event_shape: int) -> int:
        """Return the number of entries."""
        return math.prod(event_shape)

    def projx(self, x: Tensor) -> Tensor:
        """Return the argument."""
        return x

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Return the argument, broadcast against `x`."""
        return expand_like(u, x)

    def deform(self, x: Tensor) -> Tensor:
        """Return the argument."""
        return x

    def undeform(self, z: Tensor) -> Tensor:
        """Return the argument."""
        return z

    def ddeform(self, x: Tensor, u: Tensor) -> Tensor:
        """Return the vector."""
        return self.proju(x, u)

    def dundeform(self, z: Tensor, w: Tensor) -> Tensor:
        """Return the vector."""
        return self.proju(z, w)

    def random(
        self,
        *size: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw standard Gaussian tensors."""
        self.check_event_shape(size, "size")
        return torch.randn(*size, generator=generator, dtype=dtype, device=device)

    def _point_violations(self, x: Tensor) -> list[Violation]:
        return []
