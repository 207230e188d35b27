"""Chains of layers of which some are batch norms that need to know a domain: applying them, and refitting them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import cast

import torch
from torch import Tensor, nn

from manifoldnorm.nn.batchnorm import RiemannianBatchNorm
from manifoldnorm.nn.domain_batchnorm import DomainBatchNorm


def run_layers(layers: Iterable[nn.Module], x: Tensor, domain: Hashable | Iterable[Hashable] | Tensor | None) -> Tensor:
    """Apply layers one after another; those with statistics per domain also get the `domain`."""
    for layer in layers:
        if isinstance(layer, DomainBatchNorm):
            if domain is None:
                raise ValueError(
                    f"domain must be given, one of {list(layer.domains)}, since the network has a DomainBatchNorm"
                )
            x = layer(x, domain)
        else:
            x = cast("Tensor", layer(x))
    return x


@torch.no_grad()
def refit_layers(network: nn.Module, layers: Iterable[nn.Module], x: Tensor, domain: Hashable | None) -> None:
    """Replace the running statistics of the batch norms among `layers`, in their order, by those of `x`.

    The training mode of every module of `network` is afterwards what it was.
    """
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        for layer in layers:
            arguments = (x, domain) if isinstance(layer, DomainBatchNorm) else (x,)
            if isinstance(layer, RiemannianBatchNorm):
                layer.refit(*arguments)
            x = layer(*arguments)
    finally:
        for module, training in modes:
            module.training = training
