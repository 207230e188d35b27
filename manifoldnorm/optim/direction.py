"""One step of a batch of matrices along a manifold: project, take the polar factor, project, retract."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from manifoldnorm.linalg.polar import MsignMethod, msign
from manifoldnorm.manifolds.matrices import Frame, MatrixManifold

DirectionName = Literal["tangent", "ambient", "dual"]
ScaleName = Literal["radius", "angular", "original", "match_rms_adamw", "none"]

# Spectral norm that no polynomial's output exceeds, with room for the projection that follows.
_LARGEST_RESPONSE = 1.5

_SMALLEST_NORM = 1e-18


@dataclass(frozen=True)
class StepRule:
    """How a step is made; the settings of `MACRO` that do not depend on the weight.

    Attributes
    ----------
    lr : float or Tensor
        Step length; multiplied by the scale.
    direction, post_project, scale, msign, msign_steps, msign_dtype, eps
        As in `MACRO`.
    """

    lr: float | Tensor
    direction: DirectionName
    post_project: bool
    scale: ScaleName
    msign: MsignMethod
    msign_steps: int | None
    msign_dtype: torch.dtype | None
    eps: float

    def polar_factor(self, x: Tensor) -> Tensor:
        """Take the polar factor by the chosen method, whatever the size of `x`."""
        # A floor on the norm spares a pass over the entries; float32 squares of smaller ones would underflow.
        return msign(x, self.msign, steps=self.msign_steps, dtype=self.msign_dtype, eps=_SMALLEST_NORM)

    def muon_factor(self, x: Tensor) -> Tensor:
        """Take the polar factor with the floor on the norm that `torch.optim.Muon` has."""
        return msign(x, self.msign, steps=self.msign_steps, dtype=self.msign_dtype, eps=self.eps)

    def rounds(self, dtype: torch.dtype) -> bool:
        """Tell whether the polar factor rounds a float32 argument to bfloat16."""
        default = self.msign == "newton_schulz5" and self.msign_dtype is None
        return dtype == torch.float32 and (default or self.msign_dtype == torch.bfloat16)

    @property
    def projects_again(self) -> bool:
        """Whether the polar factor is projected onto the tangent space."""
        return self.post_project and self.direction == "tangent"

    def bound(self) -> float:
        """Upper bound on |step|_2 / radius; infinite where it is not known without reading a tensor."""
        tangent = self.projects_again or self.direction == "dual"
        if tangent and self.scale == "radius" and not isinstance(self.lr, Tensor):
            return _LARGEST_RESPONSE * float(self.lr)
        return math.inf


def select(keep: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return `new` where the weight `keep` is one and `old` where it is zero, exactly; both must be finite."""
    return torch.lerp(old, new, keep)


def muon_step_(weights: Tensor, momentum: Tensor, keep: Tensor, rule: StepRule, weight_decay: float) -> None:
    """Step unconstrained weights in place, with the operations of `torch.optim.Muon` in their order.

    Parameters
    ----------
    weights, momentum : Tensor
        Shape (B, m, n), of one dtype.
    keep : Tensor
        Shape (B, 1, 1), zero for matrices that must not change.
    rule : StepRule
        The settings.
    weight_decay : float
        Decoupled decay.
    """
    update = rule.muon_factor(momentum)
    update.mul_(keep.to(update.dtype))
    if weight_decay:
        wide = torch.promote_types(weights.dtype, torch.float32)
        one = torch.ones((), dtype=wide, device=keep.device)
        kept = 1 - rule.lr * weight_decay
        factor = kept.to(one) if isinstance(kept, Tensor) else torch.full_like(one, kept)
        weights.mul_(torch.where(keep > 0, factor, one))
    rows, columns = weights.shape[-2:]
    scale = {"match_rms_adamw": 0.2 * math.sqrt(max(rows, columns)), "none": 1.0}
    length = rule.lr * scale.get(rule.scale, math.sqrt(max(1, rows / columns)))
    if rows > columns and weights.dtype.itemsize < 4:
        # The sum of half-precision tensors is rounded differently for a transposed one, which Muon's is here.
        update = update.mT.contiguous().mT
    if isinstance(length, Tensor):
        weights.sub_(update * length)
    else:
        weights.add_(update, alpha=-length)


def steepest_direction(
    manifold: MatrixManifold, weights: Tensor, momentum: Tensor, frame: Frame, rule: StepRule
) -> tuple[Tensor, Tensor]:
    """Return the direction of steepest ascent in the spectral norm along the manifold, before the second projection.

    Parameters
    ----------
    manifold : MatrixManifold
        With one radius for each matrix.
    weights, momentum : Tensor
        Shape (B, m, n), float32 or float64.
    frame : tuple of Tensor, optional
        The manifold's normal frame at the weights.
    rule : StepRule
        The settings.

    Returns
    -------
    direction : Tensor
        Shape (B, m, n), of norm about one, in the dtype of the polar factor.
    real : Tensor
        Shape (B, 1, 1), zero where the direction is made of rounding errors.
    """
    if rule.direction == "tangent" and manifold.projects_by_products and rule.rounds(weights.dtype):
        # What the polar factor would round afterwards may as well be rounded before the products.
        tangent, error = manifold.project_rounded(weights, momentum)
        return rule.polar_factor(tangent), _exceeds(tangent, error)
    size = torch.linalg.vector_norm(momentum, dim=(-2, -1), keepdim=True)
    if rule.direction == "dual":
        return manifold.dual_direction(weights, momentum).to(weights.dtype), (size > 0).to(weights.dtype)
    if rule.direction == "ambient":
        return rule.polar_factor(momentum), (size > 0).to(weights.dtype)
    tangent = manifold.project_with(weights, momentum, frame)
    return rule.polar_factor(tangent), above_rounding(tangent, size)


def above_rounding(tangent: Tensor, ambient_norm: Tensor) -> Tensor:
    """Return one where a projection is more than the rounding of what was projected, else zero; shape (B, 1, 1).

    Projecting a momentum that is normal to the manifold leaves rounding noise, which a polar factor would blow up to a
    full step.
    """
    return _exceeds(tangent, 10 * torch.finfo(tangent.dtype).eps * ambient_norm)


def _exceeds(tangent: Tensor, error: Tensor) -> Tensor:
    return (torch.linalg.vector_norm(tangent, dim=(-2, -1), keepdim=True) > error).to(error.dtype)


def post_projected(manifold: MatrixManifold, weights: Tensor, direction: Tensor, frame: Frame) -> Tensor:
    """Project a polar factor back onto the tangent space."""
    if manifold.projects_by_products:
        # The factor carries no more digits than its dtype; the retraction removes what is left of the normal part.
        return manifold.project_with(weights.to(direction.dtype), direction, frame).to(weights.dtype)
    return manifold.project_with(weights, direction.to(weights.dtype), frame)


def step_factor(manifold: MatrixManifold, weights: Tensor, direction: Tensor, scale: ScaleName) -> float | Tensor:
    """Return the factor on lr: a number, or a tensor of shape (B, 1, 1)."""
    rows, columns = weights.shape[-2:]
    if scale == "radius":
        factor = manifold.even_norm(rows, columns)
        return factor[:, None, None] if isinstance(factor, Tensor) else factor
    if scale == "angular":
        size = torch.linalg.vector_norm(direction, dim=(-2, -1), keepdim=True)
        moved = size > 0
        length = torch.linalg.vector_norm(weights, dim=(-2, -1), keepdim=True)
        return torch.where(moved, length / torch.where(moved, size, torch.ones_like(size)), torch.zeros_like(size))
    if scale == "original":
        return math.sqrt(max(1, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns)) if scale == "match_rms_adamw" else 1.0


def constrained_step(
    manifold: MatrixManifold, weights: Tensor, momentum: Tensor, frame: Frame, rule: StepRule
) -> tuple[Tensor, Frame]:
    """Return the new weights, on the manifold, and the normal frame there.

    Shapes as in `steepest_direction`. A zero momentum returns the weights, up to rounding.
    """
    if frame is None:
        frame = manifold.normal_frame(weights)
    direction, real = steepest_direction(manifold, weights, momentum, frame, rule)
    project = rule.projects_again
    if rule.scale == "angular":
        # The length depends on the projected direction.
        direction = post_projected(manifold, weights, direction, frame) if project else direction.to(weights.dtype)
        project = False
    length = step_factor(manifold, weights, direction, rule.scale) * real * -rule.lr
    return manifold.retract_along(weights, direction, length, project=project, frame=frame, bound=rule.bound())
