"""What the fused hyperbolic functions share: points as columns, passes over their coordinates, radial functions.

Points are columns here: u has shape (N, n, P), a number per point (N, 1, P). Radial functions use one formula for all
arguments. Where its derivative cancels, near zero, it meets a factor that is as small, so errors stay at round-off; at
zero itself it is exact, because arguments are kept at or above a tiny positive floor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg.functions import BatchedFunction
from manifoldnorm.manifolds import poincare_maps as maps

# rho^2 of the origin: rho / sinh(rho) is exactly one there, and no quotient overflows.
COINCIDENT = 1e-290


def to_columns(u: Tensor) -> Tensor:
    """View points (..., n) as (N, n, P), without a copy when they are a channels-first image seen channels-last."""
    if u.ndim <= 2:
        return u.reshape(-1, u.shape[-1]).mT.unsqueeze(0)
    return u.movedim(-1, 1).flatten(2)


def from_columns(x: Tensor, like: Tensor) -> Tensor:
    """Invert `to_columns`; `like` has the original shape."""
    if like.ndim <= 2:
        return x.squeeze(0).mT.reshape(like.shape)
    return x.unflatten(2, like.shape[1:-1]).movedim(1, -1)


# Passes over the coordinates; `exact` are points in float64.


def products(basis: Tensor, exact: Tensor) -> tuple[Tensor, ...]:
    """Return <m_i, u>, each of shape (N, 1, P), for vectors m_i that are the rows of `basis` and float64 points."""
    return torch.bmm(basis.expand(len(exact), -1, -1), exact).split(1, 1)


def products_with(u: Tensor, basis: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return <u, g>, <m, g> and <b, g>, computed in the dtype of g, for the rows m and b of `basis`."""
    with_mean, with_bias = torch.bmm(basis.to(g.dtype).expand(len(g), -1, -1), g).split(1, 1)
    return maps.dot(u, g, 1), with_mean, with_bias


def outer(weights: Sequence[Tensor], exact: Tensor) -> Tensor:
    """Return the sums over float64 points of weight_i u, shape (i, n)."""
    return torch.bmm(_side_by_side(weights).double(), exact.mT).sum(0)


def combine(terms: Sequence[tuple[Tensor, Tensor]], weights: Sequence[Tensor], vectors: Tensor) -> Tensor:
    """Return sum_j scale_j u_j + sum_i weight_i m_i in the dtype of u.

    Parameters
    ----------
    terms : sequence of (scale, u)
        Numbers per point and points.
    weights : sequence of Tensor
        Numbers per point.
    vectors : Tensor
        The m_i as rows.
    """
    (scale, u), *more = terms
    moved = u * scale.to(u.dtype)
    for other_scale, other in more:
        moved.addcmul_(other, other_scale.to(u.dtype))
    columns = vectors.to(u.dtype).mT.expand(len(u), -1, -1)
    return moved.baddbmm_(columns, _side_by_side(weights).to(u.dtype))


def _side_by_side(weights: Sequence[Tensor]) -> Tensor:
    return weights[0] if len(weights) == 1 else torch.cat(list(weights), 1)


def total(x: Tensor, y: Tensor) -> Tensor:
    """Return the sum of the products of two tensors of one shape."""
    return torch.dot(x.flatten(), y.flatten())


def differentiate(function: Callable[..., Any], inputs: tuple[Tensor, ...], gradients: Any) -> tuple[Any, ...]:
    """Differentiate `function` by autograd so that the result can be differentiated again."""
    # Aliases, since one input may depend on another.
    aliases = [t.view_as(t) for t in inputs]
    needed = [t for t in aliases if t.requires_grad]
    found = iter(torch.autograd.grad(function(*aliases), needed, gradients, create_graph=True))
    return tuple(next(found) if t.requires_grad else None for t in inputs)


# Radial functions.


def positive(q: Tensor) -> Tensor:
    """Keep above a floor whose square root and square root's reciprocal are far from the ends of the dtype."""
    return q.clamp_min(torch.finfo(q.dtype).tiny ** 0.5)


def stretch_time(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return sinh(rho)/rho and cosh(rho) of q = rho^2."""
    rho = positive(q).sqrt_()
    return torch.sinh(rho).div_(rho), rho.cosh_()


def stretch_time_gradient(q: Tensor, stretch: Tensor, time: Tensor, by_stretch: Tensor, by_time: Tensor) -> Tensor:
    """Differentiate `stretch_time` by q."""
    return (time - stretch).div_(positive(q)).mul_(by_stretch).addcmul_(stretch, by_time).mul_(0.5)


class _StretchTime(BatchedFunction):
    @staticmethod
    def forward(q: Tensor) -> tuple[Tensor, Tensor]:
        return stretch_time(q)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, by_stretch: Tensor, by_time: Tensor) -> Tensor:
        q, stretch, time = ctx.saved_tensors
        if torch.is_grad_enabled():
            exact = maps.sinhc_of_square(q), maps.cosh_of_square(q)
            return torch.autograd.grad(exact, q, (by_stretch, by_time), create_graph=True)[0]
        return stretch_time_gradient(q, stretch, time, by_stretch, by_time)


def stretch_and_time(q: Tensor) -> tuple[Tensor, Tensor]:
    """Do what `stretch_time` does, differentiably; faster than the power series of `poincare_maps`."""
    stretch, time = _StretchTime.call(q)
    return stretch, time
