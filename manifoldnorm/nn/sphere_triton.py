"""The sphere residual and its gradient as two Triton kernels: a row stays in registers, memory is passed once.

Imported only where a CUDA tensor meets an installed Triton. The formulas are those of `sphere_compiled`, the contract
is that of `sphere_rows.turn_rows` and `turn_rows_gradient`. Scalars travel as float32, so float64 is left to those.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from manifoldnorm.nn.sphere_rows import PARALLEL, Turn

DTYPES = (torch.float16, torch.bfloat16, torch.float32)

# One program holds a row; longer ones would spill out of the registers.
LONGEST_ROW = 16384

_GENERAL, _PROJECTION, _CAYLEY, _EXPONENTIAL = 0, 1, 2, 3


@triton.jit
def _coefficients(length, p, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return cos(theta) and sin(theta) / t; comparisons instead of maxima, which would hide NaN."""
    if KIND == 1:
        secant2 = 1.0 + length * length
        cosine = tl.sqrt(secant2) / secant2
        ratio = cosine
    elif KIND == 2:
        quarter = length * length * 0.25
        ratio = 1.0 / (1.0 + quarter)
        cosine = (1.0 - quarter) * ratio
    else:
        t = tl.where(length < 1e-30, 1e-30, length)
        if KIND == 3:
            angle = t
        else:
            # The zero factor turns an overflow into NaN.
            angle = p * libdevice.atan(t / p) + 0.0 * t
        cosine = tl.cos(angle)
        ratio = tl.sin(angle) / t
    return cosine, ratio


@triton.jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    u_ptr,
    step_ptr,
    y_ptr,
    dot_ptr,
    length_ptr,
    norm_ptr,
    d,
    step_value,
    step_stride,
    p,
    radius,
    inverse,
    floor,
    roundoff,
    KIND: tl.constexpr,
    NORMALIZE: tl.constexpr,
    STEP_TENSOR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < d
    x = tl.load(x_ptr + row * d + columns, mask=mask, other=0.0).to(tl.float32)
    u = tl.load(u_ptr + row * d + columns, mask=mask, other=0.0).to(tl.float32)
    m = step_value
    if STEP_TENSOR:
        m = tl.load(step_ptr + row * step_stride).to(tl.float32)
    dot = tl.sum(x * u, axis=0)
    v = u - (dot * inverse) * x
    length = tl.sqrt(tl.sum(v * v, axis=0))
    if NORMALIZE:
        norm = tl.sqrt(tl.sum(u * u, axis=0))
        m = m * radius / tl.where(norm < floor, floor, norm)
        tl.store(norm_ptr + row, norm)
    cosine, ratio = _coefficients(length * m / radius, p, KIND)
    stays = length <= roundoff * tl.abs(dot)
    cosine = tl.where(stays, 1.0, cosine)
    ratio = tl.where(stays, 0.0, ratio * m)
    tl.store(y_ptr + row * d + columns, (cosine * x + ratio * v).to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(dot_ptr + row, dot)
    tl.store(length_ptr + row, length)


@triton.jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    g_ptr,
    x_ptr,
    u_ptr,
    step_ptr,
    dot_ptr,
    length_ptr,
    norm_ptr,
    by_x_ptr,
    by_u_ptr,
    by_step_ptr,
    d,
    step_value,
    step_stride,
    p,
    radius,
    inverse,
    floor,
    KIND: tl.constexpr,
    NORMALIZE: tl.constexpr,
    STEP_TENSOR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < d
    g = tl.load(g_ptr + row * d + columns, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + row * d + columns, mask=mask, other=0.0).to(tl.float32)
    u = tl.load(u_ptr + row * d + columns, mask=mask, other=0.0).to(tl.float32)
    m = step_value
    if STEP_TENSOR:
        m = tl.load(step_ptr + row * step_stride).to(tl.float32)
    radial = tl.load(dot_ptr + row) * inverse
    length = tl.load(length_ptr + row)
    per_step = 1.0
    along_u = 0.0
    if NORMALIZE:
        norm = tl.load(norm_ptr + row)
        per_step = radius / tl.where(norm < floor, floor, norm)
        m = m * per_step
        along_u = tl.where(norm > floor, m / (norm * norm), 0.0)
    v = u - radial * x
    t = length * m / radius
    cosine, ratio = _coefficients(t, p, KIND)
    tau = t * t
    h = 1.0
    if KIND != 3:
        h = 1.0 / (1.0 + tau / (p * p))
    d_cosine = -0.5 * ratio * h
    # It cancels for small tau, but then it is multiplied by tau.
    d_ratio = (cosine * h - ratio) / (2.0 * tl.where(tau < 1e-30, 1e-30, tau))
    k = 2.0 * inverse * m * tl.sum(g * (d_cosine * x + (m * d_ratio) * v), axis=0)
    z = ratio * g + k * v
    along_x = tl.sum(z * x, axis=0) * inverse
    by_m = tl.sum(z * v, axis=0)
    by_x = cosine * g - m * (radial * z + along_x * u)
    by_u = m * (z - along_x * x) - (along_u * by_m) * u
    tl.store(by_x_ptr + row * d + columns, by_x.to(by_x_ptr.dtype.element_ty), mask=mask)
    tl.store(by_u_ptr + row * d + columns, by_u.to(by_u_ptr.dtype.element_ty), mask=mask)
    tl.store(by_step_ptr + row, per_step * by_m)


def supports(x: Tensor) -> bool:
    """Tell whether the kernels compute rows like those of `x`."""
    return x.dtype in DTYPES and x.shape[-1] <= LONGEST_ROW


def _kind(p: float) -> int:
    return {1.0: _PROJECTION, 2.0: _CAYLEY, math.inf: _EXPONENTIAL}.get(p, _GENERAL)


def _launch_options(turn: Turn, d: int) -> dict[str, int | bool]:
    block = triton.next_power_of_2(d)
    warps = 1 if block <= 256 else 4 if block <= 2048 else 8 if block <= 8192 else 16
    return {"KIND": _kind(turn.p), "NORMALIZE": turn.floor is not None, "BLOCK": block, "num_warps": warps}


def _step(step: Tensor | float, x: Tensor) -> tuple[Tensor, float, int, bool]:
    """Return a pointer, a number, the stride over rows, and whether the pointer holds the step."""
    if not isinstance(step, Tensor):
        return x, float(step), 0, False
    step = step.to(device=x.device, dtype=torch.float32)
    if step.ndim:
        return step.expand(x.shape[:-1]).contiguous(), 0.0, 1, True
    return step, 0.0, 0, True


def turn_rows(x: Tensor, u: Tensor, step: Tensor | float, turn: Turn) -> tuple[Tensor, Tensor]:
    """Compute the residual and what its gradient needs; see `sphere_rows.turn_rows`."""
    batch, d = x.shape[:-1], x.shape[-1]
    x, u = x.contiguous(), u.contiguous()
    y = torch.empty_like(x)
    scalars = torch.empty(2 if turn.floor is None else 3, *batch, dtype=torch.float32, device=x.device)
    rows = batch.numel()
    pointer, value, stride, is_tensor = _step(step, x)
    if rows:
        with torch.cuda.device_of(x):
            _forward_kernel[(rows,)](
                x,
                u,
                pointer,
                y,
                scalars[0],
                scalars[1],
                scalars[-1],
                d,
                value,
                stride,
                1.0 if turn.p == math.inf else turn.p,
                turn.radius,
                1 / turn.radius**2,
                turn.floor or 0.0,
                PARALLEL * torch.finfo(torch.float32).eps / turn.radius,
                STEP_TENSOR=is_tensor,
                **_launch_options(turn, d),
            )
    return y, scalars


def turn_rows_gradient(
    gradient: Tensor, x: Tensor, u: Tensor, step: Tensor | float, scalars: Tensor, turn: Turn
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients by x, u and the step of every row; see `sphere_rows.turn_rows_gradient`."""
    batch, d = x.shape[:-1], x.shape[-1]
    gradient, x, u, scalars = (t.contiguous() for t in (gradient, x, u, scalars))
    by_x, by_u = torch.empty_like(x), torch.empty_like(x)
    by_step = torch.empty(batch, dtype=torch.float32, device=x.device)
    rows = batch.numel()
    pointer, value, stride, is_tensor = _step(step, x)
    if rows:
        with torch.cuda.device_of(x):
            _backward_kernel[(rows,)](
                gradient,
                x,
                u,
                pointer,
                scalars[0],
                scalars[1],
                scalars[-1],
                by_x,
                by_u,
                by_step,
                d,
                value,
                stride,
                1.0 if turn.p == math.inf else turn.p,
                turn.radius,
                1 / turn.radius**2,
                turn.floor or 0.0,
                STEP_TENSOR=is_tensor,
                **_launch_options(turn, d),
            )
    return by_x, by_u, by_step
