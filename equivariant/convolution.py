"""Lifting and group convolutions of hyperbolic features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from manifoldnorm.equivariant.groups import PlanarGroup, group_filters, lift_filters
from manifoldnorm.equivariant.sizes import check_size
from manifoldnorm.linalg.precision import statistics_dtype, without_autocast
from manifoldnorm.nn.curvature import Curvature, HyperbolicModule, check_features
from manifoldnorm.nn.hyperbolic_conv import Window, fused_convolution
from manifoldnorm.nn.hyperbolic_init import initializer


class _GroupConvolution(HyperbolicModule):
    """What both convolutions share: one set of normals, whose transforms under the group are the filters."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        group: PlanarGroup,
        c: float | Curvature = 1.0,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        bias: bool = True,
        init: str = "variance_preserving",
        strict: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(c)
        _check_positive(in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size, stride=stride)
        _check_positive(dilation=dilation, padding_plus_one=padding + 1)
        if not isinstance(group, PlanarGroup):
            raise TypeError(f"group must be CyclicGroup4(), DihedralGroup4() or TrivialGroup(), got {group!r}")
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel_size
        self.group, self.stride, self.padding, self.dilation = group, stride, padding, dilation
        self.init, self.strict = init, strict
        self.weight = nn.Parameter(torch.empty(self._weight_shape(), device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def _weight_shape(self) -> tuple[int, ...]:
        raise NotImplementedError(f"{type(self).__name__} must define this")

    def _filters(self, normals: Tensor) -> Tensor:
        """Return filters of shape (out, |G|, in, k, k)."""
        raise NotImplementedError(f"{type(self).__name__} must define this")

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new normals and set the offsets to zero."""
        initializer(self.init)(self.weight, self.in_channels, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _convolve(self, image: Tensor) -> Tensor:
        """Convolve (B, in, H, W) to (B, out, |G|, H', W')."""
        sides = (self.kernel_size, self.stride, self.padding, self.dilation)
        window = Window(*((n, n) for n in sides))
        if self.strict and self.group.order > 1:
            size = (image.shape[-2], image.shape[-1])
            check_size(size, *window, type(self).__name__)
        with without_autocast(image):
            dtype = statistics_dtype(image)
            point = fused_convolution(
                image.to(dtype),
                self.weight.to(dtype),
                None if self.bias is None else self.bias.to(dtype),
                self._filters,
                c=self.c,
                window=window,
            )
            return point.to(image.dtype)

    def extra_repr(self) -> str:
        """Show the settings."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, group={self.group.name}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, bias={self.bias is not None}, "
            f"{super().extra_repr()}"
        )


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value}")


class PoincareLiftingConv2d(_GroupConvolution):
    """Convolve a hyperbolic image with every transform of each filter: (B, in, H, W) to (B, out, |G|, H', W').

    Parameters
    ----------
    in_channels, out_channels : int
        Dimensions of the input's and output's points.
    kernel_size : int
        Side of the square window, odd or even.
    group : PlanarGroup
        `CyclicGroup4()` or `DihedralGroup4()` (`TrivialGroup()` for an ordinary layer).
    c : float or Curvature
        The curvature is -c.
    stride, padding, dilation : int
        Of the window; padding is with the origin.
    bias : bool
        Learn an offset per output coordinate, shared by the orientations.
    init : str
        "variance_preserving", "identity", "hnn++" or "eye".
    strict : bool
        Raise for an image size that breaks equivariance (a stride whose windows leave pixels over).

    Raises
    ------
    ValueError
        For sizes that are not positive, another shape, and under `strict` for a size that breaks equivariance; the
        message gives sizes that work.

    Notes
    -----
    Output orientation g is the convolution with T_g z, so that out(T_g x) = L_g out(x). It is exact because a
    hyperbolic fully connected layer sees its input through its length and its products with the normals only, which a
    permutation of pixels leaves alone. Our own construction, after Cohen and Welling, "Group equivariant convolutional
    networks" (ICML 2016).

    Examples
    --------
    >>> from manifoldnorm.equivariant import CyclicGroup4
    >>> layer = PoincareLiftingConv2d(3, 8, 3, padding=1, group=CyclicGroup4())
    >>> layer(torch.randn(2, 3, 9, 8)).shape
    torch.Size([2, 8, 4, 9, 8])
    """

    def _weight_shape(self) -> tuple[int, ...]:
        return self.out_channels, self.in_channels, self.kernel_size, self.kernel_size

    def _filters(self, normals: Tensor) -> Tensor:
        return lift_filters(self.group, normals)

    def forward(self, u: Tensor) -> Tensor:
        """Lift log coordinates (B, in_channels, H, W)."""
        check_features(u, self.in_channels, (4,), "(B, channels, H, W)", self.weight)
        return self._convolve(u)


class PoincareGroupConv2d(_GroupConvolution):
    """Convolve hyperbolic features over pixels and orientations: (B, in, |G|, H, W) to (B, out, |G|, H', W').

    The parameters are those of `PoincareLiftingConv2d`. With `kernel_size` = 1 it mixes channels and orientations.

    Notes
    -----
    Output orientation g uses z_g[h] = T_g z[g^-1 h]: the filter is turned and its orientations are permuted from the
    left. The |G| points of a pixel enter by beta concatenation; viewing (C, |G|) as one ball vector would leave the
    ball.

    Examples
    --------
    >>> from manifoldnorm.equivariant import DihedralGroup4
    >>> layer = PoincareGroupConv2d(4, 6, 3, padding=1, group=DihedralGroup4())
    >>> layer(torch.randn(2, 4, 8, 5, 7)).shape
    torch.Size([2, 6, 8, 5, 7])
    """

    def _weight_shape(self) -> tuple[int, ...]:
        return self.out_channels, self.in_channels, self.group.order, self.kernel_size, self.kernel_size

    def _filters(self, normals: Tensor) -> Tensor:
        return group_filters(self.group, normals).flatten(2, 3)

    def forward(self, u: Tensor) -> Tensor:
        """Convolve log coordinates (B, in_channels, |G|, H, W)."""
        self.group._check_orientations(u)
        check_features(u, self.in_channels, (5,), f"(B, channels, {self.group.order}, H, W)", self.weight)
        return self._convolve(u.flatten(1, 2))


__all__ = ["PoincareGroupConv2d", "PoincareLiftingConv2d"]
