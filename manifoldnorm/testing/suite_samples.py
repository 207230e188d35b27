"""What the laws of `ManifoldSuite` are tested on, and with which tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from manifoldnorm.manifolds import Manifold

Binary = Callable[[Tensor, Tensor], Tensor]


class ManifoldSamples:
    """Points, tangent vectors and tolerances of a geometry under test; `ManifoldSuite` says what the attributes are."""

    manifold: ClassVar[Manifold]
    event_shape: ClassVar[tuple[int, ...]]
    dtype: ClassVar[torch.dtype] = torch.float64
    tolerance: ClassVar[float] = 1e-11
    float32_tolerance: ClassVar[float] = 2e-5
    mean_tolerance: ClassVar[float] = 1e-12
    unsupported: ClassVar[frozenset[str]] = frozenset()
    retraction_order: ClassVar[int] = 1
    second_order: ClassVar[bool] = True
    second_order_maps: ClassVar[bool] = True
    second_order_mean: ClassVar[bool] = True

    # Samples; override to keep points where the laws hold, such as inside an injectivity radius.

    def points(self, *batch: int, seed: int = 0) -> Tensor:
        """Draw a batch of points."""
        generator = torch.Generator().manual_seed(seed)
        return self.manifold.random(*batch, *self.event_shape, generator=generator, dtype=self.dtype)

    def tangents(self, x: Tensor, *, seed: int = 100) -> Tensor:
        """Draw tangent vectors of length between 0.2 and 1."""
        generator = torch.Generator().manual_seed(seed)
        u = self.manifold.random_tangent(x, generator=generator)
        length = 0.2 + 0.8 * torch.rand(
            u.shape[: u.ndim - self.manifold.ndim], generator=generator, dtype=torch.float64
        )
        scale = length / self.manifold.norm(x, u)
        return u * scale[(...,) + (None,) * self.manifold.ndim]

    def origin(self, *batch: int) -> Tensor:
        """Return the origin."""
        return self.manifold.origin(*batch, *self.event_shape, dtype=self.dtype)

    def _close(self, a: Tensor, b: Tensor, tolerance: float | None = None) -> None:
        tolerance = self.tolerance if tolerance is None else tolerance
        scale = max(1.0, float(b.detach().abs().max())) if b.numel() else 1.0
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * scale, check_dtype=False)

    def _supports(self, *methods: str) -> None:
        missing = self.unsupported.intersection(methods)
        if missing:
            pytest.skip(f"{self.manifold!r} has no closed form for {sorted(missing)}")

    def _moved(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """Parametrise points near `x` by ambient vectors, so that finite differences stay on the manifold."""
        return lambda a: self.manifold.retr(x, self.manifold.proju(x, a))

    def _unary_of_pairs(self) -> dict[str, Binary]:
        m = self.manifold
        functions: dict[str, Binary] = {}
        if "logmap" not in self.unsupported:
            functions["logmap"], functions["dist"] = m.logmap, m.dist
        if "geodesic" not in self.unsupported:
            functions["geodesic"] = lambda x, y: m.geodesic(x, y, 0.3)
        if "center" not in self.unsupported:
            functions["center"] = m.center
        return functions
