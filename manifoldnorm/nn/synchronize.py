"""Sums over the processes of a `torch.distributed` group, with gradients, and the layers that use them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class _AllReduceSum(torch.autograd.Function):
    """Sum over processes; since every process's loss depends on the sum, so does the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        total = x.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _AllReduceSum.apply(gradient, ctx.group), None


class ProcessSum:
    """Sums a tensor over the processes of a group, differentiably.

    Parameters
    ----------
    group : ProcessGroup or None
        A group from `torch.distributed.new_group`; None or `torch.distributed.group.WORLD` for all processes.

    Raises
    ------
    RuntimeError
        At the first call, when `torch.distributed` was not initialised.
    """

    def __init__(self, group: Any) -> None:
        self.group = group

    def __call__(self, x: Tensor) -> Tensor:
        """Return the sum of `x`, which has the same shape in every process."""
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "process_group was given but torch.distributed is not initialised; call "
                'torch.distributed.init_process_group("gloo") (or "nccl" on GPUs) first, or leave process_group=None'
            )
        result: Tensor = _AllReduceSum.apply(x, self.group)
        return result


def convert_sync_batchnorm(module: nn.Module, process_group: Any = None) -> nn.Module:
    """Make every Riemannian batch norm in `module` take its statistics over all processes.

    Parameters
    ----------
    module : nn.Module
        Changed in place; parameters and buffers stay the same objects.
    process_group : ProcessGroup, optional
        The processes to synchronise; all of them by default.

    Returns
    -------
    nn.Module
        `module` itself, for chaining.

    Examples
    --------
    >>> from manifoldnorm import SPDLogCholesky
    >>> from manifoldnorm.nn import RiemannianBatchNorm
    >>> layer = convert_sync_batchnorm(RiemannianBatchNorm(SPDLogCholesky(), (3, 3)))
    >>> layer.synchronized
    True
    """
    from manifoldnorm.nn.batchnorm import RiemannianBatchNorm

    for child in module.modules():
        if isinstance(child, RiemannianBatchNorm):
            child.synchronized, child.process_group = True, process_group
    return module
