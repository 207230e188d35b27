"""Layers for points of the matrix ball, the Siegel disk and the complex ball, and a network of ball matrices.

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
from manifoldnorm.manifolds.siegel import MatrixBall, SiegelDisk
from manifoldnorm.nn.batchnorm import RiemannianBatchNorm
from manifoldnorm.nn.domain_batchnorm import DomainBatchNorm
from manifoldnorm.nn.domain_layers import refit_layers, run_layers
from manifoldnorm.nn.real_tensors import KeepsRealTensors


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
    >>> from manifoldnorm import ComplexBall
    >>> OriginExp(ComplexBall())(torch.tensor([3.0 + 4.0j, 0.0])).abs()
    tensor([0.9999, 0.0000])
    """

    def __init__(self, manifold: Manifold) -> None:
        super().__init__()
        self.manifold = manifold

    def forward(self, u: Tensor) -> Tensor:
        """Return points of the shape of `u`."""
        with without_autocast(u):
            return self.manifold.expmap(origin_like(self.manifold, u), u)

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
    >>> from manifoldnorm import ComplexBall
    >>> OriginLog(ComplexBall())(torch.tensor([0.3 + 0.4j, 0.0]))
    tensor([0.3296, 0.4394, 0.0000, 0.0000])
    """

    def __init__(self, manifold: Manifold) -> None:
        super().__init__()
        self.manifold = manifold

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (..., 2 * entries) for points of shape (..., *event)."""
        with without_autocast(x):
            log = self.manifold.logmap(origin_like(self.manifold, x), x)
            return torch.view_as_real(log.contiguous().resolve_conj()).flatten(x.ndim - self.manifold.ndim)

    def extra_repr(self) -> str:
        """Show the manifold."""
        return repr(self.manifold)


def origin_like(manifold: Manifold, x: Tensor) -> Tensor:
    """Return the origin of the event shape, dtype and device of `x`."""
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
    >>> from manifoldnorm import ComplexBall
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
        with without_autocast(x):
            points = self.manifold.expmap0(self.prototypes)
            squares = self.manifold.dist2(x.unsqueeze(x.ndim - len(self.shape)), points)
            return self.bias - (torch.exp(self.log_scale) * squares).sum(-1)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{self.manifold!r}, shape={self.shape}, classes={self.classes}"


class SiegelNetwork(KeepsRealTensors):
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
        logits: Tensor = self.classifier(self.features(run_layers(self._layers(), x, domain)).flatten(-2))
        return logits

    def _layers(self) -> list[nn.Module]:
        """List the first norm, then each mixing layer with the norm after it."""
        pairs = zip(self.mixings, list(self.norms)[1:], strict=True)
        return [self.norms[0], *(layer for pair in pairs for layer in pair)]

    def refit(self, x: Tensor, domain: Hashable | None = None) -> None:
        """Set the statistics, of one domain for norms per domain, layer by layer to those of unlabelled points `x`."""
        if isinstance(self.norms[0], nn.Identity):
            raise TypeError('refit needs normalization="batch" or "domain"; without norms there are no statistics')
        refit_layers(self, self._layers(), x, domain)


__all__ = [
    "MatrixBallLinear",
    "OriginExp",
    "OriginLog",
    "PrototypeClassifier",
    "SiegelNetwork",
]
