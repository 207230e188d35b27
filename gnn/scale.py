"""Positive per-node scales that depend on the graph alone: degree, core number, PageRank or the user's own."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from manifoldnorm.linalg.functions import may_look_at

Source = Literal["degree", "core_number", "pagerank"]
Topology = Callable[[Tensor, int, Tensor | None], Tensor]

PAGERANK_DAMPING = 0.85
PAGERANK_STEPS = 100


def degree(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Count each node's incoming edges; self-loops do not count, repeated edges count each time.

    For an undirected graph stored with both directions of each edge, as torch-geometric does, this is the degree.

    Parameters
    ----------
    edge_index : Tensor of int64, shape (2, E)
        Edges from ``edge_index[0]`` to ``edge_index[1]``.
    num_nodes : int
        Number of nodes.

    Returns
    -------
    Tensor of float64, shape (num_nodes,)

    Examples
    --------
    >>> import torch
    >>> from manifoldnorm.gnn import degree
    >>> degree(torch.tensor([[0, 1, 1, 2, 2], [1, 0, 2, 1, 2]]), 4).tolist()
    [1.0, 2.0, 1.0, 0.0]
    """
    source, target = _check_edges(edge_index, num_nodes)
    counted = (source != target).to(torch.float64)
    return counted.new_zeros(num_nodes).index_add_(0, target, counted)


def core_number(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Compute each node's core number: the largest k such that a subgraph of minimum degree k contains it.

    Edge directions, repeated edges and self-loops are ignored. Peels all nodes of the current level at once, so
    that it costs O(E) per round; it reads from the device in each round, so compute it once per graph and pass
    the result on as ``scale=``.

    Parameters
    ----------
    edge_index : Tensor of int64, shape (2, E)
    num_nodes : int

    Returns
    -------
    Tensor of float64, shape (num_nodes,)

    Examples
    --------
    >>> import torch
    >>> from manifoldnorm.gnn import core_number
    >>> triangle_with_tail = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 3]])
    >>> core_number(triangle_with_tail, 5).tolist()
    [2.0, 2.0, 2.0, 1.0, 0.0]
    """
    source, target = _check_edges(edge_index, num_nodes)
    low, high = torch.minimum(source, target), torch.maximum(source, target)
    key = torch.unique((low * num_nodes + high)[low != high])
    low, high = key // max(num_nodes, 1), key % max(num_nodes, 1)
    source, target = torch.cat([low, high]), torch.cat([high, low])

    remaining = torch.bincount(target, minlength=num_nodes)
    core = torch.zeros_like(remaining)
    alive = torch.ones_like(remaining, dtype=torch.bool)
    level = 0
    while bool(alive.any()):
        level = max(level, int(remaining[alive].min()))
        peeled = alive & (remaining <= level)
        core[peeled] = level
        alive &= ~peeled
        lost = peeled[source] & alive[target]
        remaining -= torch.bincount(target[lost], minlength=num_nodes)
        kept = alive[source] & alive[target]
        source, target = source[kept], target[kept]
    return core.to(torch.float64)


def relative_pagerank(edge_index: Tensor, num_nodes: int, batch: Tensor | None = None) -> Tensor:
    """Compute each node's PageRank times the number of nodes of its graph (so that its mean is one).

    Damping 0.85, uniform teleport within the node's own graph, 100 power steps (error below 0.85**100, about 1e-7).
    Self-loops are ignored.

    Parameters
    ----------
    edge_index : Tensor of int64, shape (2, E)
    num_nodes : int
    batch : Tensor of int64, shape (num_nodes,), optional
        Graph of each node; without it all nodes are one graph.

    Returns
    -------
    Tensor of float64, shape (num_nodes,)

    Examples
    --------
    >>> import torch
    >>> from manifoldnorm.gnn import relative_pagerank
    >>> star = torch.tensor([[0, 1, 0, 2], [1, 0, 2, 0]])
    >>> [round(value, 4) for value in relative_pagerank(star, 3).tolist()]
    [1.4595, 0.7703, 0.7703]
    """
    source, target = _check_edges(edge_index, num_nodes)
    counted = (source != target).to(torch.float64)
    out_degree = counted.new_zeros(num_nodes).index_add_(0, source, counted)
    dangling = out_degree == 0
    share = counted / out_degree.clamp_min(1)[source]
    graph = compact_graph_index(batch, num_nodes, edge_index.device)
    rank = torch.ones_like(out_degree)
    for _ in range(PAGERANK_STEPS):
        received = torch.zeros_like(rank).index_add_(0, target, rank[source] * share)
        lost = graph_mean(rank * dangling, graph)
        rank = (1 - PAGERANK_DAMPING) + PAGERANK_DAMPING * (received + lost)
    return rank


def compact_graph_index(batch: Tensor | None, num_nodes: int, device: torch.device) -> Tensor:
    """Renumber the graphs of a batch vector (any order, with gaps) to 0..N-1 without reading from the device."""
    if batch is None:
        return torch.zeros(num_nodes, dtype=torch.int64, device=device)
    if batch.shape != (num_nodes,):
        raise ValueError(f"batch must have shape ({num_nodes},), one graph per node; got {tuple(batch.shape)}")
    ordered, position = torch.sort(batch, stable=True)
    starts = torch.ones_like(ordered)
    starts[1:] = (ordered[1:] != ordered[:-1]).to(ordered.dtype)
    compact = torch.empty_like(ordered)
    compact[position] = torch.cumsum(starts, 0) - 1
    return compact


def graph_mean(values: Tensor, graph: Tensor) -> Tensor:
    """Give each node the mean of ``values`` over its graph; ``graph`` holds indices below the number of nodes."""
    total = torch.zeros_like(values).index_add_(0, graph, values)
    size = torch.zeros_like(values).index_add_(0, graph, torch.ones_like(values))
    return (total / size.clamp_min(1)).index_select(0, graph)


class TopologyScale(nn.Module):
    r"""A positive scale per node, :math:`s_i = (\text{offset} + t_i)^{-\text{power}}`, from a graph quantity t.

    It has no parameters. With the defaults, :math:`s_i = 1 / (1 + \deg i)`; an isolated node has s = 1.

    Parameters
    ----------
    source : "degree", "core_number", "pagerank" or a callable, default "degree"
        The quantity t: the in-degree, the core number, or PageRank times the number of nodes (mean one). A callable
        ``f(edge_index, num_nodes, batch)`` returns its own t of shape (num_nodes,).
    power : float, default 1.0
        Exponent; 0.5 gives the inverse square root.
    offset : float, default 1.0
        Added to t; must be positive for the built-in sources, whose t can be zero.
    normalize : "graph" or None, default None
        ``"graph"`` divides by the mean of s over the node's graph, so that the mean scale is one: the same ranking
        in each graph without a global shrink.

    Raises
    ------
    ValueError
        For an unknown source or normalization, or a setting that would make a scale infinite or not positive.

    Notes
    -----
    The degree is the in-degree: on a directed graph reverse ``edge_index`` for the out-degree. Core number ignores
    directions. Only ``"core_number"`` and callables read values back from the device.

    References
    ----------
    Y. V. Tomar, A. Das, "PostDeg: Placement Beats Parameterization in LayerNorm GNNs", arXiv 2606.14022, 2026.

    Examples
    --------
    >>> import torch
    >>> from manifoldnorm.gnn import TopologyScale
    >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> TopologyScale()(path, 4).squeeze(1).tolist()
    [0.5, 0.3333333432674408, 0.5, 1.0]
    >>> TopologyScale(lambda edge_index, num_nodes, batch: torch.arange(4.0), power=-1)(path, 4).squeeze(1).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """

    def __init__(
        self,
        source: Source | Topology = "degree",
        *,
        power: float = 1.0,
        offset: float = 1.0,
        normalize: Literal["graph"] | None = None,
    ) -> None:
        super().__init__()
        if not callable(source):
            if source not in ("degree", "core_number", "pagerank"):
                raise ValueError(f"source must be 'degree', 'core_number', 'pagerank' or a callable; got {source!r}")
            if not offset > 0:
                raise ValueError(
                    f"offset must be positive with source {source!r}, which is 0 for some nodes; got {offset}"
                )
        if not (abs(power) < float("inf") and abs(offset) < float("inf")):
            raise ValueError(f"power and offset must be finite; got power={power}, offset={offset}")
        if normalize not in (None, "graph"):
            raise ValueError(f"normalize must be None or 'graph'; got {normalize!r}")
        self.source = source
        self.power = float(power)
        self.offset = float(offset)
        self.normalize = normalize

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{self.source!r}, power={self.power}, offset={self.offset}, normalize={self.normalize!r}"

    def forward(
        self,
        edge_index: Tensor,
        num_nodes: int,
        batch: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Compute the scales.

        Parameters
        ----------
        edge_index : Tensor of int64, shape (2, E)
            Both directions of each edge for an undirected graph.
        num_nodes : int
        batch : Tensor of int64, shape (num_nodes,), optional
            Graph of each node.
        dtype : torch.dtype, optional
            Of the result; torch's default dtype if omitted. The arithmetic is float64.

        Returns
        -------
        Tensor, shape (num_nodes, 1)
        """
        if batch is not None and batch.shape != (num_nodes,):
            raise ValueError(f"batch must have shape ({num_nodes},), one graph per node; got {tuple(batch.shape)}")
        quantity = self._quantity(edge_index, num_nodes, batch)
        scale = (quantity + self.offset).pow(-self.power)
        if self.normalize == "graph":
            scale = scale / graph_mean(scale, compact_graph_index(batch, num_nodes, scale.device))
        return scale.to(dtype or torch.get_default_dtype()).unsqueeze(1)

    def _quantity(self, edge_index: Tensor, num_nodes: int, batch: Tensor | None) -> Tensor:
        if self.source == "degree":
            return degree(edge_index, num_nodes)
        if self.source == "core_number":
            return core_number(edge_index, num_nodes)
        if self.source == "pagerank":
            return relative_pagerank(edge_index, num_nodes, batch)
        assert callable(self.source)
        quantity = torch.as_tensor(self.source(edge_index, num_nodes, batch)).to(torch.float64)
        if quantity.shape == (num_nodes, 1):
            quantity = quantity.squeeze(1)
        if quantity.shape != (num_nodes,):
            raise ValueError(
                f"source must return one value per node, shape ({num_nodes},); got {tuple(quantity.shape)}"
            )
        if not torch.compiler.is_compiling():
            shifted = quantity + self.offset
            bad = torch.nonzero(~((shifted > 0) & torch.isfinite(shifted)))
            if len(bad):
                node = int(bad[0])
                raise ValueError(
                    "offset + source must be positive and finite at every node, so that the scale keeps the sign of "
                    f"the scores; node {node} has {float(shifted[node])}"
                )
        return quantity


def _check_edges(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    if not isinstance(edge_index, Tensor):
        raise TypeError(
            f"edge_index must be a torch.Tensor; got {type(edge_index).__name__}. torch.as_tensor(edge_index) makes one"
        )
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise ValueError(
            f"edge_index must have shape (2, E); got {tuple(edge_index.shape)}. "
            "An (E, 2) edge list is transposed with .t()"
        )
    if edge_index.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"edge_index must hold integers (int64); got {edge_index.dtype}")
    if num_nodes < 0:
        raise ValueError(f"num_nodes must not be negative; got {num_nodes}")
    if edge_index.numel() and may_look_at(edge_index):
        low, high = (int(bound) for bound in torch.aminmax(edge_index))
        if low < 0 or high >= num_nodes:
            raise ValueError(
                f"edge_index must name nodes from 0 to {num_nodes - 1}, as there are {num_nodes}; "
                f"got {low if low < 0 else high}"
            )
    index = edge_index.to(torch.int64)
    return index[0], index[1]
