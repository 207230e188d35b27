"""Residual networks that are equivariant up to an invariant head."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from manifoldnorm.equivariant.convolution import PoincareGroupConv2d, PoincareLiftingConv2d
from manifoldnorm.equivariant.groups import PlanarGroup
from manifoldnorm.equivariant.layers import GlobalPool, JointOrientationBatchNorm2d, MidpointPool2d
from manifoldnorm.nn.curvature import Curvature
from manifoldnorm.nn.hyperbolic import FromEuclidean, MobiusResidual, PoincareMLR, PoincareReLU


class PoincareBasicBlock(nn.Module):
    """Two 3x3 group convolutions with batch norms, added to the stream by Moebius addition, then ReLU.

    Parameters
    ----------
    in_channels, out_channels : int
        Where they differ the stream passes a 1x1 group convolution with a batch norm.
    group : PlanarGroup
        The symmetry.
    c : float or Curvature
        The curvature is -c.
    average, form : str
        Of the batch norms; see `manifoldnorm.nn.PoincareBatchNorm`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        group: PlanarGroup,
        c: float | Curvature = 1.0,
        average: str = "midpoint",
        form: str = "gyro",
    ) -> None:
        super().__init__()

        def convolution(inputs: int, kernel_size: int) -> nn.Sequential:
            return nn.Sequential(
                PoincareGroupConv2d(
                    inputs, out_channels, kernel_size, padding=kernel_size // 2, group=group, c=c, bias=False
                ),
                JointOrientationBatchNorm2d(out_channels, group=group, c=c, average=average, form=form),
            )

        self.branch = nn.Sequential(convolution(in_channels, 3), PoincareReLU(), convolution(out_channels, 3))
        self.shortcut = nn.Identity() if in_channels == out_channels else convolution(in_channels, 1)
        self.residual, self.relu = MobiusResidual(c), PoincareReLU()

    def forward(self, u: Tensor) -> Tensor:
        """Map log coordinates (B, in_channels, |G|, H, W) to (B, out_channels, |G|, H, W)."""
        output: Tensor = self.relu(self.residual(self.shortcut(u), self.branch(u)))
        return output


class EquivariantPoincareResNet(nn.Module):
    """A Poincaré residual network whose class scores do not change when the image is turned (C4) or reflected too (D4).

    The image is read as log coordinates and lifted to |G| orientations; stages of `PoincareBasicBlock` follow, each but
    the first behind a 2x2 midpoint pooling; the midpoint over orientations and pixels is an invariant point, which
    hyperbolic hyperplanes classify.

    Parameters
    ----------
    in_channels, num_classes : int
        Of the image and the scores.
    group : PlanarGroup
        `CyclicGroup4()`, `DihedralGroup4()`, or `TrivialGroup()` for an ordinary Poincaré ResNet.
    widths : sequence of int
        Channels (per orientation) of the stages.
    depths : sequence of int
        Blocks of the stages.
    c : float or Curvature
        The curvature is -c; give a `Curvature` to learn one for all layers.
    stem : str
        "small": a 3x3 convolution at full resolution. "imagenet": 8x8 with stride 2 and padding 3, then 2x2 midpoint
        pooling (7x7 with stride 2 would keep equivariance for odd sizes only).
    average, form : str
        Of the batch norms; see `manifoldnorm.nn.PoincareBatchNorm`.

    Raises
    ------
    ValueError
        For an image side that `size_multiple` does not divide; the message gives sides that work.

    Notes
    -----
    Not equivariant: other angles, shifts of less than a pixel, rescaling. Our own construction; the blocks are those of
    van Spengler, Berkhout and Mettes, "Poincaré ResNet" (ICCV 2023), with the vector axis made explicit. Durrant,
    Baburajan and Leontidis (2026) propose equivariant Poincaré ResNets too; nothing here claims to be their design.

    Examples
    --------
    >>> import torch
    >>> from manifoldnorm.equivariant import CyclicGroup4
    >>> model = EquivariantPoincareResNet(1, 10, group=CyclicGroup4(), widths=(4, 8), depths=(1, 1), c=0.1)
    >>> x = torch.randn(2, 1, 8, 8)
    >>> model.eval()(x).shape
    torch.Size([2, 10])
    >>> bool(torch.allclose(model(x), model(torch.rot90(x, 1, (-2, -1))), atol=1e-4))
    True
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        *,
        group: PlanarGroup,
        widths: Sequence[int] = (16, 32, 64),
        depths: Sequence[int] = (2, 2, 2),
        c: float | Curvature = 0.1,
        stem: str = "small",
        average: str = "midpoint",
        form: str = "gyro",
    ) -> None:
        super().__init__()
        if len(widths) != len(depths) or not widths or min(*widths, *depths) < 1:
            raise ValueError(
                f"widths and depths must be equally long lists of positive integers, got {widths}, {depths}"
            )
        if stem not in ("small", "imagenet"):
            raise ValueError(f'stem must be "small" or "imagenet", got {stem!r}')
        self.group = group
        self.size_multiple = 2 ** (len(widths) - 1) * (4 if stem == "imagenet" else 1)
        window = {"small": (3, 1, 1), "imagenet": (8, 2, 3)}[stem]
        layers: list[nn.Module] = [
            FromEuclidean(c),
            PoincareLiftingConv2d(
                in_channels,
                widths[0],
                window[0],
                stride=window[1],
                padding=window[2],
                group=group,
                c=c,
                bias=False,
            ),
            JointOrientationBatchNorm2d(widths[0], group=group, c=c, average=average, form=form),
            PoincareReLU(),
        ]
        if stem == "imagenet":
            layers.append(MidpointPool2d(2, c=c))
        self.stem = nn.Sequential(*layers)
        self.stages = nn.ModuleList()
        channels = widths[0]
        for stage, (width, depth) in enumerate(zip(widths, depths)):
            blocks: list[nn.Module] = [MidpointPool2d(2, c=c)] if stage else []
            for _ in range(depth):
                blocks.append(PoincareBasicBlock(channels, width, group=group, c=c, average=average, form=form))
                channels = width
            self.stages.append(nn.Sequential(*blocks))
        self.pool, self.head = GlobalPool(c), PoincareMLR(channels, num_classes, c=c)

    def features(self, x: Tensor) -> Tensor:
        """Compute the equivariant features of the last stage, log coordinates (B, C, |G|, H', W')."""
        if x.ndim != 4:
            raise ValueError(f"input must be images of shape (B, channels, H, W), got {tuple(x.shape)}")
        m = self.size_multiple
        if any(n % m or n == 0 for n in x.shape[-2:]):
            sides = ", ".join(f"{n}: {max(m, n // m * m)} or {(n // m + 1) * m}" for n in x.shape[-2:] if n % m)
            raise ValueError(
                f"image sides must be multiples of {m} so that every pooling tiles them, got {tuple(x.shape[-2:])}; "
                f"crop or pad (side {sides}), or use fewer stages"
            )
        u: Tensor = self.stem(x)
        for stage in self.stages:
            u = stage(u)
        return u

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, in_channels, H, W) to class scores (B, num_classes)."""
        scores: Tensor = self.head(self.pool(self.features(x)))
        return scores


__all__ = ["EquivariantPoincareResNet", "PoincareBasicBlock"]
