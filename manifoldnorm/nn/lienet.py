"""Networks on sequences of three-dimensional rotations.

The layers are those of Huang, Wan, Probst and Van Gool, "Deep Learning on Lie Groups for Skeleton-Based Action
Recognition", CVPR 2017. Rotations have shape (batch, frames, joints, 3, 3).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from manifoldnorm.linalg.precision import statistics_dtype, without_autocast
from manifoldnorm.linalg.rotation3 import rotation_from_vector, vector_from_rotation
from manifoldnorm.manifolds.base import check_points
from manifoldnorm.manifolds.checks import require_layer_dtype, require_real_tensor
from manifoldnorm.manifolds.rotations import Rotations
from manifoldnorm.nn.domain_layers import refit_layers, run_layers


class RotMap(nn.Module):
    """Multiplies the rotation of each joint from the left by a learned rotation.

    The parameter is unconstrained, the rotation its exponential, so that any optimizer is right for it.

    Parameters
    ----------
    joints : int
        Number of joints.
    std : float
        Standard deviation of the initial rotation vectors; 0 starts at the identity.
    generator : torch.Generator, optional
        For the initial rotation vectors.
    device, dtype
        Of the parameter.

    Attributes
    ----------
    weight : Parameter
        Rotation vectors of shape (joints, 3).

    Examples
    --------
    >>> layer = RotMap(20)
    >>> layer(torch.eye(3).expand(8, 16, 20, 3, 3)).shape
    torch.Size([8, 16, 20, 3, 3])
    """

    def __init__(
        self,
        joints: int,
        *,
        std: float = 0.1,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if joints < 1 or not std >= 0:
            raise ValueError(f"joints must be positive and std not negative, got {joints} and {std}")
        self.joints = joints
        noise = std * torch.randn(joints, 3, generator=generator, dtype=torch.float64)
        self.weight = nn.Parameter(noise.to(device=device, dtype=dtype or torch.get_default_dtype()))

    def forward(self, x: Tensor) -> Tensor:
        """Rotate; shape (..., joints, 3, 3)."""
        if x.shape[-3:] != (self.joints, 3, 3):
            raise ValueError(f"x must have shape (..., {self.joints}, 3, 3), got {tuple(x.shape)}")
        with without_autocast(x):
            dtype = statistics_dtype(x)
            return (rotation_from_vector(self.weight.to(dtype)) @ x.to(dtype)).to(x.dtype)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"joints={self.joints}"


class RotPool(nn.Module):
    """Keeps, of neighbouring frames, the rotation with the largest angle.

    Parameters
    ----------
    frames : int
        Number of neighbouring frames in a group; a last, shorter group is dropped.

    Examples
    --------
    >>> RotPool(2)(torch.eye(3).expand(8, 16, 20, 3, 3)).shape
    torch.Size([8, 8, 20, 3, 3])
    """

    def __init__(self, frames: int) -> None:
        super().__init__()
        if frames < 1:
            raise ValueError(f"frames must be positive, got {frames}")
        self.frames = frames

    def forward(self, x: Tensor) -> Tensor:
        """Pool along the second dimension of (batch, frames, joints, 3, 3)."""
        if x.ndim != 5 or x.shape[1] < self.frames:
            raise ValueError(
                f"x must have shape (batch, frames, joints, 3, 3) with at least {self.frames} frames, "
                f"got {tuple(x.shape)}"
            )
        count = x.shape[1] // self.frames
        groups = x[:, : count * self.frames].unflatten(1, (count, self.frames))
        # The angle grows as the trace falls.
        traces = torch.diagonal(groups.detach(), dim1=-2, dim2=-1).sum(-1)
        index = traces.argmin(2, keepdim=True)[..., None, None]
        return torch.gather(groups, 2, index.expand(*index.shape[:-2], 3, 3)).squeeze(2)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"frames={self.frames}"


class LogRot(nn.Module):
    """Maps rotations (..., 3, 3) to their rotation vectors (..., 3).

    On the CPU a matrix that is not a rotation is an error that names it; elsewhere it is taken for the nearest one.

    Examples
    --------
    >>> LogRot()(torch.eye(3))
    tensor([0., 0., 0.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Take logarithms."""
        check_points(Rotations(), x)
        return vector_from_rotation(x)


class LieNet(nn.Module):
    """Classifier of rotation sequences: RotMap, batch norm and RotPool blocks, then LogRot and a linear layer.

    Parameters
    ----------
    joints, frames : int
        Number of joints, and of frames in a sequence.
    classes : int
        Number of classes.
    pools : sequence of int
        For each block, the number of frames that its pooling joins.
    norm : callable, optional
        Makes a batch norm for a given number of joints, such as
        `lambda joints: LieBatchNorm(Rotations(), (joints, 3, 3))`, which has statistics for each joint over batch and
        frames; none by default.
    generator : torch.Generator, optional
        For the initial weights of the RotMaps.
    device, dtype
        Of the parameters; give the norm the same.

    Examples
    --------
    >>> from manifoldnorm.manifolds.rotations import Rotations
    >>> from manifoldnorm.nn import LieBatchNorm
    >>> net = LieNet(4, 16, 5, norm=lambda joints: LieBatchNorm(Rotations(), (joints, 3, 3), mean_steps=2))
    >>> net(Rotations().random(6, 16, 4, 3, 3)).shape
    torch.Size([6, 5])
    """

    def __init__(
        self,
        joints: int,
        frames: int,
        classes: int,
        *,
        pools: Sequence[int] = (2, 2),
        norm: Callable[[int], nn.Module] | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if isinstance(norm, nn.Module):
            raise TypeError(f"norm must be a function from the number of joints to a batch norm, got {norm}")
        layers: list[nn.Module] = []
        for pool in pools:
            layers.append(RotMap(joints, generator=generator, device=device, dtype=dtype))
            if norm is not None:
                layers.append(norm(joints))
            layers.append(RotPool(pool))
            frames //= pool
        if frames < 1:
            raise ValueError(
                f"the pools {tuple(pools)} join more frames than there are; give fewer or longer sequences"
            )
        self.layers = nn.ModuleList(layers)
        self.logarithm = LogRot()
        self.head = nn.Linear(frames * joints * 3, classes, device=device, dtype=dtype)

    def features(self, x: Tensor, domain: Hashable | Iterable[Hashable] | Tensor | None = None) -> Tensor:
        """Return the vectors that the linear layer sees."""
        require_real_tensor(x, "input")
        require_layer_dtype(x, self.head.weight.dtype)
        check_points(Rotations(), x)
        return cast("Tensor", self.logarithm(run_layers(self.layers, x, domain))).flatten(1)

    def forward(self, x: Tensor, domain: Hashable | Iterable[Hashable] | Tensor | None = None) -> Tensor:
        """Compute class scores of sequences (batch, frames, joints, 3, 3); `domain` is for a `DomainBatchNorm`."""
        return cast("Tensor", self.head(self.features(x, domain).to(self.head.weight.dtype)))

    def refit(self, x: Tensor, domain: Hashable | None = None) -> None:
        """Replace the running statistics of all batch norms by those of unlabelled sequences; see `SPDNet.refit`."""
        refit_layers(self, self.layers, x, domain)
