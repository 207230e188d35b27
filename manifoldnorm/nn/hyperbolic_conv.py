"""Convolution on the Poincaré ball, fused: one convolution, one box sum, and pointwise maps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manifoldnorm.linalg.precision import statistics_dtype, without_autocast
from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.nn.curvature import Curvature, HyperbolicModule, check_features
from manifoldnorm.nn.hyperbolic_init import beta_factor, initializer
from manifoldnorm.nn.hyperplanes import hyperplane_point, unit_normals

Pair = tuple[int, int]


def pair(name: str, value: int | Pair, least: int) -> Pair:
    """Check and expand a window parameter."""
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or any(not isinstance(n, int) or n < least for n in both):
        raise ValueError(f"{name} must be an integer of at least {least}, or a pair of them, got {value}")
    return both[0], both[1]


def fused_convolution(
    u: Tensor,
    normals: Tensor,
    norm: Tensor,
    offset: Tensor,
    *,
    point_size: int,
    c: float | Tensor,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> Tensor:
    """Convolve log-coordinate features with hyperplanes.

    The beta concatenation of a window has length beta sqrt(sum |u|^2), a box sum, and its inner product with a normal
    is an ordinary convolution; the ball coordinates of the window are never formed.

    Parameters
    ----------
    u : Tensor
        Log coordinates, shape (B, in, H, W), where `in` counts all points of one pixel.
    normals : Tensor
        Unit normals, shape (O, orientations, in, kh, kw).
    norm, offset : Tensor
        Lengths of the normals and the offsets r, shape (O,), shared by the orientations.
    point_size : int
        Dimension of one point; `in` is a multiple of it.
    c : float or Tensor
        Curvature.

    Returns
    -------
    Tensor
        Log coordinates, shape (B, O, orientations, H', W'): one point of dimension O for each orientation and pixel.
    """
    out, orientations, channels, *window = normals.shape
    s = maps.root(c)
    scale = 2 * s * beta_factor(point_size, channels * window[0] * window[1])
    product = F.conv2d(u, (normals * scale).flatten(0, 1), None, stride, padding, dilation)
    box = torch.ones(1, 1, *window, dtype=u.dtype, device=u.device)
    square = F.conv2d(maps.squared_norm(u, 1), box, None, stride, padding, dilation) * scale**2
    batch, _, height, width = product.shape
    point = hyperplane_point(
        product.reshape(batch, out, orientations * height * width),
        square.flatten(2).repeat(1, 1, orientations),
        norm.unsqueeze(-1),
        (2 * s * offset).unsqueeze(-1),
        1 / (2 * s),
    )
    return point.view(batch, out, orientations, height, width)


class PoincareConv2d(HyperbolicModule):
    """Convolution of images whose pixels are points of the Poincaré ball.

    The window's points are joined by beta concatenation and mapped by a fully connected hyperbolic layer.

    Parameters
    ----------
    in_channels, out_channels : int
        Dimensions of the input's and output's points.
    kernel_size, stride, padding, dilation : int or pair
        As in `torch.nn.Conv2d`; padding is with the origin.
    c : float or Curvature
        The curvature is -c.
    bias : bool
        Learn an offset per output coordinate.
    init : str
        "variance_preserving", "identity", "hnn++" or "eye"; see `manifoldnorm.nn.hyperbolic_init`.

    Raises
    ------
    ValueError
        For sizes or a curvature that are not positive, and an input of another shape.
    TypeError
        For an input of another dtype than the layer's (half precisions are computed in float32).

    Notes
    -----
    Log coordinates in, log coordinates out, with the vector on axis 1; parameters are Euclidean, so any optimizer is
    right for them. The output is cut at the radius that the dtype resolves, 2 sqrt(c)|u| = 13.9 in float32, and entries
    of the incoming gradient at max^0.4 of the dtype (2.6e15), so that deep stacks stay finite in both directions.

    Definition: Shimizu, Mukuta and Harada (ICLR 2021) and van Spengler, Berkhout and Mettes, "Poincaré ResNet" (ICCV
    2023); the fused form equals it to rounding.

    Examples
    --------
    >>> layer = PoincareConv2d(3, 8, 3, padding=1, c=0.5)
    >>> layer(torch.randn(2, 3, 16, 16)).shape
    torch.Size([2, 8, 16, 16])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        *,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        dilation: int | Pair = 1,
        c: float | Curvature = 1.0,
        bias: bool = True,
        init: str = "variance_preserving",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(c)
        if in_channels < 1 or out_channels < 1:
            raise ValueError(f"in_channels and out_channels must be positive, got {in_channels} and {out_channels}")
        self.in_channels, self.out_channels, self.init = in_channels, out_channels, init
        self.kernel_size = pair("kernel_size", kernel_size, 1)
        self.stride, self.padding = pair("stride", stride, 1), pair("padding", padding, 0)
        self.dilation = pair("dilation", dilation, 1)
        self.weight = nn.Parameter(
            torch.empty(out_channels, in_channels, *self.kernel_size, device=device, dtype=dtype)
        )
        self.bias = nn.Parameter(torch.zeros(out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new normals and set the offsets to zero."""
        initializer(self.init)(self.weight, self.in_channels, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, u: Tensor) -> Tensor:
        """Map log coordinates (B, in_channels, H, W) to (B, out_channels, H', W')."""
        check_features(u, self.in_channels, (4,), "(B, channels, H, W)", self.weight)
        with without_autocast(u):
            dtype = statistics_dtype(u)
            norm, normals = unit_normals(self.weight.to(dtype), (1, 2, 3))
            point = fused_convolution(
                u.to(dtype),
                normals.unsqueeze(1),
                norm.flatten(),
                torch.zeros_like(norm.flatten()) if self.bias is None else self.bias.to(dtype),
                point_size=self.in_channels,
                c=self.c,
                stride=self.stride,
                padding=self.padding,
                dilation=self.dilation,
            )
            return point.squeeze(2).to(u.dtype)

    def extra_repr(self) -> str:
        """Show the settings."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, bias={self.bias is not None}, {super().extra_repr()}"
        )
