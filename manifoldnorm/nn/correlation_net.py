"""A network on correlation matrices: batch norm in a flat geometry, then a classifier of its coordinates."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import cast

import torch
from torch import Tensor, nn

from manifoldnorm.linalg.precision import statistics_dtype, without_autocast
from manifoldnorm.manifolds.base import check_points
from manifoldnorm.manifolds.checks import require_layer_dtype, require_real_tensor
from manifoldnorm.manifolds.correlation_points import CorrelationPoints, correlation_from_covariance
from manifoldnorm.manifolds.pullback import Flat
from manifoldnorm.nn.domain_layers import refit_layers, run_layers
from manifoldnorm.nn.spdnet import BiMap


class CorBiMap(nn.Module):
    """Maps correlation matrices to smaller ones: C -> cor(W C W^T) with orthonormal rows of W.

    The correlations are those of orthonormal combinations of the standardised variables.

    Parameters
    ----------
    in_size, out_size : int
        Sizes n and m <= n, m >= 2.
    generator : torch.Generator, optional
        For the initial weight.
    device, dtype
        Of the parameter.

    Examples
    --------
    >>> CorBiMap(6, 4)(torch.eye(6)).shape
    torch.Size([4, 4])
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if out_size < 2:
            raise ValueError(f"out_size must be at least 2, got {out_size}; the only 1 x 1 correlation matrix is 1")
        self.bilinear = BiMap(in_size, out_size, generator=generator, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map matrices of shape (..., n, n)."""
        require_real_tensor(x, "input")
        if x.ndim >= 2 and x.shape[-1] == x.shape[-2] == self.bilinear.in_size:
            check_points(CorrelationPoints(), x)
        with without_autocast(x):
            return correlation_from_covariance(self.bilinear(x.to(statistics_dtype(x)))).to(x.dtype)


class CorNet(nn.Module):
    """Classifier of correlation matrices: an optional `CorBiMap`, batch norm, the chart of a geometry, a linear layer.

    Parameters
    ----------
    manifold : Flat
        The geometry whose chart makes the features, such as `CorrelationOffLog()`.
    size : int
        Size n of the matrices.
    classes : int
        Number of classes.
    hidden : int, optional
        Size m of the matrices behind the `CorBiMap`; without it there is none.
    norm : callable or nn.Module, optional
        A batch norm of m x m (n x n) correlation matrices, or a function that makes one for a given size.
    dropout : float
        Of the features.
    generator : torch.Generator, optional
        For the initial weight of the `CorBiMap`.
    device, dtype
        Of the parameters; give the norm the same.

    Examples
    --------
    >>> from manifoldnorm.manifolds import CorrelationOffLog
    >>> from manifoldnorm.nn import LieBatchNorm
    >>> geometry = CorrelationOffLog()
    >>> net = CorNet(geometry, 6, 3, hidden=4, norm=LieBatchNorm(geometry, (4, 4)))
    >>> net(geometry.random(10, 6, 6)).shape
    torch.Size([10, 3])
    """

    def __init__(
        self,
        manifold: Flat,
        size: int,
        classes: int,
        *,
        hidden: int | None = None,
        norm: nn.Module | Callable[[int], nn.Module] | None = None,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        last = size if hidden is None else hidden
        manifold.check_event_shape((last, last), "size")
        self.manifold, self.in_size, self.size = manifold, size, last
        layers: list[nn.Module] = []
        if hidden is not None:
            layers.append(CorBiMap(size, hidden, generator=generator, device=device, dtype=dtype))
        if norm is not None:
            layers.append(norm if isinstance(norm, nn.Module) else norm(last))
        self.layers = nn.ModuleList(layers)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(last * (last + 1) // 2, classes, device=device, dtype=dtype)

    def features(self, x: Tensor, domain: Hashable | Iterable[Hashable] | Tensor | None = None) -> Tensor:
        """Return the lower triangle of the chart's coordinates, shape (batch, m (m + 1) / 2)."""
        require_real_tensor(x, "input")
        require_layer_dtype(x, self.head.weight.dtype)
        if x.shape[-2:] != (self.in_size, self.in_size):
            raise ValueError(f"input must have shape (..., {self.in_size}, {self.in_size}), got {tuple(x.shape)}")
        check_points(self.manifold, x)
        matrices = run_layers(self.layers, x, domain)
        with without_autocast(x):
            z = self.manifold.deform(matrices.to(statistics_dtype(matrices))).to(x.dtype)
        rows, columns = torch.tril_indices(self.size, self.size, device=x.device)
        return z[..., rows, columns]

    def forward(self, x: Tensor, domain: Hashable | Iterable[Hashable] | Tensor | None = None) -> Tensor:
        """Compute class scores of matrices (batch, n, n); `domain` is for a `DomainBatchNorm` only."""
        features = self.features(x, domain).to(self.head.weight.dtype)
        return cast("Tensor", self.head(self.dropout(features)))

    def refit(self, x: Tensor, domain: Hashable | None = None) -> None:
        """Replace the running statistics of the batch norm by those of unlabelled matrices; see `SPDNet.refit`."""
        refit_layers(self, self.layers, x, domain)
