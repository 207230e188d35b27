"""A learnable gain on a weight whose norm an optimizer holds fixed."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

GainShape = Literal["row", "column", "scalar"]


class LearnableGain(nn.Module):
    """Multiply a weight by a learnable gain: a parametrisation, made by `add_gain`.

    The weight itself, `module.parametrizations.weight.original`, can stay on a sphere while the gain carries the scale
    that the task needs.

    Parameters
    ----------
    weight : Tensor
        The weight, of two or more dimensions; kernels (out, in, ...) count as matrices.
    per : {"row", "column", "scalar"}
        A gain for each output, for each input, or one.
    """

    multiplies_constrained_weight = True

    def __init__(self, weight: Tensor, *, per: GainShape = "row") -> None:
        super().__init__()
        if per not in get_args(GainShape):
            raise ValueError(f"per must be one of {', '.join(get_args(GainShape))}, got {per!r}")
        if weight.ndim < 2:
            raise ValueError(f"a gain needs a weight of two or more dimensions, got shape {tuple(weight.shape)}")
        shape = [1] * weight.ndim
        if per != "scalar":
            dimension = 0 if per == "row" else 1
            shape[dimension] = weight.shape[dimension]
        self.per = per
        self.gain = nn.Parameter(torch.ones(shape, dtype=weight.dtype, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        """Return gain * weight, in the dtype of the weight."""
        return self.gain.to(weight.dtype) * weight

    def extra_repr(self) -> str:
        """Describe the gain."""
        return f"per={self.per!r}"


def add_gain(module: nn.Module, name: str = "weight", *, per: GainShape = "row") -> nn.Module:
    """Put a learnable gain, initially one, on a weight of a module, in place.

    `macro_param_groups` then routes the weight to MACRO and the gain to AdamW.

    Parameters
    ----------
    module : Module
        Such as `torch.nn.Linear`.
    name : str
        The weight's attribute.
    per : {"row", "column", "scalar"}
        As in `LearnableGain`.

    Returns
    -------
    Module
        The same module.

    Raises
    ------
    ValueError
        When the module has no such weight, or it has a gain already.

    Examples
    --------
    >>> layer = add_gain(nn.Linear(3, 2))
    >>> [name for name, _ in layer.named_parameters()]
    ['bias', 'parametrizations.weight.original', 'parametrizations.weight.0.gain']
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"{type(module).__name__} has no weight called {name!r}; give name=")
    if _has_gain(module, name):
        raise ValueError(f"{name!r} of {type(module).__name__} has a gain already; fold_gain removes it")
    parametrize.register_parametrization(module, name, LearnableGain(weight, per=per), unsafe=True)
    return module


def fold_gain(module: nn.Module, name: str = "weight") -> nn.Module:
    """Multiply the gain into the weight and remove it, in place: an ordinary module for inference.

    Examples
    --------
    >>> layer = fold_gain(add_gain(nn.Linear(3, 2)))
    >>> [name for name, _ in layer.named_parameters()]
    ['bias', 'weight']
    """
    if not _has_gain(module, name):
        raise ValueError(f"{name!r} of {type(module).__name__} has no gain; add_gain puts one")
    parametrize.remove_parametrizations(module, name, leave_parametrized=True)
    return module


def _has_gain(module: nn.Module, name: str) -> bool:
    if not parametrize.is_parametrized(module, name):
        return False
    return any(isinstance(p, LearnableGain) for p in module.parametrizations[name])  # type: ignore[index]
