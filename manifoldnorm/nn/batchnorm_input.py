"""What a batch norm asks of its input, and how dimensions that it reduces come back."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manifoldnorm.linalg.functions import may_look_at
from manifoldnorm.manifolds import Manifold
from manifoldnorm.manifolds.checks import require_layer_dtype, require_tensor
from manifoldnorm.manifolds.mean import batch_dims


def check_batch(
    x: Tensor, ndim: int, shape: tuple[int, ...], reduce_dims: tuple[int, ...] | None, reference: Tensor | None
) -> tuple[int, ...]:
    """Return the dimensions to reduce, or raise for a wrong shape, dtype or device.

    Parameters
    ----------
    x : Tensor
        The input.
    ndim : int
        Number of event dimensions.
    shape : tuple of int
        Channels followed by the event shape.
    reduce_dims : tuple of int, optional
        The batch dimensions that are averaged; by default those in front of `shape`.
    reference : Tensor, optional
        A parameter or buffer whose device and dtype the input must have.
    """
    require_tensor(x, "input")
    event = shape[len(shape) - ndim :]
    channels = shape[: len(shape) - ndim]
    if x.ndim < len(shape) or tuple(x.shape[x.ndim - ndim :]) != event:
        listed = ", ".join(str(n) for n in shape)
        raise ValueError(f"input must have shape (*batch, {listed}), got {tuple(x.shape)}")
    batch_ndim = x.ndim - ndim
    dims = tuple(range(batch_ndim - len(channels))) if reduce_dims is None else batch_dims(reduce_dims, batch_ndim)
    kept = tuple(x.shape[d] for d in range(batch_ndim) if d not in dims)
    if kept != channels:
        raise ValueError(
            f"input of shape {tuple(x.shape)} keeps dimensions {kept} when {dims} are reduced, "
            f"but the layer's channels are {channels}"
        )
    if reference is not None:
        if x.device != reference.device:
            raise ValueError(f"input is on {x.device} but the layer is on {reference.device}; move one of them")
        require_layer_dtype(x, reference.dtype)
    return dims


def check_points(manifold: Manifold, x: Tensor, y: Tensor) -> None:
    """Raise for input `x` that is not on the manifold, or output `y` that is not finite.

    Looked for only where that costs no synchronisation.
    """
    if not may_look_at(x):
        return
    with torch.no_grad():
        finite = math.isfinite((torch.view_as_real(y) if y.is_complex() else y).sum().item())
        if finite and bool(manifold.is_plausible(x)):
            return
        manifold.assert_check_point_on_manifold(x, "input")
        if not finite:
            raise ValueError(
                "the output is not finite although every input is on the manifold; the points are too spread out "
                f"or too badly conditioned for {x.dtype}, or the layer's weight or bias is not finite"
            )


def raise_for_bad_points(manifold: Manifold, x: Tensor) -> None:
    """Name a point of the whole input; messages about a part of it count within the part."""
    if may_look_at(x):
        manifold.assert_check_point_on_manifold(x.detach(), "input")


def restore_front(y: Tensor, x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Undo `reduce_front(x, dims)`."""
    if dims == (0,):
        return y
    if not dims:
        return y.squeeze(0)
    return y.unflatten(0, [x.shape[d] for d in dims]).movedim(tuple(range(len(dims))), dims)
