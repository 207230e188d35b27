"""Network dismantling: in which order to remove nodes so that the largest component shrinks soonest.

`curve` measures an order. Static orders (`order_by_score`, `highest_degree`) rank the nodes once; adaptive ones
(`order_by_rescoring`, `adaptive_highest_degree`, `core_highest_degree`, `collective_influence`) look at what is left
after each removal. `reinsert` improves any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt
import torch
from manifoldnorm.gnn.checks import IntArray, check_nodes, check_scores
from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.tasks.removal_orders import (
    adaptive_highest_degree,
    collective_influence,
    core_highest_degree,
    reinsert,
)

__all__ = [
    "DismantlingCurve",
    "adaptive_highest_degree",
    "collective_influence",
    "core_highest_degree",
    "curve",
    "highest_degree",
    "order_by_rescoring",
    "order_by_score",
    "reinsert",
]

Scorer = Callable[[Graph], npt.ArrayLike | torch.Tensor]


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
        if not 0 <= target <= 1:
            raise ValueError(f"target must lie in [0, 1], got {target}.")
        n = len(self.order)
        return float(np.argmax(self.largest_component <= target * n)) / n if n else 0.0

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


def highest_degree(graph: Graph) -> IntArray:
    """Return the nodes by degree in the whole graph, highest first, ties by smallest index.

    Examples
    --------
    >>> highest_degree(Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)])).tolist()
    [1, 2, 0, 3]
    """
    graph.require_undirected("dismantling")
    return order_by_score(graph, graph.degree)


def order_by_score(graph: Graph, scores: npt.ArrayLike | torch.Tensor) -> IntArray:
    """Return the nodes by score, highest first, ties by smallest index: a static order.

    Raises
    ------
    ValueError
        For scores of the wrong shape or NaN.
    """
    return np.argsort(-check_scores(scores, graph.num_nodes), kind="stable").astype(np.int64)


def order_by_rescoring(graph: Graph, score_function: Scorer, *, fraction: float = 0.05) -> IntArray:
    """Remove the best-scored nodes in rounds and score what is left after each: an adaptive order.

    Parameters
    ----------
    graph
        An undirected graph.
    score_function
        Gets the induced subgraph of the nodes left and returns one score for each of its nodes.
    fraction
        Share of all nodes to remove in a round, in (0, 1], at least one node.

    Returns
    -------
    A permutation of the nodes, int64, ties by smallest index.

    Raises
    ------
    ValueError
        For a directed graph, ``fraction`` out of range, scores of the wrong shape or NaN.

    Examples
    --------
    >>> path = Graph.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    >>> order_by_rescoring(path, lambda rest: rest.degree).tolist()
    [1, 3, 0, 2, 4]
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must lie in (0, 1], got {fraction}.")
    graph.require_undirected("dismantling")
    left = np.arange(graph.num_nodes)
    step = max(ceil(fraction * graph.num_nodes), 1)
    rounds: list[IntArray] = []
    while len(left):
        rest = graph.subgraph(left)
        best = order_by_score(rest, score_function(rest))[:step]
        rounds.append(left[best])
        left = np.delete(left, best)
    return np.concatenate(rounds) if rounds else left


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
