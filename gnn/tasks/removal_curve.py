"""The dismantling curve of a removal order, and what is read off it."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import numpy as np
import numpy.typing as npt
import torch

from manifoldnorm.gnn.checks import IntArray, check_nodes
from manifoldnorm.gnn.graphs import Graph


@dataclass(frozen=True, eq=False)
class DismantlingCurve:
    """The size of the largest component while nodes are removed in an order.

    Parameters
    ----------
    order
        All nodes, the first removed first; int64, shape (nodes,).
    largest_component
        Size of the largest component after removing the first q nodes, q = 0..n; int64, shape (nodes + 1,).
    """

    order: IntArray
    largest_component: IntArray

    @property
    def value(self) -> float:
        """The robustness R; see :meth:`robustness`."""
        return self.robustness()

    def robustness(self) -> float:
        """Return R = (1/n) sum over q = 1..n of largest_component[q] / n (Schneider et al., PNAS 2011).

        The lower the better the attack; 0 for an empty graph.
        """
        n = len(self.order)
        return float(self.largest_component[1:].sum()) / n**2 if n else 0.0

    def critical_fraction(self, target: float = 0.01) -> float:
        """Return q_c, the smallest share q/n of removed nodes that leaves no component above target * n nodes.

        ``target`` is usually 0.01 on large graphs and 0.1 on small ones.
        """
        n = len(self.order)
        return self.critical_size(target) / n if n else 0.0

    def critical_size(self, target: float = 0.01) -> int:
        """Return the least number of removed nodes that leaves no component above target * n nodes."""
        return int(np.argmax(self.largest_component <= target_size(target, len(self.order))))

    def accumulated_normalised_connectivity(self, costs: npt.ArrayLike | None = None) -> float:
        """Return ANC = sum over q = 1..n of largest_component[q]/largest_component[0] * c(v_q) / sum of c.

        ``costs`` is one positive number a node, shape (nodes,), 1 where None: on a connected graph that is R.
        """
        n = len(self.order)
        values = np.ones(n) if costs is None else np.asarray(costs, dtype=np.float64)
        if values.shape != (n,) or not np.all((values > 0) & np.isfinite(values)):
            raise ValueError(f"costs must be {n} positive finite numbers, one a node.")
        if n == 0:
            return 0.0
        shares = self.largest_component[1:] / self.largest_component[0]
        return float(shares @ values[self.order] / values.sum())


def curve(graph: Graph, order: npt.ArrayLike | torch.Tensor) -> DismantlingCurve:
    """Remove the nodes in an order and follow the largest component, by union-find on the reversed order.

    Parameters
    ----------
    graph
        An undirected graph.
    order
        A permutation of the nodes, the first removed first.

    Returns
    -------
    The curve, with its robustness R, critical fraction and accumulated normalised connectivity.

    Raises
    ------
    ValueError
        For a directed graph or an order that is no permutation.

    Examples
    --------
    >>> path = Graph.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    >>> measured = curve(path, [2, 1, 3, 0, 4])
    >>> measured.largest_component.tolist(), round(measured.robustness(), 2)
    ([5, 2, 2, 1, 1, 0], 0.24)
    """
    graph.require_undirected("dismantling")
    n = graph.num_nodes
    removed = check_nodes(order, n, name="order")
    if len(removed) != n:
        raise ValueError(f"order must be a permutation of all {n} nodes, got {len(removed)} of them.")
    # Nodes are renamed by when they come back, so that an edge appears with its later end.
    back = np.empty(n, dtype=np.int64)
    back[removed] = np.arange(n - 1, -1, -1)
    tails, heads = back[graph.tails], back[graph.indices]
    later = tails > heads
    tails, heads = tails[later], heads[later]
    by_time = np.argsort(tails, kind="stable")
    grown_at, grown_to = _growth_of_largest(n, tails[by_time].tolist(), heads[by_time].tolist())
    sizes = np.zeros(n + 1, dtype=np.int64)
    sizes[1:] = 1
    sizes[np.array(grown_at, dtype=np.int64) + 1] = grown_to
    return DismantlingCurve(removed, np.maximum.accumulate(sizes)[::-1].copy())


def target_size(target: float, num_nodes: int) -> int:
    """Return how many nodes a component may have: the share ``target`` of all, rounded down."""
    if not 0 <= target <= 1:
        raise ValueError(f"target must lie in [0, 1], got {target}.")
    # 0.29 * 100 is 28.999999999999996 in floating point; 29 is meant.
    return floor(target * num_nodes + 1e-9)


def _growth_of_largest(n: int, tails: list[int], heads: list[int]) -> tuple[list[int], list[int]]:
    """Join tail and head in turn; return at which tails the largest component grew, and to what size."""
    parent = list(range(n))
    size = [1] * n
    largest = 1
    grown_at, grown_to = [], []
    for tail, v in zip(tails, heads):
        u = tail
        while parent[u] != u:
            parent[u] = u = parent[parent[u]]
        while parent[v] != v:
            parent[v] = v = parent[parent[v]]
        if u == v:
            continue
        if size[u] < size[v]:
            u, v = v, u
        parent[v] = u
        size[u] += size[v]
        if size[u] > largest:
            largest = size[u]
            grown_at.append(tail)
            grown_to.append(largest)
    return grown_at, grown_to
