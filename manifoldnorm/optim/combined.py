"""MACRO for the hidden matrices and AdamW for everything else, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from manifoldnorm.optim.macro import MACRO
from manifoldnorm.optim.state import restore_precision_


def _adamw_state(parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
    """Create what AdamW would create in its first step.

    MACRO's state exists from the start, and distributed checkpoints fill in either all of an optimizer's state or none.
    """
    on_device = group["capturable"] or group["fused"]
    step = torch.zeros((), dtype=torch.float32, device=parameter.device if on_device else "cpu")
    names = ["exp_avg", "exp_avg_sq"] + (["max_exp_avg_sq"] if group["amsgrad"] else [])
    return {"step": step, **{name: torch.zeros_like(parameter.detach()) for name in names}}


class MACROWithAdamW(Optimizer):
    """One optimizer over groups that each name their algorithm, "macro" or "adamw".

    Schedulers, gradient scaling, checkpoints and hooks see a single optimizer. Settings of a group are those of `MACRO`
    or of `torch.optim.AdamW`; what a group leaves out takes their defaults.

    Parameters
    ----------
    groups : iterable of dict
        As from `macro_param_groups`.

    Raises
    ------
    ValueError
        For a group without a known algorithm, and whatever `MACRO` raises.

    Examples
    --------
    >>> from manifoldnorm.optim import macro_param_groups
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> groups = macro_param_groups(model, macro={"lr": 0.02, "manifold": "spectral"}, adamw={"lr": 1e-3})
    >>> optimizer = MACROWithAdamW(groups)
    >>> model(torch.randn(3, 4)).sum().backward()
    >>> optimizer.step()
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        self._parts: dict[str, Optimizer] = {}
        super().__init__(list(groups), {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._parts = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of either algorithm."""
        algorithm = param_group.get("algorithm")
        if algorithm not in ("macro", "adamw"):
            raise ValueError(
                f"every group needs algorithm='macro' or 'adamw', got {algorithm!r}; macro_param_groups(model) sets it"
            )
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            part = self._part(algorithm, [group])
            group.update(part.param_groups[-1])
            self.state.update(part.state)
            if algorithm == "adamw":
                for parameter in group["params"]:
                    self.state[parameter] = _adamw_state(parameter, group)
        except Exception:
            self.param_groups.pop()
            raise

    def _part(self, algorithm: str, groups: list[dict[str, Any]]) -> Optimizer:
        """Return the optimizer of one algorithm, set up for `groups`."""
        if algorithm in self._parts:
            for group in groups:
                self._parts[algorithm].add_param_group(dict(group))
        else:
            copies = [dict(group) for group in groups]
            self._parts[algorithm] = MACRO(copies) if algorithm == "macro" else AdamW(copies)
        return self._parts[algorithm]

    def _linked(self, algorithm: str) -> Optimizer | None:
        """Return the optimizer of one algorithm, sharing this one's groups and state; None without such groups."""
        groups = [group for group in self.param_groups if group["algorithm"] == algorithm]
        if not groups:
            return None
        if algorithm not in self._parts:
            # After unpickling or copying: an empty shell of the right class, since the state exists already.
            shell = MACRO.__new__(MACRO) if algorithm == "macro" else AdamW.__new__(AdamW)
            shell.__setstate__({"defaults": {}, "state": self.state, "param_groups": groups})
            self._parts[algorithm] = shell
        part = self._parts[algorithm]
        part.param_groups, part.state = groups, self.state
        return part

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step with both algorithms; `closure` re-evaluates the loss with gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for algorithm in ("macro", "adamw"):
            part = self._linked(algorithm)
            if part is not None:
                part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; float32 state of half-precision parameters stays float32."""
        super().load_state_dict(state_dict)
        restore_precision_(self, state_dict)
