"""The sphere residual and its gradient in blocks of rows, so that all temporaries stay in the cache.

Composed of ordinary operations on the whole tensor the forward pass moves 25 and forward with backward 53 times the
size of x through memory; in blocks it is the 3 and 8 that the inputs and results need. With the notation of
`sphere_update.turn_plain`, x' = A x + B w for w = m u, A = c - q a, B = q. For an upstream gradient g let S = <g, x>,
V = <g, v> and L = S dc/dtau + m V dq/dtau, the derivative by tau. Then

    k1 = -(q S + 2 a (2 - |x|^2 / R^2) L) / R^2,    k2 = 2 L / R^2,    k3 = 2 a^2 L / R^2,
    dx = A g + k1 w + k3 x,    dw = B g + k2 w + k1 x,    dm = q V + 2 m tau0 L,

where a and tau belong to w, tau0 to u; this holds off the sphere too. Then du = m dw, less dm m / |u|^2 u where
m = step R / |u|.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg.precision import statistics_dtype
from manifoldnorm.linalg.rotation import (
    turning_coefficient_derivatives,
    turning_coefficients,
    turning_coefficients_of_length,
)

# An update whose tangent part is below this many rounding errors of its radial part is parallel to x.
PARALLEL = 8.0

# Size of a block for each thread. Four (forward) to six blocks are in use at a time: larger ones leave the cache,
# smaller ones cost more in calls.
_BLOCK_BYTES = 3 << 19


class Turn(NamedTuple):
    """The settings of the map: family parameter p, radius R, and the floor of |u| when the update is normalised."""

    p: float
    radius: float
    floor: float | None


def _block_rows(x: Tensor) -> int:
    """Return how many rows a block has; all of them where kernels cost more to launch than memory to pass."""
    if x.device.type != "cpu":
        return max(1, x.shape[0])
    row_bytes = x.shape[-1] * statistics_dtype(x).itemsize
    return max(8, _BLOCK_BYTES * torch.get_num_threads() // row_bytes)


def _step_rows(step: Tensor | float, batch: torch.Size, dtype: torch.dtype) -> Tensor | float:
    """Return a number or scalar tensor as it is, else one value a row, shape (rows, 1)."""
    if not isinstance(step, Tensor):
        return step
    step = step.to(dtype)
    return step.expand(batch).reshape(-1, 1) if step.ndim else step


def _split(tensor: Tensor, rows: int) -> Sequence[Tensor]:
    """Split into blocks, at no cost when there is one."""
    return (tensor,) if tensor.shape[0] <= rows else tensor.split(rows)


def _split_step(step: Tensor | float, count: int, rows: int) -> Sequence[Tensor | float]:
    return _split(step, rows) if isinstance(step, Tensor) and step.ndim else [step] * count


class _Buffers:
    """Memory for one block, used again for every block; None where the tensors need no conversion."""

    def __init__(self, x: Tensor, rows: int, names: int) -> None:
        dtype = statistics_dtype(x)
        self.convert = x.dtype != dtype
        self.product = torch.empty(rows, x.shape[-1], dtype=dtype, device=x.device)
        self.wide = [torch.empty_like(self.product) for _ in range(names if self.convert else 0)]

    def load(self, index: int, block: Tensor) -> Tensor:
        """Return a block in the working dtype."""
        return self.wide[index][: block.shape[0]].copy_(block) if self.convert else block

    def target(self, index: int, block: Tensor) -> Tensor:
        """Return the memory in which a block of the result is built."""
        return self.wide[index][: block.shape[0]] if self.convert else block

    def store(self, value: Tensor, block: Tensor) -> None:
        """Put the finished block where it belongs."""
        if self.convert:
            block.copy_(value)


def turn_rows(x: Tensor, u: Tensor, step: Tensor | float, turn: Turn) -> tuple[Tensor, Tensor]:
    """Compute the residual and what its gradient needs.

    Parameters
    ----------
    x, u : Tensor
        Shape (..., d), one shape and dtype.
    step : Tensor or float
        A tensor broadcasts against the batch shape.
    turn : Turn
        The settings.

    Returns
    -------
    moved : Tensor
        Shape (..., d), dtype of `x`.
    scalars : Tensor
        Shape (2, ...) or, when the update is normalised, (3, ...), at least float32: <u, x>, |v| and |u|.
    """
    dtype, batch, d = statistics_dtype(x), x.shape[:-1], x.shape[-1]
    flat_x, flat_u = x.reshape(-1, d), u.reshape(-1, d)
    count = flat_x.shape[0]
    moved = torch.empty(count, d, dtype=x.dtype, device=x.device)
    scalars = torch.empty(2 if turn.floor is None else 3, count, 1, dtype=dtype, device=x.device)
    rows = min(_block_rows(flat_x), max(1, count))
    parts = [_split(t, rows) for t in (flat_x, flat_u, moved, *scalars)]
    steps = _split_step(_step_rows(step, batch, dtype), len(parts[0]), rows)
    buffers = _Buffers(x, rows, 3)
    for block, factor in zip(zip(*parts), steps):
        _forward_block(block, factor, turn, buffers)
    return moved.view(x.shape), scalars.view(scalars.shape[0], *batch)


def _forward_block(block: tuple[Tensor, ...], step: Tensor | float, turn: Turn, buffers: _Buffers) -> None:
    """Fill one block of the result and of the scalars."""
    x, u = buffers.load(0, block[0]), buffers.load(1, block[1])
    y_part, dot, length, *norm = block[2:]
    product = torch.mul(x, u, out=buffers.product[: x.shape[0]])
    torch.sum(product, -1, keepdim=True, out=dot)
    tangent = torch.addcmul(u, dot, x, value=-1 / turn.radius**2, out=product)
    torch.linalg.vector_norm(tangent, dim=-1, keepdim=True, out=length)
    if turn.floor is not None:
        torch.linalg.vector_norm(u, dim=-1, keepdim=True, out=norm[0])
        step = norm[0].clamp_min(turn.floor).reciprocal_().mul_(step * turn.radius)
    cosine, ratio = turning_coefficients_of_length(length * (step / turn.radius), turn.p)
    # Nothing but round-off is left of the tangent part: stay, bit for bit.
    stays = length <= dot.abs().mul_(PARALLEL * torch.finfo(dot.dtype).eps / turn.radius)
    y = torch.mul(x, cosine.masked_fill_(stays, 1.0), out=buffers.target(2, y_part))
    y.addcmul_(tangent, (ratio * step).masked_fill_(stays, 0.0))
    buffers.store(y, y_part)


class _RowFactors(NamedTuple):
    """Everything about a row that does not depend on the upstream gradient, shape (rows, 1) each."""

    radial: Tensor
    straight: Tensor
    ratio: Tensor
    ratio_m: Tensor
    minus_ratio: Tensor
    d_cosine: Tensor
    m_d_ratio: Tensor
    cross: Tensor
    cross_per_norm2: Tensor
    k2_m2: Tensor
    k3: Tensor
    m: Tensor
    twice_m_tau: Tensor
    per_step: Tensor
    m_over_norm2: Tensor


def _row_factors(scalars: Tensor, step: Tensor | float, turn: Turn) -> _RowFactors:
    """Compute the coefficients of all rows at once: there are few of them."""
    inverse = 1 / turn.radius**2
    dot, length = scalars[0], scalars[1]
    radial, length2 = dot * inverse, length * length * inverse
    if turn.floor is None:
        per_step = torch.ones_like(radial)
        m = per_step * step
        m_over_norm2 = torch.zeros_like(m)
    else:
        clamped = scalars[2].clamp_min(turn.floor)
        per_step = turn.radius / clamped
        m = per_step * step
        m_over_norm2 = torch.where(scalars[2] > turn.floor, m / (clamped * clamped), 0.0)
    a, tau = radial * m, length2 * m * m
    cosine, ratio = turning_coefficients(tau, turn.p)
    d_cosine, d_ratio = turning_coefficient_derivatives(tau, cosine, ratio, turn.p)
    return _RowFactors(
        radial=radial,
        straight=cosine - ratio * a,
        ratio=ratio,
        ratio_m=ratio * m,
        minus_ratio=-inverse * ratio,
        d_cosine=d_cosine,
        m_d_ratio=m * d_ratio,
        cross=-4 * inverse * a,
        cross_per_norm2=2 * inverse**2 * a,
        k2_m2=2 * inverse * m * m,
        k3=2 * inverse * a * a,
        m=m,
        twice_m_tau=2 * m * length2,
        per_step=per_step,
        m_over_norm2=m_over_norm2,
    )


def turn_rows_gradient(
    gradient: Tensor, x: Tensor, u: Tensor, step: Tensor | float, scalars: Tensor, turn: Turn
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients by x, by u, and by the step of every row, from what `turn_rows` returned.

    Parameters
    ----------
    gradient, x, u : Tensor
        Shape (..., d).
    step : Tensor or float
        As in the forward pass.
    scalars : Tensor
        Shape (2, ...) or (3, ...).
    turn : Turn
        The settings.

    Returns
    -------
    by_x, by_u : Tensor
        Shape (..., d), dtype of `x`.
    by_step : Tensor
        The batch shape, at least float32.
    """
    dtype, batch, d = statistics_dtype(x), x.shape[:-1], x.shape[-1]
    flat = [t.reshape(-1, d) for t in (gradient, x, u)]
    count = flat[0].shape[0]
    by_x = torch.empty(count, d, dtype=x.dtype, device=x.device)
    by_u = torch.empty_like(by_x)
    by_step = torch.empty(count, 1, dtype=dtype, device=x.device)
    factors = _row_factors(scalars.reshape(scalars.shape[0], count, 1), _step_rows(step, batch, dtype), turn)
    rows = min(_block_rows(by_x), max(1, count))
    buffers = _Buffers(x, rows, 5)
    blocks = zip(*(_split(t, rows) for t in (*flat, by_x, by_u, by_step)))
    for block, row in zip(blocks, zip(*(_split(factor, rows) for factor in factors))):
        _gradient_block(block, _RowFactors(*row), turn.floor is not None, buffers)
    return by_x.view(x.shape), by_u.view(x.shape), by_step.view(batch)


def _gradient_block(block: tuple[Tensor, ...], row: _RowFactors, normalized: bool, buffers: _Buffers) -> None:
    """Fill one block of the three gradients."""
    g, x, u = (buffers.load(i, part) for i, part in enumerate(block[:3]))
    x_part, u_part, step_part = block[3:]
    product = buffers.product[: g.shape[0]]
    s = torch.mul(g, x, out=product).sum(-1, keepdim=True)
    v = torch.mul(g, u, out=product).sum(-1, keepdim=True).addcmul_(row.radial, s, value=-1)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    by_tau = (s * row.d_cosine).addcmul_(v, row.m_d_ratio)
    # |x|^2 is R^2 but for rows off the sphere, whose gradient must be right as well.
    k1 = torch.addcmul(row.cross, row.cross_per_norm2, norm.square_())
    k1_m = k1.mul_(by_tau).addcmul_(s, row.minus_ratio).mul_(row.m)
    by_m = (v * row.ratio).addcmul_(row.twice_m_tau, by_tau)
    torch.mul(by_m, row.per_step, out=step_part)

    by_x = torch.mul(g, row.straight, out=buffers.target(3, x_part))
    by_x.addcmul_(u, k1_m).addcmul_(x, by_tau * row.k3)
    buffers.store(by_x, x_part)

    along_u = by_tau * row.k2_m2
    if normalized:
        along_u.addcmul_(by_m, row.m_over_norm2, value=-1)
    by_u = torch.mul(g, row.ratio_m, out=buffers.target(4, u_part))
    by_u.addcmul_(u, along_u).addcmul_(x, k1_m)
    buffers.store(by_u, u_part)
