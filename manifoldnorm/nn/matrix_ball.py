"""Layers for points of the matrix ball, the Siegel disk and the complex ball, and two networks made of them.

`torch.nn.Linear(..., dtype=torch.complex64)` is the complex linear layer; what is here is what torch lacks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from manifoldnorm.linalg.precision import without_autocast
from manifoldnorm.manifolds.base import Manifold
from manifoldnorm.manifolds.complex_ball import ComplexBall
from manifoldnorm.manifolds.siegel import MatrixBall, SiegelDisk
from manifoldnorm.nn.batchnorm import DomainBatchNorm, RiemannianBatchNorm


class MatrixBallLinear(nn.Module):
    """Mix channels of ball matrices by out_o = sum_c A_oc Z_c B_oc, which stays inside the ball.

    The row [A_o1, ..., A_oC] and the column [B_o1; ...; B_oC] of every output are divided by their spectral norms where
    these exceed one, so the output is a contraction of block diagonal matrices with singular values below one. For the
    Siegel disk B_oc = A_oc^T, which keeps symmetry.

    Parameters
    ----------
    manifold : MatrixBall or SiegelDisk
        Where points live.
    in_channels, out_channels : int
        Channels of input and output.
    event_shape : (int, int)
        Shape (p, q) of the matrices.
    generator : torch.Generator, optional
        For the initial weights, random with orthonormal rows.
    device, dtype
        Of the weights; complex64 by default.

    Notes
    -----
    The layer contracts towards the origin; a batch norm after it restores the spread.

    Examples
    --------
    >>> layer = MatrixBallLinear(SiegelDisk(), 3, 2, (2, 2))
    >>> layer(SiegelDisk().random(5, 3, 2, 2)).shape
    torch.Size([5, 2, 2, 2])
    """

    def __init__(
        self,
        manifold: MatrixBall,
        in_channels: int,
        out_channels: int,
        event_shape: tuple[int, int],
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        manifold.check_event_shape(tuple(event_shape), "event_shape")
        if in_channels < 1 or out_channels < 1:
            raise ValueError(f"in_channels and out_channels must be positive, got {in_channels} and {out_channels}")
        self.manifold, self.event_shape = manifold, tuple(event_shape)
        self.in_channels, self.out_channels = in_channels, out_channels
        dtype = manifold.complex_dtype(dtype)
        p, q = event_shape
        self.left = nn.Parameter(_orthonormal_rows(out_channels, p, in_channels * p, generator, dtype, device))
        self.right: nn.Parameter | None = None
        if not isinstance(manifold, SiegelDisk):
            self.right = nn.Parameter(_orthonormal_rows(out_channels, q, in_channels * q, generator, dtype, device))

    def forward(self, x: Tensor) -> Tensor:
        """Mix points of shape (..., in_channels, p, q); returns shape (..., out_channels, p, q)."""
        p, q = self.event_shape
        if x.shape[-3:] != (self.in_channels, p, q):
            raise ValueError(f"input must have shape (..., {self.in_channels}, {p}, {q}), got {tuple(x.shape)}")
        if x.dtype != self.left.dtype:
            raise TypeError(f"input has dtype {x.dtype} but the layer has {self.left.dtype}; convert one of them")
        left = _contraction(self.left).unflatten(-1, (self.in_channels, p))
        right = left if self.right is None else _contraction(self.right).unflatten(-1, (self.in_channels, q))
        mixed = torch.einsum("oack,...ckl,obcl->...oab", left, x, right)
        return self.manifold.proju(mixed, mixed)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{self.manifold!r}, {self.in_channels}, {self.out_channels}, event_shape={self.event_shape}"


def _orthonormal_rows(
    outputs: int,
    rows: int,
    columns: int,
    generator: torch.Generator | None,
    dtype: torch.dtype,
    device: torch.device | str | None,
) -> Tensor:
    noise = torch.randn(outputs, columns, rows, generator=generator, dtype=dtype, device=device)
    return torch.linalg.qr(noise).Q.mH.resolve_conj().contiguous()


def _contraction(weight: Tensor) -> Tensor:
    """Divide matrices by their spectral norm where it exceeds one."""
    return weight / torch.linalg.matrix_norm(weight, ord=2, keepdim=True).clamp(min=1.0)


class OriginExp(nn.Module):
    """Map tangent vectors at the origin to points by the exponential map: the entrance of a network.

    Parameters
    ----------
    manifold : Manifold
        Any manifold with `origin` and `expmap`.

    Examples
    --------
    >>> OriginExp(ComplexBall())(torch.tensor([3.0 + 4.0j, 0.0])).abs()
    tensor([0.9999, 0.0000])
    """

    def __init__(self, manifold: Manifold) -> None:
        super().__init__()
        self.manifold = manifold

    def forward(self, u: Tensor) -> Tensor:
        """Return points of the shape of `u`."""
        with without_autocast(u):
            return self.manifold.expmap(_origin_like(self.manifold, u), u)

    def extra_repr(self) -> str:
        """Show the manifold."""
        return repr(self.manifold)


class OriginLog(nn.Module):
    """Map points to real features: the logarithm at the origin, real and imaginary parts side by side.

    Parameters
    ----------
    manifold : Manifold
        Any complex manifold with `origin` and `logmap`.

    Examples
    --------
    >>> OriginLog(ComplexBall())(torch.tensor([0.3 + 0.4j, 0.0]))
    tensor([0.3296, 0.4394, 0.0000, 0.0000])
    """

    def __init__(self, manifold: Manifold) -> None:
        super().__init__()
        self.manifold = manifold

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (..., 2 * entries) for points of shape (..., *event)."""
        with without_autocast(x):
            log = self.manifold.logmap(_origin_like(self.manifold, x), x)
            return torch.view_as_real(log.contiguous().resolve_conj()).flatten(x.ndim - self.manifold.ndim)

    def extra_repr(self) -> str:
        """Show the manifold."""
        return repr(self.manifold)


def _origin_like(manifold: Manifold, x: Tensor) -> Tensor:
    return manifold.origin(*x.shape[x.ndim - manifold.ndim :], dtype=x.dtype, device=x.device)


class PrototypeClassifier(nn.Module):
    """Classify points by squared distances to one learnable prototype per class and channel.

    The logit of class k is bias_k - sum_c scale_c d(z_c, prototype_kc)^2 with positive scales. Prototypes are
    exponentials of tangent parameters at the origin, so any optimizer is right for them.

    Parameters
    ----------
    manifold : Manifold
        Where points live.
    shape : sequence of int
        Channels and event shape of the input.
    classes : int
        Number of classes.
    generator : torch.Generator, optional
        For the initial prototypes, close to the origin.
    device, dtype
        Of the parameters; complex64 by default.

    Examples
    --------
    >>> head = PrototypeClassifier(ComplexBall(), (3, 2), 4)
    >>> head(ComplexBall().random(5, 3, 2)).shape
    torch.Size([5, 4])
    """

    def __init__(
        self,
        manifold: Manifold,
        shape: Sequence[int],
        classes: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if classes < 1:
            raise ValueError(f"classes must be positive, got {classes}")
        self.manifold, self.shape, self.classes = manifold, tuple(shape), classes
        if len(self.shape) != 1 + manifold.ndim:
            raise ValueError(f"shape must be channels and {manifold.ndim} event dimensions, got {self.shape}")
        origin = manifold.origin(classes, *self.shape, dtype=dtype, device=device)
        noise = torch.randn(origin.shape, generator=generator, dtype=origin.dtype, device=device)
        self.prototypes = nn.Parameter(0.1 * noise)
        self.log_scale = nn.Parameter(torch.zeros(self.shape[0], dtype=origin.real.dtype, device=device))
        self.bias = nn.Parameter(torch.zeros(classes, dtype=origin.real.dtype, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (..., classes) for points of shape (..., *shape)."""
        origin = _origin_like(self.manifold, self.prototypes)
        with without_autocast(x):
            points = self.manifold.expmap(origin, self.manifold.proju(origin, self.prototypes))
            squares = self.manifold.dist2(x.unsqueeze(x.ndim - len(self.shape)), points)
            return self.bias - (torch.exp(self.log_scale) * squares).sum(-1)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{self.manifold!r}, shape={self.shape}, classes={self.classes}"


class SiegelNetwork(nn.Module):
    """Channel-mixing ball layers, each with a batch norm, then logarithm at the origin and a linear classifier.

    Parameters
    ----------
    manifold : MatrixBall or SiegelDisk
        Where points live.
    channels : sequence of int
        Channels of the input and after each mixing layer.
    event_shape : (int, int)
        Shape of the matrices.
    classes : int
        Number of outputs.
    normalization : {"batch", "domain", "none"}
        `RiemannianBatchNorm` or `DomainBatchNorm` on the input and after each mixing layer, or none.
    domains : sequence, optional
        Names of the domains for "domain".
    normalize_dim : bool
        As in `RiemannianBatchNorm`.
    momentum : float or None
        Of the batch norms.
    generator : torch.Generator, optional
        For the initial weights of the ball layers.
    device, dtype
        Of the parameters; complex64 by default.

    Examples
    --------
    >>> network = SiegelNetwork(MatrixBall(), (3, 4), (2, 2), 5)
    >>> network(MatrixBall().random(8, 3, 2, 2)).shape
    torch.Size([8, 5])
    """

    def __init__(
        self,
        manifold: MatrixBall,
        channels: Sequence[int],
        event_shape: tuple[int, int],
        classes: int,
        *,
        normalization: str = "batch",
        domains: Sequence[Hashable] | None = None,
        normalize_dim: bool = True,
        momentum: float | None = 0.1,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if normalization not in ("batch", "domain", "none"):
            raise ValueError(f'normalization must be "batch", "domain" or "none", got {normalization!r}')
        if (normalization == "domain") != (domains is not None):
            raise ValueError('domains goes with normalization="domain", and only with it')
        dtype = manifold.complex_dtype(dtype)
        common: dict[str, Any] = {"device": device, "dtype": dtype}
        options = {"normalize_dim": normalize_dim, "momentum": momentum, **common}

        def norm(count: int) -> nn.Module:
            if domains is not None:
                return DomainBatchNorm(manifold, (count, *event_shape), domains=domains, **options)
            if normalization == "batch":
                return RiemannianBatchNorm(manifold, (count, *event_shape), **options)
            return nn.Identity()

        self.mixings = nn.ModuleList(
            MatrixBallLinear(manifold, a, b, event_shape, generator=generator, **common) for a, b in pairwise(channels)
        )
        self.norms = nn.ModuleList(norm(count) for count in channels)
        self.features = OriginLog(manifold)
        size = channels[-1] * 2 * event_shape[0] * event_shape[1]
        self.classifier = nn.Linear(size, classes, device=device, dtype=dtype.to_real())

    def forward(self, x: Tensor, domain: Hashable | Iterable[Hashable] | Tensor | None = None) -> Tensor:
        """Return logits (batch, classes) for points (batch, channels, p, q).

        `domain` names the domain of the batch or of each point, when the norms are per domain.
        """
        x = self._normalized(0, x, domain)
        for i, mixing in enumerate(self.mixings, start=1):
            x = self._normalized(i, mixing(x), domain)
        logits: Tensor = self.classifier(self.features(x).flatten(-2))
        return logits

    def _normalized(self, i: int, x: Tensor, domain: Hashable | Iterable[Hashable] | Tensor | None) -> Tensor:
        norm = self.norms[i]
        if isinstance(norm, DomainBatchNorm):
            if domain is None:
                raise ValueError("domain must name the domain of the batch or of each point")
            return norm(x, domain)
        result: Tensor = norm(x)
        return result

    @torch.no_grad()
    def refit(self, x: Tensor, domain: Hashable) -> None:
        """Set the statistics of one domain, layer by layer, to those of `x`, unlabelled points of that domain."""
        training = self.training
        self.eval()
        for i in range(len(self.norms)):
            x = x if i == 0 else self.mixings[i - 1](x)
            norm = self.norms[i]
            if not isinstance(norm, DomainBatchNorm):
                raise TypeError('refit needs normalization="domain"')
            norm.refit(x, domain)
            x = norm(x, domain)
        self.train(training)


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
            tangent = self.linear(self.manifold.logmap(_origin_like(self.manifold, x), x))
            source, target = edge_index
            total = tangent.index_add(0, target, tangent[source])
            degree = torch.ones(len(x), dtype=tangent.real.dtype, device=x.device)
            degree = degree.index_add(0, target, torch.ones_like(target, dtype=degree.dtype))
            mean = total / degree.unsqueeze(-1)
            return self.manifold.expmap(_origin_like(self.manifold, mean), mean)


class ComplexBallGraphNetwork(nn.Module):
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


__all__ = [
    "ComplexBallGraphLayer",
    "ComplexBallGraphNetwork",
    "MatrixBallLinear",
    "OriginExp",
    "OriginLog",
    "PrototypeClassifier",
    "SiegelNetwork",
]
