"""Unit vectors: of activations, and of weights that are renormalised after every optimizer step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from manifoldnorm.linalg.precision import statistics_dtype


def unit_norm(x: Tensor, dim: int = -1) -> Tensor:
    """Divide `x` by its Euclidean norm along `dim`; computed in float32 at least, returned in the dtype of `x`.

    Right for vectors of any size, since entries are divided by the largest one first. A zero vector stays zero and
    passes the gradient on unchanged; a vector with an infinity or a NaN is NaN throughout.

    Examples
    --------
    >>> unit_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    precise = x.to(statistics_dtype(x))
    # Squares of float32 numbers beyond 1e19 are infinite, and below 1e-23 zero. The quotient ignores the scale, so that
    # it may be held fixed in the derivative.
    largest = precise.detach().abs().amax(dim, keepdim=True)
    scaled = precise / torch.where(largest == 0, 1.0, largest)
    norm = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True)
    return (scaled / torch.where(norm == 0, 1.0, norm)).to(x.dtype)


class NormalizedLinear(nn.Linear):
    """A linear map without bias whose rows or columns are kept at unit norm by `normalize_weights_`.

    The forward pass, and therefore the state_dict, is that of `torch.nn.Linear(..., bias=False)`.

    Parameters
    ----------
    in_features, out_features : int
        Sizes.
    unit_norm_dim : {0, 1}
        Axis along which the weight (out_features, in_features) has unit norm. nGPT normalises along the axis that
        meets the residual stream: 1 (rows) where the input is the stream, 0 (columns) where the output goes to it.

    Examples
    --------
    >>> layer = NormalizedLinear(4, 3, unit_norm_dim=0)
    >>> bool((layer.weight.norm(dim=0) - 1).abs().max() < 1e-6)
    True
    """

    def __init__(self, in_features: int, out_features: int, *, unit_norm_dim: int) -> None:
        if unit_norm_dim not in (0, 1):
            raise ValueError(f"unit_norm_dim: expected 0 (columns) or 1 (rows), got {unit_norm_dim}")
        super().__init__(in_features, out_features, bias=False)
        self.unit_norm_dim = unit_norm_dim
        nn.init.normal_(self.weight)
        normalize_weights_(self)

    def extra_repr(self) -> str:  # noqa: D102
        return f"{super().extra_repr()}, unit_norm_dim={self.unit_norm_dim}"


class NormalizedEmbedding(nn.Embedding):
    """An embedding whose rows are kept at unit norm by `normalize_weights_`."""

    unit_norm_dim = 1

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__(num_embeddings, embedding_dim)
        normalize_weights_(self)


@torch.no_grad()
def normalize_weights_(model: nn.Module) -> nn.Module:
    """Give every constrained weight vector of `model` unit norm, in place.

    Constrained are the weights of all submodules with an integer attribute `unit_norm_dim`: `NormalizedLinear`,
    `NormalizedEmbedding`, and fake-quantised copies of them. Norms are taken in float32 at least; keep the parameters
    themselves in float32 (autocast, not `model.bfloat16()`), since half-precision entries cannot hold a unit norm to
    better than their rounding. A zero vector has no direction and stays zero.

    Returns
    -------
    Module
        `model`.

    Examples
    --------
    >>> layer = NormalizedLinear(4, 3, unit_norm_dim=1)
    >>> _ = layer.weight.data.mul_(5)
    >>> _ = normalize_weights_(layer)
    >>> bool((layer.weight.norm(dim=1) - 1).abs().max() < 1e-6)
    True
    """
    for module in model.modules():
        dim = getattr(module, "unit_norm_dim", None)
        if isinstance(dim, int) and isinstance(module.weight, Tensor):
            module.weight.copy_(unit_norm(module.weight, dim))
    return model


class _NormalizeAfterStep:
    """The hook as an object, so that an optimizer which holds it can still be pickled."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        normalize_weights_(self.model)


def register_weight_normalization(optimizer: Optimizer, model: nn.Module) -> RemovableHandle:
    """Normalise the weights of `model` now and after every step of `optimizer`.

    Returns
    -------
    RemovableHandle
        `.remove()` stops it.

    Examples
    --------
    >>> model = NormalizedLinear(4, 3, unit_norm_dim=1)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    >>> handle = register_weight_normalization(optimizer, model)
    >>> model(torch.ones(4)).sum().backward()
    >>> optimizer.step()
    >>> bool((model.weight.norm(dim=1) - 1).abs().max() < 1e-6)
    True
    """
    normalize_weights_(model)
    return optimizer.register_step_post_hook(_NormalizeAfterStep(model))
