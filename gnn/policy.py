"""A small residual graph network that scores the nodes of a graph, with the norm as an argument."""

import inspect
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from manifoldnorm.gnn.missing import require_torch_geometric
from manifoldnorm.gnn.postdeg import PostDegNorm

Backbone = Literal["gat", "gcn", "sage", "gin"]
NormFactory = Callable[[int], nn.Module]
GRAPH_ARGUMENTS = ("edge_index", "batch", "scale")


class NodePolicy(nn.Module):
    """Score the nodes of a graph: residual graph convolutions, a norm after (or before) each, a linear head.

    ``block="post"``: h <- norm(h + relu(conv(h))), so that the last norm feeds the head.
    ``block="pre"``: h <- h + relu(conv(norm(h))), and one more norm before the head.

    Parameters
    ----------
    in_channels : int
        Node features.
    hidden_channels : int, default 32
    num_layers : int, default 3
    backbone : "gat", "gcn", "sage" or "gin", default "gat"
        The convolution, torch-geometric's: graph attention, normalised sum, mean, or sum with a two-layer network.
    norm : callable or sequence of callables, default `PostDegNorm`
        What builds the norm from the number of channels: ``PostDegNorm``, ``torch.nn.LayerNorm``, a torch-geometric
        norm, or any ``lambda dim: ...``. Of ``edge_index``, ``batch`` and ``scale`` the norm gets those that its
        ``forward`` names. A sequence gives each slot its own: ``num_layers`` of them, one more with ``block="pre"``.
    block : "post" or "pre", default "post"
    heads : int, default 4
        Attention heads of "gat"; must divide ``hidden_channels``.
    head_features : int, default 0
        Number of node features that go straight to the head (weights start at zero).

    Raises
    ------
    ImportError
        Without torch-geometric: ``pip install "manifoldnorm[gnn]"``.
    ValueError
        For an unknown backbone or block, or sizes that do not fit.

    Notes
    -----
    The convolutions and the head draw their initial weights before the norms do, so that under one seed policies with
    different norms start from the same shared weights. Nothing of size N x N is built: memory is O(N + E) times the
    channels, in `torch.inference_mode` of one layer only.

    Examples
    --------
    >>> import torch
    >>> from manifoldnorm.gnn import NodePolicy
    >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> NodePolicy(8, norm=torch.nn.LayerNorm)(torch.randn(3, 8), path).shape
    torch.Size([3])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int = 32,
        num_layers: int = 3,
        *,
        backbone: Backbone = "gat",
        norm: NormFactory | Sequence[NormFactory] = PostDegNorm,
        block: Literal["post", "pre"] = "post",
        heads: int = 4,
        head_features: int = 0,
    ) -> None:
        super().__init__()
        if block not in ("post", "pre"):
            raise ValueError(f"block must be 'post' or 'pre'; got {block!r}")
        if min(in_channels, hidden_channels, num_layers) < 1 or head_features < 0:
            raise ValueError(
                "in_channels, hidden_channels and num_layers must be at least 1 and head_features at least 0; got "
                f"{in_channels}, {hidden_channels}, {num_layers}, {head_features}"
            )
        slots = num_layers + (block == "pre")
        factories = [norm] * slots if callable(norm) else list(norm)
        if len(factories) != slots:
            raise ValueError(
                f"norm must be one factory or a sequence of {slots} with {num_layers} layers and block={block!r}; "
                f"got {len(factories)}"
            )
        self.in_channels = in_channels
        self.block = block
        self.embed = nn.Linear(in_channels, hidden_channels)
        self.convs = nn.ModuleList(_graph_convolution(backbone, hidden_channels, heads) for _ in range(num_layers))
        self.head = nn.Linear(hidden_channels, 1)
        self.norms = nn.ModuleList(factory(hidden_channels) for factory in factories)
        self._norm_arguments = [_graph_arguments(module) for module in self.norms]
        self.head_shortcut = nn.Linear(head_features, 1, bias=False) if head_features else None
        if self.head_shortcut is not None:
            nn.init.zeros_(self.head_shortcut.weight)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        batch: Tensor | None = None,
        *,
        scale: Tensor | None = None,
        head_features: Tensor | None = None,
    ) -> Tensor:
        """Score the nodes.

        Parameters
        ----------
        x : Tensor, shape (N, in_channels)
        edge_index : Tensor of int64, shape (2, E)
        batch : Tensor of int64, shape (N,), optional
            Graph of each node.
        scale : Tensor, shape (N,) or (N, 1), optional
            Topology scales computed before, used by all norms that take one; without it each computes its own.
        head_features : Tensor, shape (N, head_features), optional
            Required when the policy was built with ``head_features``.

        Returns
        -------
        Tensor, shape (N,)
        """
        if x.ndim != 2 or x.shape[1] != self.in_channels:
            raise ValueError(f"x must have shape (N, {self.in_channels}); got {tuple(x.shape)}")
        graph = {"edge_index": edge_index, "batch": batch, "scale": scale}
        h = self.embed(x)
        for layer, conv in enumerate(self.convs):
            if self.block == "post":
                h = self._normalise(layer, h + torch.relu(conv(h, edge_index)), graph)
            else:
                h = h + torch.relu(conv(self._normalise(layer, h, graph), edge_index))
        if self.block == "pre":
            h = self._normalise(len(self.convs), h, graph)
        score = self.head(h)
        if self.head_shortcut is not None:
            if head_features is None:
                raise ValueError("head_features must be given: the policy was built with head_features > 0")
            score = score + self.head_shortcut(head_features)
        return score.squeeze(-1)

    def _normalise(self, slot: int, h: Tensor, graph: dict[str, Tensor | None]) -> Tensor:
        return self.norms[slot](h, **{name: graph[name] for name in self._norm_arguments[slot]})


def _graph_arguments(norm: nn.Module) -> tuple[str, ...]:
    names = inspect.signature(norm.forward).parameters
    return tuple(name for name in GRAPH_ARGUMENTS if name in names)


def _graph_convolution(backbone: str, channels: int, heads: int) -> nn.Module:
    conv = require_torch_geometric().nn
    if backbone == "gat":
        if channels % heads:
            raise ValueError(f"heads must divide hidden_channels; got heads={heads}, hidden_channels={channels}")
        return conv.GATConv(channels, channels // heads, heads=heads)
    if backbone == "gcn":
        return conv.GCNConv(channels, channels)
    if backbone == "sage":
        return conv.SAGEConv(channels, channels)
    if backbone == "gin":
        return conv.GINConv(nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels)))
    raise ValueError(f"backbone must be 'gat', 'gcn', 'sage' or 'gin'; got {backbone!r}")
