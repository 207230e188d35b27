"""What manifolds of square matrices around the identity share."""

from __future__ import annotations

import torch
from torch import Tensor

from manifoldnorm.manifolds.base import Manifold


class SquareMatrices(Manifold):
    """Real square matrices (..., n, n), the identity among them.

    Attributes
    ----------
    smallest : int
        The least n.
    excluded : str
        Why smaller ones are refused, for the message.
    """

    ndim = 2
    smallest: int = 1
    excluded: str = ""

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError unless `shape` ends in two equal dimensions of at least `smallest`."""
        super().check_event_shape(shape, name)
        if shape[-1] != shape[-2] or shape[-1] < self.smallest:
            least = f" with n >= {self.smallest} ({self.excluded})" if self.excluded else ""
            raise ValueError(f"{name} must hold square matrices, shape (..., n, n){least}, got shape {tuple(shape)}")

    def origin(self, *size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return identity matrices of the given batch and event size."""
        self.check_event_shape(size, "size")
        return torch.eye(size[-1], dtype=dtype, device=device).expand(*size).clone()
