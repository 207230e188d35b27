"""Modules with both complex and real tensors, of which `module.to(torch.complex128)` would make complex ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from torch import Tensor, nn


class KeepsRealTensors(nn.Module):
    """A module whose real parameters and buffers stay real when it is converted to a complex dtype.

    They get the precision of that dtype. This holds for the modules inside it, too.

    Examples
    --------
    >>> import torch, warnings
    >>> class Scaled(KeepsRealTensors):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.matrix = nn.Linear(2, 2, dtype=torch.complex64)
    ...         self.scale = nn.Parameter(torch.ones(()))
    >>> with warnings.catch_warnings(action="ignore"):  # torch calls such modules a new feature
    ...     scaled = Scaled().to(torch.complex128)
    >>> scaled.matrix.weight.dtype, scaled.scale.dtype
    (torch.complex128, torch.float64)
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def keeping(x: Tensor) -> Tensor:
            converted = fn(x)
            return converted.real.clone() if converted.is_complex() and not x.is_complex() else converted

        return super()._apply(keeping, recurse)
