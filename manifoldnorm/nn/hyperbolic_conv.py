"""Convolution on the Poincaré ball, fused: one convolution, one box sum, and pointwise maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manifoldnorm.linalg.functions import BatchedFunction
from manifoldnorm.linalg.precision import statistics_dtype, without_autocast
from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.poincare_columns import differentiate, stretch_time, stretch_time_gradient
from manifoldnorm.nn.curvature import Curvature, HyperbolicModule, check_features
from manifoldnorm.nn.hyperbolic_init import beta_factor, initializer
from manifoldnorm.nn.hyperplanes import hyperplane_point, hyperplanes, largest_square, stretch_and_time_within

Pair = tuple[int, int]


def pair(name: str, value: int | Pair, least: int) -> Pair:
    """Check and expand a window parameter."""
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or any(not isinstance(n, int) or n < least for n in both):
        raise ValueError(f"{name} must be an integer of at least {least}, or a pair of them, got {value}")
    return both[0], both[1]


class Window(NamedTuple):
    """Where a convolution looks."""

    size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair


def fused_convolution(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    filters: Callable[[Tensor], Tensor],
    *,
    c: float | Tensor,
    window: Window,
) -> Tensor:
    """Convolve log-coordinate features with hyperplanes.

    The beta concatenation of a window has length beta sqrt(sum |u|^2), a box sum, and its inner product with a normal
    is an ordinary convolution; the ball coordinates of the window are never formed.

    Parameters
    ----------
    u : Tensor
        Log coordinates, shape (B, in, H, W), where `in` counts all points of one pixel.
    weight, bias : Tensor
        Normals, shape (O, n, ...) for points of dimension n, and offsets, shape (O,).
    filters : callable
        Copies normals to the filters of all orientations, shape (O, orientations, in, kh, kw).
    c : float or Tensor
        Curvature.
    window : Window
        As in `torch.nn.functional.conv2d`.

    Returns
    -------
    Tensor
        Log coordinates, shape (B, O, orientations, H', W'): one point of dimension O for each orientation and pixel.
    """
    s = maps.root(c)
    scale = 2 * s * beta_factor(weight.shape[1], u.shape[1] * window.size[0] * window.size[1])
    planes = hyperplanes(weight, bias, 2 * s, scale)
    stack = filters(planes.filters)
    product = F.conv2d(u, stack.flatten(0, 1), None, window.stride, window.padding, window.dilation)
    stretch, time, _ = _WindowRadius.call(u, torch.as_tensor(scale**2, dtype=u.dtype, device=u.device), *window)
    height, width = product.shape[2:]
    columns = product.view(len(u), len(weight), stack.shape[1] * height * width)
    point = hyperplane_point(columns, stretch, time, planes, 1 / (2 * s))
    return point.view(len(u), *stack.shape[:2], height, width)


class _WindowRadius(BatchedFunction):
    """Return sinh(rho)/rho and cosh(rho), rho^2 = scale times the sum of |u|^2 over windows, shape (B, 1, H' * W').

    Sums of shifted images are several times as fast as a convolution of one channel.
    """

    @staticmethod
    def forward(
        u: Tensor, scale: Tensor, size: Pair, stride: Pair, padding: Pair, dilation: Pair
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = F.pad(maps.squared_norm(u, 1), (padding[1], padding[1], padding[0], padding[0]))
        for views in _views(x.shape, size, stride, dilation):
            parts = [x[view] for view in views]
            x = parts[0].clone() if len(parts) == 1 else parts[0] + parts[1]
            for part in parts[2:]:
                x += part
        square = x.flatten(2).mul_(scale).clamp_max(largest_square(u.dtype))
        return *stretch_time(square), square

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*inputs[:2], *output)
        ctx.geometry = inputs[2:]

    @staticmethod
    def backward(ctx: Any, by_stretch: Tensor, by_time: Tensor, _: Tensor) -> tuple[Any, ...]:
        u, scale, stretch, time, square = ctx.saved_tensors
        size, stride, padding, dilation = ctx.geometry
        if torch.is_grad_enabled():

            def function(x: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
                box = torch.ones(1, 1, *size, dtype=x.dtype, device=x.device)
                squares = F.conv2d(maps.squared_norm(x, 1), box, None, stride, padding, dilation) * factor
                return stretch_and_time_within(squares.flatten(2))

            return *differentiate(function, (u, scale), (by_stretch, by_time)), None, None, None, None
        by_square = stretch_time_gradient(square, stretch, time, by_stretch, by_time)
        by_scale = (by_square * square).sum() / scale if ctx.needs_input_grad[1] else None
        shape = [len(u), 1, u.shape[2] + 2 * padding[0], u.shape[3] + 2 * padding[1]]
        rows, columns = _views(shape, size, stride, dilation)
        height, width = (len(range(*views[0][-1].indices(n))) for views, n in ((rows, shape[2]), (columns, shape[3])))
        gradient = by_square.mul_(2 * scale).unflatten(2, (height, width))
        for views, target in ((columns, [len(u), 1, height, shape[3]]), (rows, shape)):
            spread = gradient.new_zeros(target)
            for view in views:
                spread[view] += gradient
            gradient = spread
        inside = gradient[:, :, padding[0] : shape[2] - padding[0], padding[1] : shape[3] - padding[1]]
        return u * inside, by_scale, None, None, None, None


def _views(
    shape: Sequence[int], size: Pair, stride: Pair, dilation: Pair
) -> tuple[list[tuple[slice, ...]], list[tuple[slice, ...]]]:
    """Return the indices of an image's rows, then of its columns, that lie under each row and column of the window."""
    found: list[list[tuple[slice, ...]]] = []
    for axis, k, step, gap in zip((2, 3), size, stride, dilation):
        last = (shape[axis] - gap * (k - 1) - 1) // step * step
        spans = [slice(i * gap, i * gap + last + 1, step) for i in range(k)]
        found.append([(slice(None),) * axis + (span,) for span in spans])
    return found[0], found[1]


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
            point = fused_convolution(
                u.to(dtype),
                self.weight.to(dtype),
                None if self.bias is None else self.bias.to(dtype),
                lambda normals: normals.unsqueeze(1),
                c=self.c,
                window=Window(self.kernel_size, self.stride, self.padding, self.dilation),
            )
            return point.squeeze(2).to(u.dtype)

    def extra_repr(self) -> str:
        """Show the settings."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, bias={self.bias is not None}, {super().extra_repr()}"
        )
