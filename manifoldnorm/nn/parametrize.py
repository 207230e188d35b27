"""Learnable points and frames from unconstrained parameters, so that any torch optimizer is right for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from manifoldnorm.linalg import inv_sqrtm
from manifoldnorm.manifolds import Manifold
from manifoldnorm.manifolds.base import require_manifold
from manifoldnorm.manifolds.checks import shape_tuple


class LearnablePoint(nn.Module):
    """A point of a manifold as a function of an unconstrained parameter.

    The parameter holds tangent coordinates at the origin of the manifold's flat chart (or at its origin), so plain
    Adam, weight decay (which pulls to the origin), weight averaging, DDP, deepcopy and `load_state_dict` are all right.

    Parameters
    ----------
    manifold : Manifold
        The geometry.
    shape : int or sequence of int
        Batch and event shape of the point.
    point : Tensor, optional
        The initial point; the origin by default.
    device, dtype
        Of the parameter.

    Examples
    --------
    >>> from manifoldnorm import SPDAffineInvariant
    >>> point = LearnablePoint(SPDAffineInvariant(), (3, 3))
    >>> point().detach()
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """

    def __init__(
        self,
        manifold: Manifold,
        shape: int | Sequence[int],
        *,
        point: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_manifold(manifold)
        self.manifold, self.shape = manifold, shape_tuple(shape)
        manifold.check_event_shape(self.shape, "shape")
        self.coordinates = nn.Parameter(torch.zeros_like(manifold.origin(*self.shape, device=device, dtype=dtype)))
        if point is not None:
            self.set_point(point)

    @torch.no_grad()
    def set_point(self, point: Tensor) -> None:
        """Move to a given point."""
        self.manifold.assert_check_point_on_manifold(point, "point")
        z = self.manifold.deform(point.to(self.coordinates))
        self.coordinates.copy_(self.manifold.codomain.logmap(self._origin(), z))

    def _origin(self) -> Tensor:
        like = self.coordinates
        return self.manifold.codomain.origin(*self.shape, dtype=like.dtype, device=like.device)

    def forward(self) -> Tensor:
        """Return the point."""
        return self.manifold.undeform(self.manifold.codomain.expmap0(self.coordinates))

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{self.manifold!r}, shape={self.shape}"


def orthonormal_rows(weight: Tensor) -> Tensor:
    """Return the matrix with orthonormal rows that is nearest to `weight`, its polar factor (W W^T)^(-1/2) W.

    The result does not depend on the scale of `weight`, so weight decay on it changes nothing but the step size.

    Parameters
    ----------
    weight : Tensor
        Shape (..., rows, columns) with rows <= columns, of full rank.

    Examples
    --------
    >>> orthonormal_rows(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    if weight.shape[-2] > weight.shape[-1]:
        raise ValueError(f"weight must not have more rows than columns, got shape {tuple(weight.shape)}")
    scale = weight.detach().abs().amax(dim=(-2, -1), keepdim=True)
    scaled = weight / torch.where(scale > 0, scale, torch.ones_like(scale))
    return inv_sqrtm(scaled @ scaled.mT) @ scaled
