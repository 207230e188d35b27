"""Fixed points of a hyperbolic batch norm, its means and its bias: between charts, and between two points."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.poincare_columns import COINCIDENT
from manifoldnorm.manifolds.poincare_numbers import Radii, radii_gradient, radii_of


class FixedPoint(NamedTuple):
    """A fixed point: log coordinates and their radii, spatial hyperboloid coordinates and time."""

    log: Tensor
    radii: Radii
    spatial: Tensor
    time: Tensor


def fixed_point(log: Tensor, k: Tensor) -> FixedPoint:
    """Convert log coordinates (n,), cut as their dtype asks."""
    exact = log.double()
    radii = radii_of(k * torch.dot(exact, exact), log.dtype)
    return FixedPoint(exact, radii, exact * radii.stretch, radii.time)


def fixed_point_gradient(p: FixedPoint, k: Tensor, dtype: torch.dtype, by_spatial: Tensor, by_time: Tensor) -> Tensor:
    """Return the gradient by the log coordinates."""
    by_square = radii_gradient(p.radii, torch.dot(by_spatial, p.log), by_time, dtype)
    return by_spatial * p.radii.stretch + 2 * k * by_square * p.log


def log_coordinates(spatial: Tensor, k: Tensor) -> Tensor:
    """Convert spatial hyperboloid coordinates to log coordinates."""
    sinh = torch.sqrt((k * torch.dot(spatial, spatial)).clamp_min(COINCIDENT))
    return spatial * (maps.asinh(sinh) / sinh)


class Ends(NamedTuple):
    """Where points are moved from and to: spatial coordinates M, B as rows, times M0, B0, and k.

    In the dtype of the points: <M, B>, B0 and k.
    """

    basis: Tensor
    mean_time: Tensor
    bias_time: Tensor
    k: Tensor
    rounded: tuple[Tensor, Tensor, Tensor]


def ends_of(mean: Tensor, mean_time: Tensor, bias: FixedPoint, k: Tensor) -> Ends:
    """Put a mean, given by M and M0, and a bias together, for float32 points."""
    gram, dtype = torch.dot(mean, bias.spatial), torch.float32
    return Ends(
        torch.stack([mean, bias.spatial]), mean_time, bias.time, k, (gram.to(dtype), bias.time.to(dtype), k.to(dtype))
    )


@torch.no_grad()
def point_between(x: Tensor, y: Tensor, c: float | Tensor, t: Tensor | float) -> Tensor:
    """Compute x (+) t ((-x) (+) y) for two points (n,) in log coordinates, without gradients."""
    k = torch.as_tensor(4 * c, device=x.device).double()
    start, end = fixed_point(x, k), fixed_point(y, k)
    excess = (start.time * end.time - k * torch.dot(start.spatial, end.spatial) - 1).clamp_min_(COINCIDENT)
    sinh = (excess + 2).mul_(excess).sqrt_()
    rho = (excess + sinh).log1p_()
    spatial = (start.spatial * torch.sinh((1 - t) * rho)).addcmul_(end.spatial, torch.sinh(t * rho)).div_(sinh)
    return log_coordinates(spatial, k).to(x.dtype)
