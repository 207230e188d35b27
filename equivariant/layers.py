"""Batch norm over all orientations, pooling, and the pieces of equivariant blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manifoldnorm.equivariant.groups import PlanarGroup
from manifoldnorm.equivariant.sizes import check_size, check_square
from manifoldnorm.manifolds.mean import identity_reduce
from manifoldnorm.manifolds.poincare_mean import midpoint
from manifoldnorm.nn import hyperbolic
from manifoldnorm.nn.curvature import Curvature, HyperbolicModule
from manifoldnorm.nn.hyperbolic_batchnorm import PoincareBatchNorm
from manifoldnorm.nn.hyperbolic_conv import Pair


class JointOrientationBatchNorm2d(PoincareBatchNorm):
    """Batch norm of features (B, C, |G|, H, W) whose statistics, bias and weight are shared by all orientations.

    Statistics, bias or weight of their own for each orientation would break equivariance, in eval mode even where a
    test that turns the whole batch by one element passes in training mode.

    Parameters
    ----------
    channels : int
        Dimension of the points.
    group : PlanarGroup
        The group whose orientations lie on axis 2.
    c, average, form, momentum, eps, affine, track_running_stats, mean_steps, detach_stats, process_group
        As for `manifoldnorm.nn.PoincareBatchNorm`.

    Examples
    --------
    >>> import torch
    >>> from manifoldnorm.equivariant import CyclicGroup4
    >>> layer = JointOrientationBatchNorm2d(6, group=CyclicGroup4())
    >>> layer(torch.randn(2, 6, 4, 5, 5)).shape
    torch.Size([2, 6, 4, 5, 5])
    """

    def __init__(
        self,
        channels: int,
        *,
        group: PlanarGroup,
        c: float | Curvature = 1.0,
        average: str = "midpoint",
        form: str = "gyro",
        momentum: float | None = 0.1,
        eps: float = 1e-5,
        affine: bool = True,
        track_running_stats: bool = True,
        mean_steps: int | None = None,
        detach_stats: bool = False,
        process_group: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            channels,
            c=c,
            average=average,
            form=form,
            momentum=momentum,
            eps=eps,
            affine=affine,
            track_running_stats=track_running_stats,
            mean_steps=mean_steps,
            detach_stats=detach_stats,
            process_group=process_group,
            device=device,
            dtype=dtype,
        )
        self.group = group

    def forward(self, u: Tensor) -> Tensor:
        """Normalise log coordinates (B, channels, |G|, H, W)."""
        self.group._check_orientations(u)
        return super().forward(u)


class MidpointPool2d(hyperbolic.MidpointPool2d):
    """Pool windows of features (B, C, |G|, H, W), or of an image, to their midpoint; raise for unfit sizes.

    Parameters
    ----------
    kernel_size, stride, padding, c
        As for `manifoldnorm.nn.MidpointPool2d`, equal in both directions.
    strict : bool
        Raise for an image size whose windows leave pixels over.

    Examples
    --------
    >>> import torch
    >>> MidpointPool2d(2)(torch.randn(1, 3, 4, 8, 6)).shape
    torch.Size([1, 3, 4, 4, 3])
    """

    def __init__(
        self,
        kernel_size: int | Pair,
        *,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        c: float | Curvature = 1.0,
        strict: bool = True,
    ) -> None:
        super().__init__(kernel_size, stride=stride, padding=padding, c=c)
        for name in ("kernel_size", "stride", "padding"):
            check_square(name, getattr(self, name))
        self.strict = strict

    def forward(self, u: Tensor) -> Tensor:
        """Pool log coordinates (B, C, ..., H, W)."""
        if self.strict and u.ndim >= 4:
            size = (u.shape[-2], u.shape[-1])
            check_size(size, self.kernel_size, self.stride, self.padding, (1, 1), type(self).__name__)
        return super().forward(u)


class GroupPool(HyperbolicModule):
    """Reduce features (B, C, |G|, H, W) to their midpoint over orientations: an image (B, C, H, W) that only turns.

    Examples
    --------
    >>> import torch
    >>> GroupPool(c=1.0)(torch.randn(1, 3, 4, 5, 5)).shape
    torch.Size([1, 3, 5, 5])
    """

    def forward(self, u: Tensor) -> Tensor:
        """Average over axis 2."""
        if u.ndim != 5:
            raise ValueError(f"input must have shape (B, C, |G|, H, W), got {tuple(u.shape)}")
        return midpoint(u, None, 2, self.c, vector_dim=1, reduce=identity_reduce)


class GlobalPool(hyperbolic.GlobalMidpoint):
    """Reduce features (B, C, |G|, H, W) to their midpoint over orientations and pixels: an invariant point (B, C).

    Examples
    --------
    >>> import torch
    >>> GlobalPool(c=1.0)(torch.randn(1, 3, 4, 5, 5)).shape
    torch.Size([1, 3])
    """


__all__ = ["GlobalPool", "GroupPool", "JointOrientationBatchNorm2d", "MidpointPool2d"]
