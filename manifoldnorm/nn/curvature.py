"""A curvature that layers share and may learn."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Curvature(nn.Module):
    """A positive scalar c = softplus(theta), the curvature being -c.

    Give the same object to several layers and they share it, also after `deepcopy` and `load_state_dict`.

    Parameters
    ----------
    c : float
        The initial value, positive.
    learnable : bool
        Whether `theta` is a parameter or a buffer.

    Raises
    ------
    ValueError
        If `c` is not positive and finite.

    Examples
    --------
    >>> Curvature(0.1)()
    tensor(0.1000, grad_fn=<SoftplusBackward0>)
    """

    theta: Tensor

    def __init__(
        self,
        c: float = 1.0,
        *,
        learnable: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not 0 < c < math.inf:
            raise ValueError(f"c must be positive and finite (the curvature is -c), got {c}")
        # The inverse of softplus, log(e^c - 1), without overflow for large c.
        start = torch.tensor(c + math.log(-math.expm1(-c)), device=device, dtype=dtype)
        if learnable:
            self.theta = nn.Parameter(start)
        else:
            self.register_buffer("theta", start)

    def forward(self) -> Tensor:
        """Return c, a scalar tensor."""
        return nn.functional.softplus(self.theta)


class HyperbolicModule(nn.Module):
    """Base of the layers that live on hyperbolic space: it holds the curvature and says what it is.

    Parameters
    ----------
    c : float or Curvature
        A fixed positive number, or a module that several layers share and may learn.
    """

    def __init__(self, c: float | Curvature = 1.0) -> None:
        super().__init__()
        if isinstance(c, Curvature):
            self.shared_curvature: Curvature | None = c
            self._fixed_curvature = math.nan
            return
        if not 0 < c < math.inf:
            raise ValueError(
                f"c must be positive and finite (the curvature is -c), got {c}; use c=1e-6 for practically flat space"
            )
        self.shared_curvature, self._fixed_curvature = None, float(c)

    @property
    def c(self) -> float | Tensor:
        """The curvature's absolute value: a float, or a scalar tensor where it is learned or shared."""
        return self._fixed_curvature if self.shared_curvature is None else self.shared_curvature()

    def extra_repr(self) -> str:
        """Show the settings."""
        return "" if self.shared_curvature is not None else f"c={self._fixed_curvature:g}"


def check_features(x: Tensor, channels: int, ndims: tuple[int, ...], layout: str, parameter: Tensor | None) -> None:
    """Raise unless `x` holds log-coordinate features of `channels` entries on axis 1, in the layer's dtype."""
    if x.ndim not in ndims or x.shape[1] != channels:
        raise ValueError(
            f"input must have {channels} channels on axis 1, shape {layout}, got {tuple(x.shape)}; "
            "hyperbolic features are log coordinates with the vector on axis 1"
        )
    check_dtype(x, parameter)


def check_dtype(x: Tensor, parameter: Tensor | None) -> None:
    """Raise unless `x` has the parameter's dtype, or is a half precision that is raised to float32."""
    if not x.is_floating_point():
        raise TypeError(f"input must be floating point, got {x.dtype}")
    half = x.dtype in (torch.float16, torch.bfloat16)
    if parameter is not None and x.dtype != parameter.dtype and not (half and parameter.dtype == torch.float32):
        raise TypeError(
            f"input has dtype {x.dtype} but the layer has {parameter.dtype}; convert the input or the layer"
        )
