"""Stateless forms of the layers."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from manifoldnorm.linalg.precision import without_autocast
from manifoldnorm.linalg.rotation import check_turning_power
from manifoldnorm.manifolds.checks import default_tolerance
from manifoldnorm.nn.quantize import mxfp4_fake_quantize, nvfp4_fake_quantize
from manifoldnorm.nn.sphere_rows import Turn
from manifoldnorm.nn.sphere_update import turn

__all__ = ["OffSphere", "mxfp4_fake_quantize", "nvfp4_fake_quantize", "sphere_residual"]

OffSphere = Literal["keep", "project", "raise"]


def sphere_residual(
    x: Tensor,
    u: Tensor,
    p: float = 2.0,
    radius: float | None = None,
    step: Tensor | float = 1.0,
    *,
    normalize_update: bool = False,
    eps: float = 1e-3,
    off_sphere: OffSphere = "keep",
) -> Tensor:
    """Add an update to a residual stream that lives on a sphere, by a rotation.

    The tangent part v = u - <u, x> x / R^2 of the update has the length t = step |v| / R in units of the radius; x is
    turned towards v by the angle p atan(t / p). The norm is kept, whatever the update; a zero or parallel update leaves
    x as it is, bit for bit.

    Parameters
    ----------
    x : Tensor
        Points of the sphere of radius R, shape (..., d), any floating dtype.
    u : Tensor
        Updates, broadcastable with `x`, of the same dtype and device (under autocast the wider dtype is taken).
    p : float
        In (0, inf]: 1 metric projection (angle below pi / 2), 2 Cayley (below pi), `math.inf` exponential map. Beyond
        p = 2 a longer update can turn past the antipode and move x less.
    radius : float, optional
        R; sqrt(d) by default, so that x has a root mean square of 1.
    step : Tensor or float
        Factor of the update: a number, or a tensor that broadcasts against the batch shape of `x`, a scalar for
        instance.
    normalize_update : bool
        Scale the update to the length R first, as an RMSNorm does, so that t <= step.
    eps : float
        With `normalize_update`: an update whose root mean square is below `eps` times that of x (R / sqrt(d)) is
        divided by this floor instead of its own; the derivative at a zero update is thus at most 1 / eps.
    off_sphere : {"keep", "project", "raise"}
        What to do with a row of x whose norm is not R: nothing (it is not amplified: its norm tends to R over the
        layers), scale it to R (a zero row stays zero), or raise ValueError beyond the dtype's tolerance. The last one
        synchronises with the device.

    Returns
    -------
    Tensor
        Shape and dtype of `x`, broadcast with `u`.

    Raises
    ------
    ValueError
        For p or radius out of range, shapes that do not fit, tensors on different devices, or a row off the sphere
        with ``off_sphere="raise"``.
    TypeError
        For mixed or not floating dtypes.

    Notes
    -----
    SpheretNorm (arXiv:2608.02668); p = inf is GeoNorm (arXiv:2601.22095).

    Examples
    --------
    >>> x = torch.tensor([[1.0, 1.0]])
    >>> sphere_residual(x, torch.tensor([[1.0, -1.0]]), p=1.0)
    tensor([[1.4142, 0.0000]])
    """
    radius = _check_arguments(x, u, p, radius, step, eps, off_sphere)
    x, u = _common_dtype(x, u)
    settings = Turn(float(p), radius, eps * radius if normalize_update else None)
    with without_autocast(x):
        if off_sphere == "project":
            x = _scale_to(x, radius)
        elif off_sphere == "raise":
            _raise_off_sphere(x, radius)
        return turn(x, u, step, settings)


def _check_arguments(
    x: Tensor, u: Tensor, p: float, radius: float | None, step: Tensor | float, eps: float, off_sphere: str
) -> float:
    """Raise for arguments that make no sense; return the radius."""
    check_turning_power(p)
    if x.ndim == 0 or u.ndim == 0 or x.shape[-1] != u.shape[-1] or x.shape[-1] == 0:
        raise ValueError(f"x and u must have shape (..., d) with one d >= 1, got {tuple(x.shape)} and {tuple(u.shape)}")
    if x.device != u.device:
        raise ValueError(f"x and u must be on one device, got {x.device} and {u.device}; move one with .to")
    if radius is None:
        radius = math.sqrt(x.shape[-1])
    if not 0 < radius < math.inf:
        raise ValueError(f"radius must be positive and finite, got {radius}")
    if not 0 < eps < math.inf:
        raise ValueError(f"eps must be positive and finite, got {eps}")
    if off_sphere not in ("keep", "project", "raise"):
        raise ValueError(f'off_sphere must be "keep", "project" or "raise", got {off_sphere!r}')
    try:
        # The common case costs a comparison; torch's own function costs as much as a kernel of a small tensor.
        batch = x.shape[:-1] if x.shape == u.shape else torch.broadcast_shapes(x.shape[:-1], u.shape[:-1])
    except RuntimeError as error:
        raise ValueError(f"x and u must broadcast, got shapes {tuple(x.shape)} and {tuple(u.shape)}") from error
    if isinstance(step, Tensor):
        if step.device != x.device and step.ndim:
            raise ValueError(f"step must be on the device of x, {x.device}, got {step.device}")
        if step.ndim > len(batch) or any(s not in (1, b) for s, b in zip(reversed(step.shape), reversed(batch))):
            raise ValueError(f"step must broadcast against the batch shape {tuple(batch)}, got {tuple(step.shape)}")
    return float(radius)


def _common_dtype(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in one dtype: their own, or under autocast the wider one."""
    for name, tensor in (("x", x), ("u", u)):
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must have a real floating dtype, got {tensor.dtype}")
    if x.dtype == u.dtype:
        return x, u
    device = x.device.type
    if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
        raise TypeError(f"x and u must have one dtype, got {x.dtype} and {u.dtype}; convert one with .to")
    dtype = torch.promote_types(x.dtype, u.dtype)
    return x.to(dtype), u.to(dtype)


def _scale_to(x: Tensor, radius: float) -> Tensor:
    """Scale rows to the norm `radius`; zero rows stay zero."""
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    norm2 = (wide * wide).sum(-1, keepdim=True)
    positive = norm2 > 0
    factor = torch.where(positive, radius * torch.rsqrt(torch.where(positive, norm2, torch.ones_like(norm2))), 0.0)
    return (wide * factor).to(x.dtype)


def _raise_off_sphere(x: Tensor, radius: float) -> None:
    norm = torch.linalg.vector_norm(x.detach().double(), dim=-1)
    off = ~((norm / radius - 1).abs() <= default_tolerance(x.dtype))
    if off.any():
        index = tuple(int(i) for i in off.nonzero()[0])
        raise ValueError(
            f"x{list(index) if index else ''} must have norm {radius:.6g}, got {float(norm[index]):.6g}; "
            'scale the input to the sphere once, or pass off_sphere="project"'
        )
