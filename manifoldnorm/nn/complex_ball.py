"""A graph network on the complex unit ball."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from manifoldnorm.linalg.precision import without_autocast
from manifoldnorm.manifolds.complex_ball import ComplexBall
from manifoldnorm.nn.batchnorm import RiemannianBatchNorm
from manifoldnorm.nn.matrix_ball import OriginExp, OriginLog, origin_like
from manifoldnorm.nn.real_tensors import KeepsRealTensors


class ComplexBallGraphLayer(nn.Module):
    """Average neighbours in the complex ball and mix their coordinates: a graph convolution seen from the origin.

    Points go to the tangent space at the origin, where a complex linear map and the mean over neighbours (and the node
    itself) act; the exponential map brings them back.

    Parameters
    ----------
    in_features, out_features : int
        Dimensions of the ball before and after.
    manifold : ComplexBall, optional
        The ball.
    device, dtype
        Of the weights; complex64 by default.

    Examples
    --------
    >>> layer = ComplexBallGraphLayer(3, 2)
    >>> edges = torch.tensor([[0, 1], [1, 0]])
    >>> layer(ComplexBall().random(4, 3), edges).shape
    torch.Size([4, 2])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        manifold: ComplexBall | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.manifold = ComplexBall() if manifold is None else manifold
        self.linear = nn.Linear(
            in_features, out_features, device=device, dtype=self.manifold.complex_dtype(dtype), bias=False
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Convolve points of shape (nodes, in_features) over directed edges (2, edges), source to target."""
        if edge_index.ndim != 2 or edge_index.shape[0] != 2:
            raise ValueError(f"edge_index must have shape (2, edges), got {tuple(edge_index.shape)}")
        with without_autocast(x):
            tangent = self.linear(self.manifold.logmap(origin_like(self.manifold, x), x))
            source, target = edge_index
            total = tangent.index_add(0, target, tangent[source])
            degree = torch.ones(len(x), dtype=tangent.real.dtype, device=x.device)
            degree = degree.index_add(0, target, torch.ones_like(target, dtype=degree.dtype))
            mean = total / degree.unsqueeze(-1)
            return self.manifold.expmap(origin_like(self.manifold, mean), mean)


class ComplexBallGraphNetwork(KeepsRealTensors):
    """Graph layers on the complex ball with an optional batch norm after each, and a linear classifier.

    Parameters
    ----------
    in_features : int
        Number of real node features; the first layer sees them as tangent vectors.
    hidden : sequence of int
        Dimensions of the balls.
    classes : int
        Number of outputs.
    normalize : bool
        Put a `RiemannianBatchNorm` over the nodes after each graph layer.
    device, dtype
        Of the parameters; complex64 by default.

    Examples
    --------
    >>> network = ComplexBallGraphNetwork(5, (4, 4), 3)
    >>> network(torch.randn(6, 5), torch.tensor([[0, 1], [1, 0]])).shape
    torch.Size([6, 3])
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        classes: int,
        *,
        normalize: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        ball = ComplexBall()
        dtype = ball.complex_dtype(dtype)
        common: dict[str, Any] = {"device": device, "dtype": dtype}
        self.embed = nn.Linear(in_features, hidden[0], **common)
        self.enter = OriginExp(ball)
        sizes = [hidden[0], *hidden]
        self.layers = nn.ModuleList(ComplexBallGraphLayer(a, b, manifold=ball, **common) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(
            RiemannianBatchNorm(ball, (size,), normalize_dim=True, **common) if normalize else nn.Identity()
            for size in hidden
        )
        self.features = OriginLog(ball)
        self.classifier = nn.Linear(2 * hidden[-1], classes, device=device, dtype=dtype.to_real())

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits (nodes, classes) for real node features (nodes, in_features)."""
        points = self.enter(self.embed(x.to(self.embed.weight.dtype)))
        for layer, norm in zip(self.layers, self.norms):
            points = norm(layer(points, edge_index))
        logits: Tensor = self.classifier(self.features(points))
        return logits


__all__ = ["ComplexBallGraphLayer", "ComplexBallGraphNetwork"]
