"""Norms that PostDeg is compared with: the scale before LayerNorm, a LayerNorm after it, a learned gate instead."""

import torch
from torch import Tensor, nn

from manifoldnorm.gnn.postdeg import PostDegNorm, scale_rows
from manifoldnorm.gnn.scale import degree


class PreScaledNorm(nn.Module):
    """LN(s x): the scale put before LayerNorm, which divides it out up to `erasure_factor`.

    Parameters
    ----------
    dim : int
        Number of channels.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        """Scale and normalise x, shape (N, C), with scale, shape (N, 1)."""
        return self.norm(scale_rows(x, scale))


class RepeatedNorm(nn.Module):
    """LN(LN(x)): one more LayerNorm in the slot, and no scale.

    Parameters
    ----------
    dim : int
        Number of channels.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first = nn.LayerNorm(dim)
        self.second = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x, shape (N, C), twice."""
        return self.second(self.first(x))


class RenormalisedNorm(nn.Module):
    """LN(s LN(x)): PostDeg with a LayerNorm after it, which divides the scale out again.

    Parameters
    ----------
    dim : int
        Number of channels.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first = PostDegNorm(dim)
        self.second = nn.LayerNorm(dim)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        """Normalise, scale with scale, shape (N, 1), and normalise x, shape (N, C), again."""
        return self.second(self.first(x, scale=scale))


class GatedNorm(nn.Module):
    """exp(MLP(LN(x))) LN(x): a learned positive scale per node in PostDeg's slot, equal to one at the start.

    Parameters
    ----------
    dim : int
        Number of channels.
    sees_degree : bool, default False
        Whether the gate also gets log(1 + degree).
    hidden : int, default 16
        Width of the gate's hidden layer.
    """

    def __init__(self, dim: int, *, sees_degree: bool = False, hidden: int = 16) -> None:
        super().__init__()
        self.sees_degree = sees_degree
        self.norm = nn.LayerNorm(dim)
        first, last = nn.Linear(dim + sees_degree, hidden), nn.Linear(hidden, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.gate = nn.Sequential(first, nn.ReLU(), last)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Normalise and gate x, shape (N, C)."""
        y = self.norm(x)
        seen = y
        if self.sees_degree:
            log_degree = torch.log1p(degree(edge_index, x.shape[0])).to(y.dtype)
            seen = torch.cat([y, log_degree.unsqueeze(1)], dim=1)
        return torch.exp(self.gate(seen)) * y
