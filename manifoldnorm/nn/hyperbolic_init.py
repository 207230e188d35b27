"""Initial values for the normals of hyperbolic layers, whose weights have shape (out, in, *window)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from manifoldnorm.manifolds import poincare_maps as maps


def beta_factor(point_size: int, fan_in: int) -> float:
    """Return the factor of beta concatenation of `fan_in` / `point_size` points to one of dimension `fan_in`."""
    return maps.beta_scale([point_size], fan_in)[0]


@torch.no_grad()
def variance_preserving_(
    weight: Tensor, point_size: int, *, gain: float = math.sqrt(2), generator: torch.Generator | None = None
) -> Tensor:
    """Fill with N(0, std^2), std = gain / (2 beta sqrt(fan_in)): features keep their length where space is nearly flat.

    The default gain makes up for a ReLU.
    """
    fan_in = weight[0].numel()
    std = gain / (2 * beta_factor(point_size, fan_in) * math.sqrt(fan_in))
    return weight.normal_(0, std, generator=generator)


@torch.no_grad()
def identity_(weight: Tensor, point_size: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Fill with zeros and 1/(2 beta) at the centre of the window: the identity where space is nearly flat.

    A weight of five dimensions (out, in, orientations, k, k) has it at the group's identity. It grows like sinh where
    space is curved, so it needs a batch norm, or a radial cut, behind it.
    """
    weight.zero_()
    fan_in = weight[0].numel()
    centre = (0,) * (weight.ndim == 5) + tuple(n // 2 for n in weight.shape[-2:]) if weight.ndim > 2 else ()
    for o in range(min(weight.shape[0], weight.shape[1])):
        weight[(o, o, *centre)] = 1 / (2 * beta_factor(point_size, fan_in))
    return weight


@torch.no_grad()
def hnn_plus_plus_(weight: Tensor, point_size: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Fill with N(0, 1 / (2 fan_in out)), as in "Hyperbolic neural networks++"; deep stacks collapse to the origin."""
    return weight.normal_(0, (2 * weight[0].numel() * weight.shape[0]) ** -0.5, generator=generator)


@torch.no_grad()
def eye_(weight: Tensor, point_size: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Fill with half the identity on the flattened inputs, as in the Poincaré ResNet; deep stacks shrink too."""
    flat = torch.zeros(weight.shape[0], weight[0].numel(), dtype=weight.dtype, device=weight.device)
    flat.fill_diagonal_(0.5)
    return weight.copy_(flat.view_as(weight))


INITIALIZERS: dict[str, Callable[..., Tensor]] = {
    "variance_preserving": variance_preserving_,
    "identity": identity_,
    "hnn++": hnn_plus_plus_,
    "eye": eye_,
}


def initializer(name: str) -> Callable[..., Tensor]:
    """Look an initialisation up by name; ValueError lists the names."""
    if name not in INITIALIZERS:
        raise ValueError(f"init must be one of {sorted(INITIALIZERS)}, got {name!r}")
    return INITIALIZERS[name]
