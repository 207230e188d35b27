"""MACRO: steepest descent in the spectral norm, with momentum, for weights held on a manifold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from manifoldnorm.linalg.polar import MsignMethod
from manifoldnorm.manifolds.matrices import MatrixManifold
from manifoldnorm.optim import distributed
from manifoldnorm.optim.blocks import Block, blocks_of, buckets, stack, unstack_
from manifoldnorm.optim.constraints import ManifoldName, SpectralEstimator, build
from manifoldnorm.optim.direction import DirectionName, ScaleName, StepRule, constrained_step, muon_step_, select
from manifoldnorm.optim.momentum import Precondition, average_, finite
from manifoldnorm.optim.settings import (
    check_decay,
    check_lr,
    check_parameter,
    check_settings,
    manifold_of,
    parameter_name,
    step_rule,
)
from manifoldnorm.optim.state import initialise, read_frames, reconcile, restore_precision_, write_frames_


class MACRO(Optimizer):
    r"""Momentum, projected onto the tangent space of a weight manifold, orthogonalised, and retracted.

    For a weight matrix W on the manifold M with momentum m (an exponential moving average of gradients) a step is

    .. math:: W \leftarrow R_W\bigl(-\text{lr} \cdot s \cdot P_W \operatorname{msign} P_W m\bigr)

    with the orthogonal projection P on the tangent space, the polar factor msign, and the retraction R. The weight's
    norm never changes, so that weight decay has nothing to do and the learning rate is an angle. With
    ``manifold="euclidean"`` it is `torch.optim.Muon`, bit for bit, except that equal shapes are stepped together.

    Making the optimizer moves the weights onto their manifolds (`radius=None` keeps each weight's norm). Give it the
    hidden matrices only; `macro_param_groups` sorts them out, and `MACROWithAdamW` steps the rest as well.

    Parameters
    ----------
    params : iterable
        Parameters, named parameters, or groups, as in `torch.optim`. Two or more dimensions; a kernel (out, in, ...)
        counts as the matrix (out, in * ...). A parameter with an attribute `manifold` (a name or a manifold object) is
        held on that one.
    lr : float or Tensor
        With the default `scale` about the angle, in radians, by which the weight turns in a step.
    momentum : float
        Decay of the average of gradients, in [0, 1).
    nesterov : bool
        Step with the average that the next step would have for the same gradient.
    manifold : str or manifold
        "frobenius", "spectral", "oblique_rows", "oblique_cols", "stiefel", "grassmann" or "euclidean".
    radius : float, None or "mup"
        The norm that is held: a number, the weight's own, or that of `mup_radius`.
    radius_mult : float
        Factor on the radius.
    direction : {"tangent", "ambient", "dual"}
        "ambient" leaves out both projections (MuonH); "dual" is the exact steepest direction, tens of times slower.
    post_project : bool
        Project the polar factor again, which makes the slope exactly minus the nuclear norm of the Riemannian gradient.
    scale : {"radius", "angular", "original", "match_rms_adamw", "none"}
        s above: the spectral norm of a point with equal singular values; what makes the angle arctan(lr) exactly (on
        the Frobenius sphere and the oblique manifold); Muon's sqrt(max(1, m / n)); 0.2 sqrt(max(m, n)); one. For
        "euclidean", which has no radius, "radius" means "original".
    msign, msign_steps, msign_dtype
        The polar factor: `method`, `steps` and `dtype` of `manifoldnorm.linalg.msign`.
    sigma : {"auto", "exact", "schatten", "power"}
        How the spectral sphere finds the norm. "auto" is exact on the CPU for the smaller side up to 512, else
        "schatten", which keeps the norm at or below the radius with products alone. "power" may exceed it.
    precondition : {None, "row", "column", "row_column", "adam"}
        Equilibrate the momentum, or whiten it entry-wise by second moments, before the projection. Descent is then not
        guaranteed.
    precondition_decay : float
        Decay of the second moments for "adam".
    clip_entries : float, optional
        Clamp the gradient's entries at this multiple of their root mean square.
    weight_decay : float
        Decoupled decay of "euclidean" weights; refused elsewhere.
    eps : float
        Lower bound on the norm of a "euclidean" weight's momentum in msign.
    split : sequence of int, optional
        Row counts of blocks that are matrices of their own, such as query, key and value in one projection.
    master_weights : bool
        Keep float32 weights and momentum for half-precision parameters, which hold the constraint to 1e-6.
    project_init : bool
        Move the weights onto their manifolds at once; otherwise the first step does.

    Raises
    ------
    ValueError
        Naming the parameter and the remedy: fewer than two dimensions, a zero or non-finite weight, a radius that is
        not positive, weight decay with a constraint, an unknown manifold, lr that is negative or NaN.
    TypeError
        Complex parameters; sparse gradients (in `step`).

    Notes
    -----
    On the Stiefel and Grassmann manifolds the first projection of float32 weights runs in bfloat16 where msign does,
    after the multiple of the weight in the momentum is subtracted in full precision. A tangent part below 1/128 of what
    is left counts as zero. `msign_dtype=torch.float32` or `msign="polar_express"` projects in full precision.

    A gradient that is not finite leaves its weight, momentum and other state as they are, without reading anything back
    from the device. Scaling a gradient changes nothing, so neither loss scaling nor clipping by norm does. A constant
    lr hovers about a solution at a distance of about lr: decay it.

    References
    ----------
    K. An, Y. Li, D. Goldfarb, S. Ma, "MACRO" (arXiv 2605.04418), from its abstract and public summaries; the place of
    the momentum follows Y. Yang and Z. Lai (arXiv 2601.21487).

    Examples
    --------
    >>> model = torch.nn.Linear(8, 8, bias=False)
    >>> optimizer = MACRO(model.named_parameters(), lr=0.05, manifold="stiefel", radius=1.0)
    >>> model(torch.randn(4, 8)).square().sum().backward()
    >>> optimizer.step()
    >>> torch.allclose(model.weight @ model.weight.T, torch.eye(8), atol=1e-5)
    True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 0.02,
        momentum: float = 0.95,
        nesterov: bool = True,
        *,
        manifold: ManifoldName | MatrixManifold = "frobenius",
        radius: float | str | None = None,
        radius_mult: float = 1.0,
        direction: DirectionName = "tangent",
        post_project: bool = True,
        scale: ScaleName = "radius",
        msign: MsignMethod = "newton_schulz5",
        msign_steps: int | None = None,
        msign_dtype: torch.dtype | None = None,
        sigma: SpectralEstimator = "auto",
        precondition: Precondition | None = None,
        precondition_decay: float = 0.95,
        clip_entries: float | None = None,
        weight_decay: float = 0.0,
        eps: float = 1e-7,
        split: list[int] | None = None,
        master_weights: bool = False,
        project_init: bool = True,
    ) -> None:
        defaults = {k: v for k, v in locals().items() if k not in ("self", "params", "__class__")}
        self._seen_versions: dict[Tensor, int] = {}
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._seen_versions = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; its settings override the optimizer's, and its weights are moved onto their manifolds."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check_settings(group)
            for index, parameter in enumerate(group["params"]):
                check_parameter(parameter, group, parameter_name(group, index))
            for index, parameter in enumerate(group["params"]):
                if not parameter.is_meta:
                    self._initialise(parameter, group, index)
        except Exception:
            self.param_groups.pop()
            for parameter in group["params"]:
                self.state.pop(parameter, None)
            raise

    def _initialise(self, parameter: Tensor, group: dict[str, Any], index: int) -> None:
        self.state[parameter] = initialise(parameter, group, parameter_name(group, index))
        self._seen_versions[parameter] = parameter._version

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; float32 state of half-precision parameters stays float32."""
        super().load_state_dict(state_dict)
        restore_precision_(self, state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step; `closure` re-evaluates the loss with gradients and its value is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        check_lr(group, group["lr"])
        rule = step_rule(group)
        dense: list[Block] = []
        sharded: list[Tensor] = []
        names: dict[Tensor, str] = {}
        for index, parameter in enumerate(group["params"]):
            is_sharded = distributed.is_sharded(parameter)
            if parameter.grad is None and not is_sharded:
                continue
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                raise TypeError(
                    f"{parameter_name(group, index)} has a sparse gradient; MACRO needs dense ones: make the embedding "
                    "with sparse=False, or use torch.optim.SparseAdam for it"
                )
            self._notice_changes(parameter, group, index)
            names[parameter] = manifold_of(parameter, group)[0]
            if group["weight_decay"]:
                check_decay(names[parameter], group["weight_decay"], parameter_name(group, index))
            if is_sharded:
                sharded.append(parameter)
            else:
                dense.extend(blocks_of(parameter, group["split"]))
        for blocks in buckets(dense, names):
            self._step_blocks(blocks, group, rule, names[blocks[0].parameter])
        if sharded:
            distributed.step_sharded(sharded, self.state, group, rule, names)
        for parameter in names:
            self._seen_versions[parameter] = parameter._version

    def _notice_changes(self, parameter: Tensor, group: dict[str, Any], index: int) -> None:
        """Follow weights that somebody else has written since the last step, as loading a model does."""
        if self._seen_versions.get(parameter) == parameter._version:
            return
        if "momentum_buffer" in self.state[parameter]:
            reconcile(parameter, group, self.state[parameter])
        else:
            self._initialise(parameter, group, index)

    def _step_blocks(self, blocks: list[Block], group: dict[str, Any], rule: StepRule, name: str) -> None:
        states = [self.state[block.parameter] for block in blocks]
        gradients = stack(blocks, [block.parameter.grad for block in blocks])  # type: ignore[misc]
        keep = finite(gradients)
        momentum = average_(gradients, keep, blocks, states, group)
        targets = [state.get("master", block.parameter) for state, block in zip(states, blocks)]
        if name == "euclidean":
            weights = stack(blocks, targets)
            muon_step_(weights, momentum, keep, rule, group["weight_decay"])
        else:
            wide = torch.promote_types(targets[0].dtype, torch.float32)
            weights = stack(blocks, targets, wide)
            radius = torch.stack([state["radius"][block.index] for state, block in zip(states, blocks)])
            manifold = build(name, radius, sigma=group["sigma"], like=weights)
            frame = read_frames(blocks, states) if name == "spectral" else None
            new, moved = constrained_step(manifold, weights, momentum.to(wide), frame, rule)
            keep = keep.to(wide)
            if frame is not None and moved is not None:
                kept = (select(keep, after, before) for after, before in zip(moved, frame))
                write_frames_(blocks, states, tuple(kept))
            weights.lerp_(new, keep)
        unstack_(blocks, targets, weights)
        for block, target in zip(blocks, targets):
            if target is not block.parameter:
                block.rows_of(block.parameter).copy_(block.rows_of(target))


class MACROSphere(MACRO):
    """`MACRO` on the Frobenius sphere: each weight keeps its Frobenius norm."""

    def __init__(self, params: Iterable[Any], lr: float | Tensor = 0.02, **settings: Any) -> None:
        super().__init__(params, lr, manifold="frobenius", **settings)


class MACROSpectral(MACRO):
    """`MACRO` on the spectral sphere: each weight keeps its largest singular value."""

    def __init__(self, params: Iterable[Any], lr: float | Tensor = 0.02, **settings: Any) -> None:
        super().__init__(params, lr, manifold="spectral", **settings)


class MACROOblique(MACRO):
    """`MACRO` on the oblique manifold: each row keeps one norm."""

    def __init__(self, params: Iterable[Any], lr: float | Tensor = 0.02, **settings: Any) -> None:
        super().__init__(params, lr, manifold="oblique_rows", **settings)


class MACROStiefel(MACRO):
    """`MACRO` on the Stiefel manifold: each weight keeps orthogonal columns (rows) of one norm."""

    def __init__(self, params: Iterable[Any], lr: float | Tensor = 0.02, **settings: Any) -> None:
        super().__init__(params, lr, manifold="stiefel", **settings)
