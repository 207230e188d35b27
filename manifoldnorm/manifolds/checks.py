"""Checks that name what is wrong, where, and by how much."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class ConvergenceWarning(UserWarning):
    """An iterative solver stopped before it reached its tolerance; the message gives the residual."""


class Violation(NamedTuple):
    """How far a batch is from one requirement.

    It holds where `amount` <= atol + rtol * `scale`, or, when `failed` is given, where that is False.
    """

    requirement: str
    amount: Tensor
    scale: Tensor | float = 1.0
    failed: Tensor | None = None


def default_tolerance(dtype: torch.dtype) -> float:
    """Return 10 eps^(3/4): 2e-11 in float64, 6e-5 in float32, 0.06 in float16."""
    return float(10 * torch.finfo(dtype).eps ** 0.75)


def first_failure(
    x: Tensor,
    violations: list[Violation],
    ndim: int,
    name: str,
    space: str,
    atol: float | None,
    rtol: float | None,
) -> str | None:
    """Describe the first batch element that is not finite or violates a requirement; None when all hold."""
    default = default_tolerance(x.dtype)
    atol = default if atol is None else atol
    rtol = default if rtol is None else rtol
    finite = torch.isfinite(x).flatten(x.ndim - ndim).all(-1) if x.numel() else torch.ones((), dtype=torch.bool)
    if not finite.all():
        return f"{name}{element_index(~finite)} is not finite, so it is not a point of {space}"
    for requirement, amount, scale, decided in violations:
        failed = ~(amount <= atol + rtol * scale) if decided is None else decided
        if failed.any():
            worst = float(amount[failed].flatten()[0])
            return f"{name}{element_index(failed)} is not in {space}: it must be {requirement} is {worst:.3g}"
    return None


def element_index(failed: Tensor) -> str:
    """Format the index of the first failing batch element, '' for an unbatched tensor."""
    if failed.ndim == 0:
        return ""
    return "[" + ", ".join(str(int(i)) for i in failed.nonzero()[0]) + "]"


def shape_tuple(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple; an integer is the length of a vector."""
    return (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)


def require_tensor(x: object, name: str) -> None:
    """Raise TypeError unless `x` is a tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}; torch.as_tensor({name}) makes one")


def require_real_tensor(x: object, name: str) -> None:
    """Raise TypeError unless `x` is a real floating point tensor."""
    require_tensor(x, name)
    if isinstance(x, Tensor) and not x.is_floating_point():
        raise TypeError(
            f"{name} must have a real floating point dtype, got {x.dtype}; convert it, for example with {name}.double()"
        )


def require_layer_dtype(x: Tensor, dtype: torch.dtype) -> None:
    """Raise TypeError unless a layer's input has the layer's dtype, or a half precision where that is float32."""
    half = x.dtype in (torch.float16, torch.bfloat16) and dtype == torch.float32
    if x.dtype != dtype and not half:
        raise TypeError(f"input has dtype {x.dtype} but the layer has {dtype}; convert the input or the layer")


def warn_not_converged(what: str, residual: Tensor, failed: Tensor, steps: int, remedy: str) -> None:
    """Issue a `ConvergenceWarning` that names the first element that failed and its residual."""
    value = float(residual[failed].flatten()[0]) if failed.ndim else float(residual)
    warnings.warn(
        f"{what} of element {element_index(failed) or '()'} stopped after {steps} steps with residual {value:.3g}; "
        f"{remedy}",
        ConvergenceWarning,
        stacklevel=4,
    )
