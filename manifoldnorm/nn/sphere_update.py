"""The map behind residual streams on a sphere: turn x towards the tangent part of an update u."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from manifoldnorm.linalg.precision import statistics_dtype, without_autocast
from manifoldnorm.linalg.rotation import turning_coefficients
from manifoldnorm.nn import sphere_rows
from manifoldnorm.nn.sphere_compiled import CompiledTurn
from manifoldnorm.nn.sphere_rows import PARALLEL, Turn


def turn_plain(x: Tensor, u: Tensor, step: Tensor | float, turn: Turn) -> Tensor:
    """Compute c x + q m v with ordinary operations: what the fast forms must equal, and their second derivative.

    Here a = <u, x> / R^2, v = u - a x, m = step (times R / max(|u|, floor) when the update is normalised), and (c, q)
    are the `turning_coefficients` of m^2 |v|^2 / R^2. Differentiable to any order, zero updates included.

    Parameters
    ----------
    x, u : Tensor
        Shape (..., d), of one dtype; half precisions are computed in float32.
    step : Tensor or float
        A tensor broadcasts against the batch shape.
    turn : Turn
        The settings.
    """
    dtype = x.dtype
    x, u = x.to(statistics_dtype(x)), u.to(statistics_dtype(u))
    if isinstance(step, Tensor):
        step = step.to(x.dtype).unsqueeze(-1) if step.ndim else step.to(x.dtype)
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
    return torch.where(parallel, x.detach() + (moved - moved.detach()), moved).to(dtype)


def turn(x: Tensor, u: Tensor, step: Tensor | float, settings: Turn) -> Tensor:
    """Compute `turn_plain` in one pass over memory; forward with backward in one each."""
    if x.shape != u.shape:
        x, u = torch.broadcast_tensors(x, u)
    if torch.compiler.is_compiling():
        compiled: Tensor = CompiledTurn.apply(x, u, step.unsqueeze(-1) if isinstance(step, Tensor) else step, settings)
        return compiled
    result: Tensor = _Turn.apply(x, u, step, settings)[0]
    return result


Function = TypeVar("Function", bound=Callable[..., Any])


class _Rows(Protocol):
    """What computes rows: `sphere_rows` everywhere, `sphere_triton` on CUDA."""

    def turn_rows(self, x: Tensor, u: Tensor, step: Tensor | float, turn: Turn) -> tuple[Tensor, Tensor]: ...

    def turn_rows_gradient(
        self, gradient: Tensor, x: Tensor, u: Tensor, step: Tensor | float, scalars: Tensor, turn: Turn
    ) -> tuple[Tensor, Tensor, Tensor]: ...


@functools.cache
def _triton_installed() -> bool:
    return find_spec("triton") is not None


def _rows_for(x: Tensor) -> _Rows:
    if x.is_cuda and _triton_installed():
        from manifoldnorm.nn import sphere_triton

        if sphere_triton.supports(x):
            return sphere_triton
    return sphere_rows


def _batched(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """Put the batch dimension of a vmapped tensor in front; add it where there is none."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _batched_step(step: Tensor | float, dim: int | None, ndim: int) -> Tensor | float:
    """Put the batch dimension of a vmapped step in front so that it broadcasts against `ndim` batch dimensions."""
    if dim is None or not isinstance(step, Tensor):
        return step
    step = step.movedim(dim, 0)
    return step.reshape(step.shape[0], *(1,) * (ndim - step.ndim), *step.shape[1:])


def _stored_signature(function: Function) -> Function:
    """Store the signature, which `apply` asks for at every call; finding it costs as much as five small kernels."""
    function.__dict__["__signature__"] = inspect.signature(function)
    return function


class _Turn(torch.autograd.Function):
    """The residual; saves x, u and two or three scalars a row."""

    @staticmethod
    @_stored_signature
    def forward(x: Tensor, u: Tensor, step: Tensor | float, settings: Turn) -> tuple[Tensor, Tensor]:
        with without_autocast(x):
            return _rows_for(x).turn_rows(x, u, step, settings)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, u, step, ctx.settings = inputs
        ctx.step = None if isinstance(step, Tensor) else step
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, u, output[1], *((step,) if isinstance(step, Tensor) else ()))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return None, None, None, None
        x, u, scalars, *more = ctx.saved_tensors
        step = more[0] if more else ctx.step
        by_x, by_u, by_step = _TurnGradient.apply(gradient, x, u, step, scalars, ctx.settings)
        if not more or not ctx.needs_input_grad[2]:
            return by_x, by_u, None, None
        return by_x, by_u, by_step.sum_to_size(step.shape).to(step.dtype), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, u: Tensor, step: Tensor | float, settings: Turn
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        x, u = _batched(x, in_dims[0], info.batch_size), _batched(u, in_dims[1], info.batch_size)
        return _Turn.apply(x, u, _batched_step(step, in_dims[2], x.ndim - 1), settings), (0, 1)


class _TurnGradient(torch.autograd.Function):
    """The gradient of the residual by x, u and the step of every row; itself differentiable, to any order."""

    @staticmethod
    @_stored_signature
    def forward(
        gradient: Tensor, x: Tensor, u: Tensor, step: Tensor | float, scalars: Tensor, settings: Turn
    ) -> tuple[Tensor, Tensor, Tensor]:
        with without_autocast(x):
            return _rows_for(x).turn_rows_gradient(gradient, x, u, step, scalars, settings)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        gradient, x, u, step, _, ctx.settings = inputs
        ctx.step = None if isinstance(step, Tensor) else step
        ctx.save_for_backward(gradient, x, u, *((step,) if isinstance(step, Tensor) else ()))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient, x, u, *more = ctx.saved_tensors
        settings = ctx.settings
        rows = (more[0] if more else torch.full_like(x[..., 0], ctx.step)).expand(x.shape[:-1])

        def first_order(g: Tensor, x: Tensor, u: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
            pull = torch.func.vjp(lambda a, b, s: turn_plain(a, b, s, settings), x, u, rows)[1]
            by_x, by_u, by_step = pull(g)
            return by_x, by_u, by_step

        with torch.enable_grad() if torch.is_grad_enabled() else torch.no_grad(), without_autocast(x):
            pull = torch.func.vjp(first_order, gradient, x, u, rows)[1]
            by_gradient, by_x, by_u, by_rows = pull(tuple(g.to(x.dtype) for g in gradients))
        by_step = by_rows.sum_to_size(more[0].shape) if more else None
        return by_gradient, by_x, by_u, by_step, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        gradient: Tensor,
        x: Tensor,
        u: Tensor,
        step: Tensor | float,
        scalars: Tensor,
        settings: Turn,
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
        gradient, x, u, scalars = (
            _batched(tensor, in_dims[i], info.batch_size) for i, tensor in ((0, gradient), (1, x), (2, u), (4, scalars))
        )
        scalars = scalars.movedim(0, 1)
        step = _batched_step(step, in_dims[3], x.ndim - 1)
        return _TurnGradient.apply(gradient, x, u, step, scalars, settings), (0, 0, 0)
