"""Residual connections that keep the stream on a sphere: SpheretNorm and its named forms."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manifoldnorm.linalg.rotation import check_turning_power
from manifoldnorm.nn.functional import OffSphere, sphere_residual

Decay = Literal["harmonic", "sqrt", "linear"]

# 1 / sqrt(2 L) for the L = 8 blocks that are assumed where nothing is said.
_DEFAULT_STEP = 0.25


class SphereResidual(nn.Module):
    """Replace `x + f(x)` and the norm around it: turn x on the sphere of radius R towards the tangent part of f(x).

    The stream keeps its norm exactly, so sublayers read it without a norm layer. Bring it onto the sphere once, after
    the embedding, with an RMSNorm without weight (R = sqrt(d)).

    Parameters
    ----------
    dim : int
        d, the size of the last dimension.
    p : float, optional
        In (0, inf], how a step t turns: by the angle p atan(t / p). 1 metric projection, 2 Cayley (the default),
        `math.inf` exponential map. Beyond 2 a long update wraps past the antipode. The named forms fix it.
    step : "learn" or float
        A learnable positive scalar (the softplus of `raw_step`), or a fixed factor.
    decay : {"harmonic", "sqrt", "linear"}, optional
        Divide the step by l + 1 or sqrt(l + 1), or multiply it by (L - l) / L, where l is `layer` and L `num_layers`.
    layer : int
        Index of the layer, from 0; what `decay` looks at.
    radius : float, optional
        R; sqrt(d) by default.
    num_layers : int, optional
        Number L of blocks of the model, two updates each.
    initial_step : float, optional
        Where a learnable step starts: by default at 1 / sqrt(2 L) (0.25 when L is not given), at 1 when `decay` is.
    normalize_update : bool
        Scale the update to the length R first, so that t <= step. Without a bound on the update deep or fast-learning
        models can collapse: a long update overwrites the state and its gradient dies.
    eps : float
        The floor of that normalisation; see `nn.functional.sphere_residual`.
    loop_decay : {"harmonic", "sqrt", "linear"}, optional
        The same over the loop index that `forward` takes, for a block that is applied several times; "linear" needs
        `num_loops`.
    num_loops : int, optional
        How often the block is applied.
    off_sphere : {"keep", "project", "raise"}
        What to do with rows of x whose norm is not R.

    Notes
    -----
    SpheretNorm (arXiv:2608.02668), GeoNorm (arXiv:2601.22095). The defaults bound the length of a step, so that it can
    neither saturate nor wrap: they are this library's choice, not the papers'.

    Examples
    --------
    >>> residual = SphereResidual(4, num_layers=8)
    >>> x = torch.tensor([[2.0, 0.0, 0.0, 0.0]])
    >>> residual(x, torch.tensor([[0.0, 3.0, 0.0, 0.0]])).norm()
    tensor(2., grad_fn=<LinalgVectorNormBackward0>)
    """

    family_power: ClassVar[float | None] = None

    def __init__(
        self,
        dim: int,
        p: float | None = None,
        *,
        step: Literal["learn"] | float = "learn",
        decay: Decay | None = None,
        layer: int = 0,
        radius: float | None = None,
        num_layers: int | None = None,
        initial_step: float | None = None,
        normalize_update: bool = True,
        eps: float = 1e-3,
        loop_decay: Decay | None = None,
        num_loops: int | None = None,
        off_sphere: OffSphere = "keep",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        self.dim, self.p = dim, self._power(p)
        self.radius = math.sqrt(dim) if radius is None else float(radius)
        if not 0 < self.radius < math.inf:
            raise ValueError(f"radius must be positive and finite, got {radius}")
        if num_layers is not None and num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {num_layers}")
        if not 0 < eps < math.inf:
            raise ValueError(f"eps must be positive and finite, got {eps}")
        if off_sphere not in get_args(OffSphere):
            raise ValueError(f"off_sphere must be one of {get_args(OffSphere)}, got {off_sphere!r}")
        self.decay, self.layer, self.num_layers = decay, layer, num_layers
        self.loop_decay, self.num_loops = loop_decay, num_loops
        self.normalize_update, self.eps, self.off_sphere = normalize_update, eps, off_sphere
        self.depth_factor = decay_factor(decay, layer, num_layers, "decay", "num_layers")
        decay_factor(loop_decay, 0, num_loops, "loop_decay", "num_loops")
        if isinstance(step, str):
            if step != "learn":
                raise ValueError(f'step must be "learn" or a number, got {step!r}')
            start = self._initial_step() if initial_step is None else float(initial_step)
            if not 0 < start < math.inf:
                raise ValueError(f"initial_step must be positive and finite, got {initial_step}")
            raw = torch.tensor(start + math.log(-math.expm1(-start)), device=device, dtype=dtype)
            self.raw_step: nn.Parameter | None = nn.Parameter(raw)
            self.fixed_step: float | None = None
        else:
            if not math.isfinite(step):
                raise ValueError(f'step must be "learn" or a finite number, got {step}')
            if initial_step is not None:
                raise ValueError("initial_step is for a learnable step; give the fixed value as step")
            self.register_parameter("raw_step", None)
            self.fixed_step = float(step)

    def _power(self, p: float | None) -> float:
        fixed = self.family_power
        if fixed is not None and p is not None and p != fixed:
            raise ValueError(f"{type(self).__name__} has p={fixed:g}, got p={p}; use SphereResidual for another p")
        return check_turning_power(2.0 if p is None else p) if fixed is None else fixed

    def _initial_step(self) -> float:
        if self.decay is not None:
            return 1.0
        return _DEFAULT_STEP if self.num_layers is None else 1 / math.sqrt(2 * self.num_layers)

    @property
    def step(self) -> Tensor | float:
        """The factor of the update, depth decay included."""
        if self.raw_step is None:
            return self.depth_factor * self.fixed_step if self.fixed_step is not None else self.depth_factor
        return self.depth_factor * F.softplus(self.raw_step)

    def forward(self, x: Tensor, u: Tensor, *, loop: int = 0) -> Tensor:
        """Turn `x` towards `u`, both of shape (..., d); `loop` counts the applications of a looped block from 0."""
        if x.shape[-1] != self.dim:
            raise ValueError(f"x must have shape (..., {self.dim}), got {tuple(x.shape)}")
        step = self.step * decay_factor(self.loop_decay, loop, self.num_loops, "loop_decay", "num_loops")
        return sphere_residual(
            x,
            u,
            self.p,
            self.radius,
            step,
            normalize_update=self.normalize_update,
            eps=self.eps,
            off_sphere=self.off_sphere,
        )

    def extra_repr(self) -> str:
        """Show the settings that matter."""
        step = "learn" if self.raw_step is not None else self.fixed_step
        parts = [f"{self.dim}", f"p={self.p:g}", f"step={step}", f"radius={self.radius:.6g}"]
        if self.decay is not None:
            parts.append(f"decay={self.decay!r}, layer={self.layer}")
        if self.loop_decay is not None:
            parts.append(f"loop_decay={self.loop_decay!r}")
        if not self.normalize_update:
            parts.append("normalize_update=False")
        return ", ".join(parts)


def decay_factor(decay: Decay | None, index: int, count: int | None, name: str, count_name: str) -> float:
    """Return the factor of the step at `index`: 1, 1 / (i + 1), 1 / sqrt(i + 1) or (n - i) / n."""
    if index < 0:
        raise ValueError(f"the index that {name} looks at must be at least 0, got {index}")
    if decay is None:
        return 1.0
    if decay == "harmonic":
        return 1 / (index + 1)
    if decay == "sqrt":
        return 1 / math.sqrt(index + 1)
    if decay != "linear":
        raise ValueError(f'{name} must be None, "harmonic", "sqrt" or "linear", got {decay!r}')
    if count is None or count <= index:
        raise ValueError(f'{name}="linear" needs {count_name} above the index {index}, got {count}')
    return (count - index) / count


class GeoNorm(SphereResidual):
    """`SphereResidual` with the exponential map, p = inf (arXiv:2601.22095).

    The paper turns by min(|v| / |x|, pi / 4) times a learned factor, with an optional decay over the layers. Here the
    update is normalised instead of the angle clamped, and no bias is added to the angle: at v = 0 there is no direction
    to turn to.

    Examples
    --------
    >>> GeoNorm(4, decay="harmonic", layer=2)
    GeoNorm(4, p=inf, step=learn, radius=2, decay='harmonic', layer=2)
    """

    family_power = math.inf


class ProjSpheretNorm(SphereResidual):
    """`SphereResidual` with the metric projection, p = 1: R (x + v) / |x + v| (arXiv:2608.02668).

    Examples
    --------
    >>> ProjSpheretNorm(4)
    ProjSpheretNorm(4, p=1, step=learn, radius=2)
    """

    family_power = 1.0


class CaySpheretNorm(SphereResidual):
    """`SphereResidual` with the Cayley transform, p = 2: ((1 - t^2 / 4) x + v) / (1 + t^2 / 4) (arXiv:2608.02668).

    Examples
    --------
    >>> CaySpheretNorm(4)
    CaySpheretNorm(4, p=2, step=learn, radius=2)
    """

    family_power = 2.0


SpheretNorm = SphereResidual
