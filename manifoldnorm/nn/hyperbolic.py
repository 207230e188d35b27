"""Hyperbolic layers. Features are log coordinates of points of the Poincaré ball, with the vector on axis 1 of images.

A network starts with `FromEuclidean` (features are read as log coordinates) or `FromBall` and may end with `ToBall` or
with the scores of `PoincareMLR`. All parameters are Euclidean: any torch optimizer is right for them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manifoldnorm.linalg.precision import statistics_dtype, without_autocast
from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.mean import identity_reduce
from manifoldnorm.manifolds.poincare_mean import from_sums, hyperboloid, midpoint
from manifoldnorm.nn.curvature import Curvature, HyperbolicModule, check_dtype
from manifoldnorm.nn.hyperbolic_conv import Pair, PoincareConv2d, pair
from manifoldnorm.nn.hyperbolic_init import initializer
from manifoldnorm.nn.hyperplanes import (
    Hyperplanes,
    hyperplane_point,
    hyperplane_scores,
    hyperplanes,
    stretch_and_time_within,
)


class FromEuclidean(HyperbolicModule):
    """Read Euclidean features as log coordinates, cut at the radius that their dtype resolves.

    The cut is 2 sqrt(c)|u| = 13.9 in float32; entries that overflowed to infinity count as very large, NaN stays NaN.

    Parameters
    ----------
    c : float or Curvature
        The curvature is -c.
    dim : int
        The axis that holds the vectors.

    Examples
    --------
    >>> FromEuclidean(c=1.0)(torch.tensor([[30.0, 40.0]])).norm()
    tensor(6.9748)
    """

    def __init__(self, c: float | Curvature = 1.0, *, dim: int = 1) -> None:
        super().__init__(c)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Cut vectors that are too long."""
        return maps.clip_norm(x, maps.largest_radius(x.dtype) / (2 * maps.root(self.c)), self.dim)


class FromBall(HyperbolicModule):
    """Turn points of the Poincaré ball into log coordinates.

    Raises
    ------
    ValueError
        On the CPU, for a point outside the ball, with its index; on other devices it gives NaN, without synchronising.

    Examples
    --------
    >>> FromBall(c=1.0)(torch.tensor([[0.5, 0.0]]))
    tensor([[0.5493, 0.0000]])
    """

    def __init__(self, c: float | Curvature = 1.0, *, dim: int = 1) -> None:
        super().__init__(c)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Compute log_0."""
        u = maps.log0(x.double() if x.device.type != "mps" else x, self.c, self.dim)
        if not torch.compiler.is_compiling() and x.device.type == "cpu":
            self._check(x, u)
        return u.to(x.dtype)

    @torch.no_grad()
    def _check(self, x: Tensor, u: Tensor) -> None:
        outside = torch.isnan(u).any(self.dim)
        if bool(outside.any()):
            index = [int(i) for i in outside.nonzero()[0]]
            norm = torch.linalg.vector_norm(x, dim=self.dim)[tuple(index)]
            limit = 1 / float(maps.root(self.c))
            raise ValueError(
                f"the vector along axis {self.dim} at index {index} has norm {float(norm):.6g} and lies outside the "
                f"ball of radius 1/sqrt(c) = {limit:.6g}; use PoincareBall(c).projx, or a smaller c"
            )


class ToBall(HyperbolicModule):
    """Turn log coordinates into points of the Poincaré ball, strictly inside.

    Examples
    --------
    >>> ToBall(c=1.0)(torch.tensor([[0.5493, 0.0]]))
    tensor([[0.5000, 0.0000]])
    """

    def __init__(self, c: float | Curvature = 1.0, *, dim: int = 1) -> None:
        super().__init__(c)
        self.dim = dim

    def forward(self, u: Tensor) -> Tensor:
        """Compute exp_0."""
        x = maps.exp0(u.double() if u.device.type != "mps" else u, self.c, self.dim)
        return maps.clip_norm(x, maps.largest_norm(u.dtype) / maps.root(self.c), self.dim).to(u.dtype)


class _HyperplaneLayer(HyperbolicModule):
    """What linear and classification layers share: normals `weight` (out, in) and offsets `bias` (out,)."""

    default_init = "variance_preserving"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        c: float | Curvature = 1.0,
        bias: bool = True,
        init: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(c)
        init = self.default_init if init is None else init
        if in_features < 1 or out_features < 1:
            raise ValueError(f"in_features and out_features must be positive, got {in_features} and {out_features}")
        self.in_features, self.out_features, self.init = in_features, out_features, init
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new normals and set the offsets to zero."""
        initializer(self.init)(self.weight, self.in_features, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _products(self, u: Tensor, s: float | Tensor) -> tuple[Tensor, Tensor, Tensor, Hyperplanes]:
        """Return the arguments of `hyperplane_point`: products of shape (M, out, 1), numbers of shape (M, 1, 1)."""
        if u.ndim < 1 or u.shape[-1] != self.in_features:
            raise ValueError(
                f"input must have {self.in_features} entries in its last dimension, got shape {tuple(u.shape)}; "
                "for images use PoincareConv2d with kernel_size=1"
            )
        check_dtype(u, self.weight)
        dtype = statistics_dtype(u)
        rows = u.reshape(-1, self.in_features).to(dtype)
        planes = hyperplanes(self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype), 2 * s, 2 * s)
        square = (maps.squared_norm(rows, 1) * (4 * s**2)).unsqueeze(-1)
        return F.linear(rows, planes.filters).unsqueeze(-1), *stretch_and_time_within(square), planes

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, {super().extra_repr()}"


class PoincareLinear(_HyperplaneLayer):
    """A fully connected layer between hyperbolic spaces.

    Parameters
    ----------
    in_features, out_features : int
        Dimensions of the points, on the last axis.
    c : float or Curvature
        The curvature is -c.
    bias : bool
        Learn an offset per output coordinate.
    init : str, optional
        "variance_preserving" (default), "identity", "hnn++" or "eye".

    Raises
    ------
    ValueError, TypeError
        For an input of another size or dtype.

    Notes
    -----
    Shimizu, Mukuta and Harada, "Hyperbolic neural networks++" (ICLR 2021). Log coordinates in and out, cut at the
    radius that the dtype resolves. For c -> 0 it is u -> 2 (W u - |w| r).

    Examples
    --------
    >>> PoincareLinear(4, 2, c=0.5)(torch.randn(3, 4)).shape
    torch.Size([3, 2])
    """

    def forward(self, u: Tensor) -> Tensor:
        """Map log coordinates (..., in_features) to (..., out_features)."""
        with without_autocast(u):
            s = maps.root(self.c)
            point = hyperplane_point(*self._products(u, s), 1 / (2 * s))
            return point.view(*u.shape[:-1], self.out_features).to(u.dtype)


class PoincareMLR(_HyperplaneLayer):
    """Multinomial logistic regression on hyperbolic space: the logits are scaled signed distances to hyperplanes.

    Parameters
    ----------
    in_features, out_features : int
        Dimension of the points and number of classes.
    c, bias, init
        As for `PoincareLinear`; the default initialisation is that of "Hyperbolic neural networks++".

    Notes
    -----
    v_k = (2|z_k|/sqrt(c)) asinh(...), equation 6 of Shimizu, Mukuta and Harada (ICLR 2021). For c -> 0 it is
    4 (<u, z_k> - |z_k| r_k).

    Examples
    --------
    >>> PoincareMLR(4, 10, c=0.5)(torch.randn(3, 4)).shape
    torch.Size([3, 10])
    """

    default_init = "hnn++"

    def forward(self, u: Tensor) -> Tensor:
        """Map log coordinates (..., in_features) to logits (..., out_features)."""
        with without_autocast(u):
            s = maps.root(self.c)
            scores = hyperplane_scores(*self._products(u, s)) / s
            return scores.view(*u.shape[:-1], self.out_features).to(u.dtype)


class PoincareReLU(nn.Module):
    """ReLU of the log coordinates (tangent ReLU); it depends on the basis, so it breaks rotations of the vectors.

    Examples
    --------
    >>> PoincareReLU()(torch.tensor([[0.5, -0.5]]))
    tensor([[0.5000, 0.0000]])
    """

    def forward(self, u: Tensor) -> Tensor:
        """Set negative coordinates to zero."""
        return u.relu()


class MobiusResidual(HyperbolicModule):
    """Add a branch to a stream by Moebius addition, stream (+) branch, over the vector axis.

    Parameters
    ----------
    c : float or Curvature
        The curvature is -c.
    dim : int
        The axis that holds the vectors.

    Examples
    --------
    >>> MobiusResidual(c=1.0)(torch.tensor([[0.3, 0.0]]), torch.tensor([[0.2, 0.0]]))
    tensor([[0.5000, 0.0000]])
    """

    def __init__(self, c: float | Curvature = 1.0, *, dim: int = 1) -> None:
        super().__init__(c)
        self.dim = dim

    def forward(self, stream: Tensor, branch: Tensor) -> Tensor:
        """Compute stream (+) branch in log coordinates."""
        if stream.shape != branch.shape:
            raise ValueError(
                f"stream and branch must have one shape, got {tuple(stream.shape)} and {tuple(branch.shape)}; "
                "map the stream with a 1x1 convolution or a pooling first"
            )
        dtype = statistics_dtype(stream)
        return maps.boost(stream.to(dtype), branch.to(dtype), self.c, self.dim).to(stream.dtype)


class MidpointPool2d(HyperbolicModule):
    """Pool windows of an image to their gyromidpoint.

    Parameters
    ----------
    kernel_size : int or pair
        The window.
    stride : int or pair, optional
        The window's size by default.
    padding : int or pair
        Padded pixels are left out of the midpoint.
    c : float or Curvature
        The curvature is -c.

    Notes
    -----
    The midpoint of equal points is that point. (Pooling through beta concatenation, as elsewhere, shrinks it.)

    Examples
    --------
    >>> MidpointPool2d(2, c=1.0)(torch.full((1, 3, 4, 4), 0.2))[0, :, 0, 0]
    tensor([0.2000, 0.2000, 0.2000])
    """

    def __init__(
        self,
        kernel_size: int | Pair,
        *,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        c: float | Curvature = 1.0,
    ) -> None:
        super().__init__(c)
        self.kernel_size = pair("kernel_size", kernel_size, 1)
        self.stride = self.kernel_size if stride is None else pair("stride", stride, 1)
        self.padding = pair("padding", padding, 0)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel_size)):
            raise ValueError(f"padding must be at most half of kernel_size {self.kernel_size}, got {self.padding}")

    def forward(self, u: Tensor) -> Tensor:
        """Map log coordinates (B, channels, ..., H, W) to (B, channels, ..., H', W')."""
        if u.ndim < 4:
            raise ValueError(f"input must have shape (B, channels, ..., H, W), got {tuple(u.shape)}")
        if u.dtype == torch.float64:
            return self._pool_windows(u)
        spatial, time = (self._sum(part) for part in hyperboloid(u, self.c, 1))
        return from_sums(spatial, time, self.c, 1, u.dtype)

    def _pool_windows(self, u: Tensor) -> Tensor:
        """Gather the windows: slower, and accurate to the largest radius of float64."""
        window = (self.kernel_size, 1, self.padding, self.stride)
        inside = F.unfold(torch.ones_like(u[:1, :1].flatten(1, -3)[:, :1]), *window)
        size = self._sum(u[:1, :1]).shape[-2:]
        columns = F.unfold(u.flatten(1, -3), *window)
        points = columns.view(u.shape[0], *u.shape[1:-2], -1, columns.shape[-1])
        pooled = midpoint(points, inside, -2, self.c, vector_dim=1, reduce=identity_reduce)
        return pooled.unflatten(-1, size)

    def _sum(self, x: Tensor) -> Tensor:
        flat = F.avg_pool2d(x.flatten(1, -3), self.kernel_size, self.stride, self.padding, divisor_override=1)
        return flat.unflatten(1, x.shape[1:-2])

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, {super().extra_repr()}"


class GlobalMidpoint(HyperbolicModule):
    """Reduce features (B, channels, ...) to their midpoint over all positions, (B, channels).

    Examples
    --------
    >>> GlobalMidpoint(c=1.0)(torch.full((1, 2, 3, 3), 0.2))
    tensor([[0.2000, 0.2000]])
    """

    def forward(self, u: Tensor) -> Tensor:
        """Average over every axis behind the vectors."""
        if u.ndim < 3:
            raise ValueError(f"input must have shape (B, channels, ...), got {tuple(u.shape)}")
        return midpoint(u, None, tuple(range(2, u.ndim)), self.c, vector_dim=1, reduce=identity_reduce)


__all__ = [
    "FromBall",
    "FromEuclidean",
    "GlobalMidpoint",
    "MidpointPool2d",
    "MobiusResidual",
    "PoincareConv2d",
    "PoincareLinear",
    "PoincareMLR",
    "PoincareReLU",
    "ToBall",
]
