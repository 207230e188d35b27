"""What the complex geometries share: their dtype, the precision they compute in, and errors that name a bad point."""

from __future__ import annotations

import torch
from torch import Tensor

from manifoldnorm.linalg.precision import working_dtype
from manifoldnorm.manifolds.base import Manifold
from manifoldnorm.manifolds.checks import element_index

_COMPLEX = {torch.float16: torch.complex32, torch.float32: torch.complex64, torch.float64: torch.complex128}
_REAL = {dtype: real for real, dtype in _COMPLEX.items()}  # torch.compile does not know dtype.to_real()


class ComplexPoints(Manifold):
    """A manifold of complex points that computes in double precision on the CPU and refuses what is not a point.

    Points are checked as far as it costs nothing: dtype and shape always, and on the CPU outside `torch.compile` and
    `torch.func.vmap` also the result: where it is not finite, the argument that is not on the manifold is named.
    Elsewhere a bad point gives NaN in its own place of the batch.
    """

    def complex_dtype(self, dtype: torch.dtype | None) -> torch.dtype:
        """Return the complex dtype asked for; by default the complex form of torch's default dtype."""
        chosen = _COMPLEX[torch.get_default_dtype()] if dtype is None else dtype
        if not chosen.is_complex:
            raise TypeError(f"dtype must be complex for {self.name}, got {dtype}; use torch.complex128 or complex64")
        return chosen

    def require_complex(self, x: Tensor, name: str = "x") -> None:
        """Raise TypeError unless `x` is complex."""
        if not x.is_complex():
            raise TypeError(
                f"{name} must be complex for {self.name}, got {x.dtype}; convert it with {name}.to(torch.complex128)"
            )

    def _inputs(self, **named: Tensor) -> tuple[Tensor, ...]:
        """Check dtype and shape of the arguments and raise them to the working precision."""
        first_name, first = next(iter(named.items()))
        for name, x in named.items():
            self.require_complex(x, name)
            self.check_event_shape(tuple(x.shape), name)
            if x.dtype != first.dtype:
                raise TypeError(
                    f"{name} must have the dtype of {first_name}, {first.dtype}, got {x.dtype}; convert one"
                )
        return tuple(x.to(working_dtype(x)).resolve_conj() for x in named.values())

    def _output(self, result: Tensor, dtype: torch.dtype, **points: Tensor) -> Tensor:
        """Return `result` in the precision of the arguments; where it is not finite, say which point is to blame."""
        if holds_somewhere(result.detach() * 0 != 0):
            for name, x in points.items():
                self.assert_check_point_on_manifold(x.detach(), name)
        return result.to(dtype if result.is_complex() else _REAL[dtype])


def holds_somewhere(condition: Tensor) -> bool:
    """Tell whether a condition holds anywhere, where asking costs no synchronisation and no graph break.

    False on other devices than the CPU, under `torch.compile` and under `torch.func.vmap`: there a bad element is NaN.
    """
    if torch.compiler.is_compiling() or condition.device.type != "cpu":
        return False
    try:
        return bool(condition.any())
    except RuntimeError:  # a batch under vmap has no truth value
        return False


def holds_everywhere(condition: Tensor) -> bool:
    """Tell whether a condition is known to hold everywhere; False where asking would cost, as in `holds_somewhere`."""
    if torch.compiler.is_compiling() or condition.device.type != "cpu":
        return False
    try:
        return bool(condition.all())
    except RuntimeError:  # a batch under vmap has no truth value
        return False


def mask_failed(result: Tensor, failed: Tensor, amount: Tensor, message: str) -> Tensor:
    """Raise ValueError for the first element that has `failed`; where that cannot be asked, make it NaN.

    Parameters
    ----------
    result : Tensor
        Shape (*batch, ...), to be returned.
    failed, amount : Tensor
        Shape (*batch): which elements are wrong, and the quantity to show.
    message : str
        The message, with {index} and {amount}.
    """
    if holds_somewhere(failed):
        value = float(amount.detach()[failed].flatten()[0])
        raise ValueError(message.format(index=element_index(failed), amount=f"{value:.3g}"))
    return torch.where(failed[(...,) + (None,) * (result.ndim - failed.ndim)], torch.nan, result)
