"""Validation of an optimizer's groups: every error names the parameter, what was expected, and the remedy."""

from __future__ import annotations

import math
from typing import Any, get_args

import torch
from torch import Tensor

from manifoldnorm.linalg.polar import MsignMethod
from manifoldnorm.optim import distributed
from manifoldnorm.optim.blocks import check_split
from manifoldnorm.optim.constraints import SpectralEstimator, check_choice, name_of
from manifoldnorm.optim.direction import DirectionName, ScaleName, StepRule
from manifoldnorm.optim.momentum import Precondition


def parameter_name(group: dict[str, Any], index: int) -> str:
    """Return the name given with the parameter, or its position and shape."""
    names = group.get("param_names")
    if names is not None:
        return repr(names[index])
    return f"parameter {index} of shape {tuple(group['params'][index].shape)}"


def _where(group: dict[str, Any]) -> str:
    count = len(group["params"])
    names = ", ".join(parameter_name(group, i) for i in range(min(3, count)))
    return f"(group of {names}{', ...' if count > 3 else ''})"


def check_lr(group: dict[str, Any], lr: float | Tensor) -> None:
    """Raise ValueError for a learning rate that is negative or NaN; a tensor's value is not read."""
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError(f"lr must have one element, got a tensor of shape {tuple(lr.shape)} {_where(group)}")
    elif not 0 <= lr < math.inf:
        raise ValueError(
            f"lr must be finite and not negative, got {lr} {_where(group)}; look for a schedule that divides by zero"
        )


def check_settings(group: dict[str, Any]) -> None:
    """Check what does not depend on a parameter; a manifold object is replaced by its name and radius."""
    group["manifold"], radius = name_of(group["manifold"])
    group["radius"] = group["radius"] if radius is None else radius
    check_lr(group, group["lr"])
    if isinstance(group["lr"], Tensor):
        check_lr(group, float(group["lr"]))
    if not 0 <= group["momentum"] < 1:
        raise ValueError(f"momentum must lie in [0, 1), got {group['momentum']} {_where(group)}")
    for key in ("weight_decay", "eps"):
        if not 0 <= group[key] < math.inf:
            raise ValueError(f"{key} must be finite and not negative, got {group[key]} {_where(group)}")
    if not (group["radius_mult"] > 0 and math.isfinite(group["radius_mult"])):
        raise ValueError(f"radius_mult must be positive and finite, got {group['radius_mult']} {_where(group)}")
    if group["clip_entries"] is not None and not group["clip_entries"] > 0:
        raise ValueError(f"clip_entries must be positive or None, got {group['clip_entries']} {_where(group)}")
    if not 0 <= group["precondition_decay"] < 1:
        raise ValueError(f"precondition_decay must lie in [0, 1), got {group['precondition_decay']} {_where(group)}")
    check_choice("direction", group["direction"], get_args(DirectionName))
    check_choice("scale", group["scale"], get_args(ScaleName))
    check_choice("msign", group["msign"], get_args(MsignMethod))
    check_choice("sigma", group["sigma"], get_args(SpectralEstimator))
    if group["precondition"] is not None:
        check_choice("precondition", group["precondition"], get_args(Precondition))


def check_parameter(parameter: Tensor, group: dict[str, Any], name: str) -> None:
    """Check what a parameter must be to be stepped by its group."""
    manifold, _ = manifold_of(parameter, group)
    if parameter.is_complex():
        raise TypeError(f"MACRO steps real matrices, and {name} is {parameter.dtype}; use torch.optim.AdamW for it")
    if parameter.ndim < 2 or parameter.numel() == 0:
        raise ValueError(
            f"MACRO steps matrices, and {name} has shape {tuple(parameter.shape)}; route it to AdamW "
            "(macro_param_groups(model) does that for vectors, norms, embeddings and heads)"
        )
    if group["direction"] == "dual" and manifold.startswith("oblique"):
        raise ValueError(f"direction='dual' has no solver for {manifold} ({name}); use direction='tangent'")
    check_decay(manifold, group["weight_decay"], name)
    check_split(parameter, group["split"], name)
    if distributed.is_sharded(parameter):
        distributed.check_placement(parameter, name)
        if group["clip_entries"] is not None:
            raise ValueError(f"clip_entries is not available for the sharded {name}; clip the gradients before step()")


def check_decay(manifold: str, weight_decay: float, name: str) -> None:
    """Raise ValueError for weight decay on a weight of fixed norm."""
    if weight_decay > 0 and manifold != "euclidean":
        raise ValueError(
            f"weight_decay is {weight_decay}, but {name} is held on the {manifold} manifold, where decay only rescales "
            "lr; set weight_decay=0, or manifold='euclidean'"
        )


def manifold_of(parameter: Tensor, group: dict[str, Any]) -> tuple[str, float | str | None]:
    """Return the manifold's name and the radius: the parameter's own attribute, else the group's setting."""
    own = getattr(parameter, "manifold", None)
    if own is None:
        return group["manifold"], group["radius"]
    name, radius = name_of(own)
    return name, group["radius"] if radius is None else radius


def step_rule(group: dict[str, Any]) -> StepRule:
    """Collect the settings of a group that shape a step."""
    lr: float | torch.Tensor = group["lr"]
    return StepRule(
        lr=lr,
        direction=group["direction"],
        post_project=group["post_project"],
        scale=group["scale"],
        msign=group["msign"],
        msign_steps=group["msign_steps"],
        msign_dtype=group["msign_dtype"],
        eps=group["eps"],
    )
