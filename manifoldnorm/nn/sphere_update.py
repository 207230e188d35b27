"""The map behind residual streams on a sphere: turn x towards the tangent part of an update u."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg.precision import statistics_dtype
from manifoldnorm.linalg.rotation import turning_coefficients

# An update whose tangent part is below this many rounding errors of its radial part is parallel to x.
PARALLEL = 8.0


class Turn(NamedTuple):
    """The settings of the map: family parameter p, radius R, and the floor of |u| when the update is normalised."""

    p: float
    radius: float
    floor: float | None


def turn_plain(x: Tensor, u: Tensor, step: Tensor | float, turn: Turn) -> Tensor:
    """Compute c x + q m v with ordinary operations, which `torch.compile` fuses into one kernel.

    Here a = <u, x> / R^2, v = u - a x, m = step (times R / max(|u|, floor) when the update is normalised), and (c, q)
    are the `turning_coefficients` of m^2 |v|^2 / R^2. Differentiable to any order, zero updates included.

    Parameters
    ----------
    x, u : Tensor
        Shape (..., d), of one dtype; half precisions are computed in float32.
    step : Tensor or float
        A tensor broadcasts against the shape (..., 1).
    turn : Turn
        The settings.
    """
    dtype = x.dtype
    x, u = x.to(statistics_dtype(x)), u.to(statistics_dtype(u))
    square = turn.radius**2
    radial = (x * u).sum(-1, keepdim=True) / square
    tangent = u - radial * x
    length2 = (tangent * tangent).sum(-1, keepdim=True) / square
    if turn.floor is not None:
        step = step * (turn.radius * torch.rsqrt((u * u).sum(-1, keepdim=True).clamp_min(turn.floor**2)))
    cosine, ratio = turning_coefficients(length2 * step * step, turn.p)
    moved = cosine * x + (ratio * step) * tangent
    # Nothing but round-off is left of the tangent part: stay, bit for bit, but keep the derivative.
    parallel = length2 <= (PARALLEL * torch.finfo(x.dtype).eps * radial) ** 2
    return torch.where(parallel, x + (moved - moved.detach()), moved).to(dtype)
