"""The average of gradients, and what may be done to it before it is projected: clipping, equilibration, whitening."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from manifoldnorm.optim.blocks import Block, stack, unstack_
from manifoldnorm.optim.direction import select

Precondition = Literal["row", "column", "row_column", "adam"]


def finite(gradients: Tensor) -> Tensor:
    """Return one for each matrix of a stack that is finite and zero for the others, shape (B, 1, 1).

    A sum is finite only if every term is, and costs a fraction of testing each entry.
    """
    wide = torch.promote_types(gradients.dtype, torch.float32)
    return torch.isfinite(gradients.sum((-2, -1), keepdim=True, dtype=wide)).to(wide)


def average_(
    gradients: Tensor, keep: Tensor, blocks: list[Block], states: list[dict[str, Any]], group: dict[str, Any]
) -> Tensor:
    """Average gradients into the states' buffers and return the preconditioned momentum, both of shape (B, m, n).

    Matrices whose `keep` is zero leave their state as it is.
    """
    buffers = stack(blocks, [state["momentum_buffer"] for state in states])
    usable = torch.nan_to_num(gradients, nan=0.0, posinf=0.0, neginf=0.0).to(buffers.dtype)
    if group["clip_entries"] is not None:
        usable = clip_entries(usable, group["clip_entries"])
    usable.lerp_(buffers, 1 - keep.to(buffers.dtype))
    buffers.lerp_(usable, 1 - group["momentum"])
    unstack_(blocks, [state["momentum_buffer"] for state in states], buffers)
    if group["precondition"] == "adam":
        momentum = usable.lerp(buffers, group["momentum"]) if group["nesterov"] else buffers
        return _whitened_(momentum, usable, keep, blocks, states, group)
    momentum = usable.lerp_(buffers, group["momentum"]) if group["nesterov"] else buffers
    return momentum if group["precondition"] is None else equilibrate(momentum, group["precondition"])


def _whitened_(
    momentum: Tensor,
    gradients: Tensor,
    keep: Tensor,
    blocks: list[Block],
    states: list[dict[str, Any]],
    group: dict[str, Any],
) -> Tensor:
    """Update the second moments and divide by their roots."""
    decay = group["precondition_decay"]
    moments = stack(blocks, [state["second_moment"] for state in states])
    keep = keep.to(moments.dtype)
    moments.lerp_(select(keep, gradients.to(moments.dtype).square(), moments), 1 - decay)
    unstack_(blocks, [state["second_moment"] for state in states], moments)
    steps = stack_steps_(blocks, states, keep)
    # Before the first finite gradient the momentum is zero, and so must the quotient be.
    correction = (1 - decay**steps).clamp(min=1 - decay)
    return momentum / ((moments / correction).sqrt() + group["eps"])


def stack_steps_(blocks: list[Block], states: list[dict[str, Any]], keep: Tensor) -> Tensor:
    """Count a step where the gradient was finite; return the counts, shape (B, 1, 1)."""
    for block, state, kept in zip(blocks, states, keep):
        state["step"][block.index] += kept.view(())
    return torch.stack([state["step"][block.index] for block, state in zip(blocks, states)])[:, None, None]


def clip_entries(gradient: Tensor, limit: float) -> Tensor:
    """Clamp the entries of each matrix of shape (..., m, n) to `limit` times their root mean square.

    Examples
    --------
    >>> clip_entries(torch.tensor([[1.0, 1.0], [1.0, 9.0]]), 1.0)
    tensor([[1.0000, 1.0000],
            [1.0000, 4.5826]])
    """
    entries = gradient.shape[-1] * gradient.shape[-2]
    largest = limit / entries**0.5 * torch.linalg.vector_norm(gradient, dim=(-2, -1), keepdim=True)
    return torch.minimum(torch.maximum(gradient, -largest), largest)


def equilibrate(momentum: Tensor, sides: Precondition) -> Tensor:
    """Scale rows, columns, or rows and then columns of each matrix to norm one; zero ones stay zero.

    Examples
    --------
    >>> equilibrate(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), "row")
    tensor([[0.6000, 0.8000],
            [0.0000, 1.0000]])
    """
    for side, dim in (("row", -1), ("column", -2)):
        if side in sides:
            norm = torch.linalg.vector_norm(momentum, dim=dim, keepdim=True)
            momentum = momentum / torch.where(norm > 0, norm, torch.ones_like(norm))
    return momentum
