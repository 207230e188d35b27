"""The sphere residual as `torch.compile` sees it: one kernel forward, one backward, each a single pass over memory.

Inductor keeps a row in the cache between reductions as long as every loop runs over whole rows. Two things would break
its loop into several passes, and are avoided: scalars of a row that are stored for the backward pass (it computes them
again, from rows that it reads anyway), and long chains of scalar arithmetic (sums over the row take their place).

With the notation of `sphere_update.turn_plain` and an upstream gradient g,

    z = m q g + k v,    k = 2 m^2 / R^2 sum g (c' x + m q' v),    P = sum z x / R^2,
    dx = c g - a z - P u,    du = z - P x, less (sum z v) / |u|^2 u where m = step R / |u|.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg.precision import statistics_dtype
from manifoldnorm.linalg.rotation import (
    turning_coefficient_derivatives,
    turning_coefficients,
    turning_coefficients_of_length,
)
from manifoldnorm.nn.sphere_rows import PARALLEL, Turn


def _sum(x: Tensor) -> Tensor:
    return x.sum(-1, keepdim=True)


def _coefficients(tau: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Compute the values of `turning_coefficients` in the fewest operations."""
    return turning_coefficients(tau, p) if p in (1, 2, 4) else turning_coefficients_of_length(torch.sqrt(tau), p)


def _per_step(norm2: Tensor, turn: Turn, floor: float) -> Tensor:
    """Compute m / step of a normalised update."""
    return turn.radius * torch.rsqrt(torch.where(norm2 < floor**2, floor**2, norm2))


class CompiledTurn(torch.autograd.Function):
    """`sphere_update.turn_plain` with a first derivative that fuses."""

    @staticmethod
    def forward(x: Tensor, u: Tensor, step: Tensor | float, turn: Turn) -> Tensor:
        """Compute the residual; a tensor `step` has shape () or (..., 1)."""
        dtype = x.dtype
        x, u = x.to(statistics_dtype(x)), u.to(statistics_dtype(u))
        step = step.to(x.dtype) if isinstance(step, Tensor) else step
        inverse = 1 / turn.radius**2
        radial = _sum(x * u * inverse)
        tangent = u - radial * x
        length2 = _sum(tangent * tangent * inverse)
        m = step if turn.floor is None else step * _per_step(_sum(u * u), turn, turn.floor)
        cosine, ratio = _coefficients(length2 * (m * m), turn.p)
        stays = length2 <= (PARALLEL * torch.finfo(x.dtype).eps * radial) ** 2
        return (torch.where(stays, 1.0, cosine) * x + torch.where(stays, 0.0, ratio * m) * tangent).to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save the inputs and nothing else."""
        x, u, step, ctx.turn = inputs
        ctx.step = None if isinstance(step, Tensor) else step
        ctx.save_for_backward(x, u, *((step,) if isinstance(step, Tensor) else ()))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients by x, u and step."""
        x, u, *more = ctx.saved_tensors
        step, turn = more[0] if more else ctx.step, ctx.turn
        dtype = x.dtype
        g, x, u = (t.to(statistics_dtype(x)) for t in (gradient, x, u))
        working_step = step.to(x.dtype) if isinstance(step, Tensor) else step
        inverse = 1 / turn.radius**2
        # Factors in another order than in the forward pass, or the two sums would be taken for one that is stored.
        radial = _sum(u * x * inverse)
        tangent = u - x * radial
        length2 = _sum(inverse * (tangent * tangent))
        norm2 = _sum(u * u * 1.0)
        per_step = 1.0 if turn.floor is None else _per_step(norm2, turn, turn.floor)
        m = per_step * working_step
        tau = length2 * (m * m)
        cosine, ratio = _coefficients(tau, turn.p)
        d_cosine, d_ratio = turning_coefficient_derivatives(tau, cosine, ratio, turn.p)
        weight = 2 * inverse * (m * m)
        k = _sum(g * ((weight * d_cosine) * x + (weight * m * d_ratio) * tangent))
        z = (ratio * m) * g + k * tangent
        along_x = _sum(z * x * inverse)
        by_x = cosine * g - radial * z - along_x * u
        by_u = z - along_x * x
        if turn.floor is not None:
            by_u = by_u - torch.where(norm2 > turn.floor**2, _sum(z * tangent) / norm2, 0.0) * u
        by_step = None
        if more and ctx.needs_input_grad[2]:
            along = ratio * _sum(g * tangent) + 2 * m * length2 * (
                d_cosine * _sum(g * x) + m * d_ratio * _sum(g * tangent)
            )
            by_step = (per_step * along).sum_to_size(step.shape).to(step.dtype)
        return by_x.to(dtype), by_u.to(dtype), by_step, None
