"""What the optimizer keeps for each parameter: made, read, written, loaded, and reconciled with changed weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from manifoldnorm.manifolds.matrices import Frame, MatrixManifold
from manifoldnorm.optim import distributed
from manifoldnorm.optim.blocks import Block, blocks_of
from manifoldnorm.optim.constraints import build, initial_radius
from manifoldnorm.optim.direction import select
from manifoldnorm.optim.settings import manifold_of

# A weight written by somebody else is put back onto its manifold when it is further away than this.
_OFF_MANIFOLD = 1e-3


@torch.no_grad()
def initialise(parameter: Tensor, group: dict[str, Any], name: str) -> dict[str, Any]:
    """Create the state of a parameter and move it onto its manifold.

    Returns
    -------
    dict
        "momentum_buffer"; "radius", one for each block; for the spectral sphere "left" and "right" singular vectors;
        "second_moment" and "step" for whitening; "master" for float32 weights. Tensors only.
    """
    wide = torch.promote_types(parameter.dtype, torch.float32)
    has_master = group["master_weights"] and parameter.dtype != wide
    state: dict[str, Any] = {"momentum_buffer": torch.zeros_like(parameter, dtype=wide if has_master else None)}
    blocks = 1 if group["split"] is None else len(group["split"])
    if group["precondition"] == "adam":
        state["second_moment"] = torch.zeros_like(parameter, dtype=wide)
        state["step"] = torch.zeros(blocks, dtype=torch.float32, device=parameter.device)
    if has_master:
        state["master"] = parameter.detach().to(wide, copy=True)
    manifold_name, radius = manifold_of(parameter, group)
    if manifold_name != "euclidean":
        whole = distributed.whole(parameter).to(wide, copy=True)
        state.update(_constrain_(whole, manifold_name, radius, group, name))
        if group["project_init"]:
            distributed.assign_whole_(parameter, whole)
            if has_master:
                distributed.assign_whole_(state["master"], whole)
    return state


def _constrain_(
    whole: Tensor, manifold_name: str, radius: float | str | None, group: dict[str, Any], name: str
) -> dict[str, Tensor]:
    """Project a weight in place; return its radii and singular vectors."""
    blocks = blocks_of(whole, group["split"])
    radii = [initial_radius(manifold_name, b.matrix_of(whole), radius, group["radius_mult"], name) for b in blocks]
    state = {"radius": torch.stack(radii)}
    if manifold_name == "spectral":
        state["left"] = torch.zeros(whole.shape[0], dtype=whole.dtype, device=whole.device)
        state["right"] = torch.zeros(len(blocks), blocks[0].shape[1], dtype=whole.dtype, device=whole.device)
    for block, value in zip(blocks, radii):
        manifold = build(manifold_name, value, sigma=group["sigma"], like=block.matrix_of(whole))
        block.rows_of(whole).copy_(manifold.projx(block.matrix_of(whole)).view(block.rows_of(whole).shape))
        write_frames_([block], [state], _leading_vectors(manifold, block.matrix_of(whole)))
    return state


def _leading_vectors(manifold: MatrixManifold, matrix: Tensor) -> Frame:
    """Return the frame that the manifold keeps at a single matrix, if it keeps one, by its own estimator."""
    return manifold.retract_along(matrix, torch.zeros_like(matrix), 0.0, bound=0.0)[1]


def reconcile(parameter: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
    """Follow a parameter that somebody else has written; a state that belongs to it is left exactly as it is."""
    if "master" in state:
        master = state["master"]
        unchanged = (master.to(parameter.dtype) == parameter).to(master.dtype)
        master.lerp_(parameter.to(master.dtype), 1 - unchanged)
    name, _ = manifold_of(parameter, group)
    if name not in ("stiefel", "grassmann", "spectral"):
        return
    target = state.get("master", parameter)
    whole = distributed.whole(target).to(torch.promote_types(parameter.dtype, torch.float32), copy=True)
    for block in blocks_of(whole, group["split"]):
        manifold = build(name, state["radius"][block.index], sigma=group["sigma"], like=block.matrix_of(whole))
        if name == "spectral":
            _refresh_frame_(block, whole, manifold, state)
        else:
            matrix, rows = block.matrix_of(whole), block.rows_of(whole)
            off = (manifold.constraint_error(matrix) > _OFF_MANIFOLD).to(whole.dtype)
            rows.lerp_(manifold.projx(matrix).view(rows.shape), off)
    if name != "spectral":
        distributed.assign_whole_(target, whole)


def _refresh_frame_(block: Block, whole: Tensor, manifold: MatrixManifold, state: dict[str, Any]) -> None:
    """Find the singular vectors again where the kept ones do not belong to the matrix."""
    matrix = block.matrix_of(whole)
    kept = tuple(part.squeeze(0) for part in read_frames([block], [state]))
    found = _leading_vectors(manifold, matrix)
    if found is None:
        return
    response, best = ((left.mT @ matrix @ right).abs() for left, right in (kept, found))
    stale = (response < (1 - _OFF_MANIFOLD) * best).to(whole.dtype)
    write_frames_([block], [state], tuple(select(stale, new, old) for new, old in zip(found, kept)))


def read_frames(blocks: list[Block], states: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    """Stack the leading singular vectors kept for the spectral sphere: shapes (B, m, 1) and (B, n, 1)."""
    left = torch.stack([state["left"][block.start : block.stop] for block, state in zip(blocks, states)])
    right = torch.stack([state["right"][block.index] for block, state in zip(blocks, states)])
    return left.unsqueeze(-1), right.unsqueeze(-1)


def write_frames_(blocks: list[Block], states: list[dict[str, Any]], frame: Frame) -> None:
    """Keep leading singular vectors, shaped as `read_frames` returns them."""
    if frame is None:
        return
    left, right = (part.reshape(len(blocks), -1) for part in frame)
    for i, (block, state) in enumerate(zip(blocks, states)):
        state["left"][block.start : block.stop].copy_(left[i])
        state["right"][block.index].copy_(right[i])


def restore_precision_(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Undo the cast of state to the parameters' dtype that `Optimizer.load_state_dict` makes."""
    saved = [key for group in state_dict["param_groups"] for key in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, parameter in zip(saved, parameters):
        for name, value in state_dict["state"].get(key, {}).items():
            current = optimizer.state[parameter].get(name)
            if isinstance(value, Tensor) and isinstance(current, Tensor) and current.dtype != value.dtype:
                optimizer.state[parameter][name] = value.to(device=current.device, copy=True)
