"""Independent sets from scores, and the dynamic minimum-degree greedy that every learned score is shown beside."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt
import torch

from manifoldnorm.gnn.checks import IntArray, check_nodes, check_scores
from manifoldnorm.gnn.graphs import Graph

Scorer = Callable[[Graph], npt.ArrayLike | torch.Tensor]


@dataclass(frozen=True, eq=False)
class IndependentSet:
    """An independent set, checked, and what is known about how good it is.

    Parameters
    ----------
    nodes
        The nodes, int64, ascending.
    size
        How many they are.
    bound
        An upper bound on the size of any independent set, or None where none was computed.
    optimal
        Whether the set is proved to be a largest one (``size == bound``).
    """

    nodes: IntArray
    size: int
    bound: int | None
    optimal: bool

    @property
    def gap(self) -> int | None:
        """How many nodes larger a largest independent set could be at most; None where no bound is known."""
        return None if self.bound is None else self.bound - self.size


def check_independent(graph: Graph, nodes: npt.ArrayLike | torch.Tensor) -> IntArray:
    """Return ``nodes`` ascending, or raise a ValueError if two of them are joined by an edge.

    Examples
    --------
    >>> path = Graph.from_edges(3, [(0, 1), (1, 2)])
    >>> check_independent(path, [2, 0]).tolist()
    [0, 2]
    """
    chosen = np.sort(check_nodes(nodes, graph.num_nodes, name="nodes"))
    inside = _members(graph, chosen)
    conflicts = np.flatnonzero(inside[graph.tails] & inside[graph.indices])
    if len(conflicts):
        u, v = int(graph.tails[conflicts[0]]), int(graph.indices[conflicts[0]])
        raise ValueError(f"nodes must be independent, but {u} and {v} are joined by an edge.")
    return chosen


def is_maximal(graph: Graph, nodes: npt.ArrayLike | torch.Tensor) -> bool:
    """Whether no node can be added to an independent set: each other node has a neighbour in it.

    Examples
    --------
    >>> path = Graph.from_edges(3, [(0, 1), (1, 2)])
    >>> is_maximal(path, [1]), is_maximal(path, [0])
    (True, False)
    """
    covered = _members(graph, check_independent(graph, nodes))
    covered[graph.indices[covered[graph.tails]]] = True
    return bool(covered.all())


def checked_result(graph: Graph, nodes: npt.ArrayLike, *, bound: int | None = None) -> IndependentSet:
    """Wrap nodes that an algorithm found, after the check that they are independent and maximal."""
    chosen = check_independent(graph, nodes)
    if not is_maximal(graph, chosen):
        raise ValueError("nodes must be a maximal independent set, but a node can still be added.")
    return IndependentSet(chosen, len(chosen), bound, bound == len(chosen))


def decode(graph: Graph, scores: npt.ArrayLike | torch.Tensor) -> IndependentSet:
    """Take the nodes from the highest score down, each unless a neighbour is taken already.

    Parameters
    ----------
    graph
        An undirected graph.
    scores
        One number a node, shape (nodes,) or (nodes, 1); the higher the sooner taken, ties by smallest index.

    Returns
    -------
    A maximal independent set, without a bound.

    Raises
    ------
    ValueError
        For a directed graph, scores of the wrong shape or NaN.

    Examples
    --------
    >>> path = Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)])
    >>> decode(path, -path.degree).nodes.tolist()
    [0, 3]
    """
    graph.require_undirected("an independent set")
    order = np.argsort(-check_scores(scores, graph.num_nodes), kind="stable")
    neighbours = graph.neighbour_lists()
    blocked = bytearray(graph.num_nodes)
    taken = []
    for node in order.tolist():
        if not blocked[node]:
            taken.append(node)
            for other in neighbours[node]:
                blocked[other] = 1
    return checked_result(graph, taken)


def decode_adaptive(graph: Graph, score_function: Scorer, *, fraction: float = 0.1) -> IndependentSet:
    """Decode in rounds: score what is left, take the best few, drop them and their neighbours, score again.

    Parameters
    ----------
    graph
        An undirected graph.
    score_function
        Gets the induced subgraph of the nodes still free and returns one score for each of its nodes.
    fraction
        Share of the free nodes to take in a round, in (0, 1], at least one node. 1 scores once.

    Returns
    -------
    A maximal independent set, without a bound.

    Raises
    ------
    ValueError
        As :func:`decode`, or when ``fraction`` is out of range.

    Examples
    --------
    >>> path = Graph.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    >>> decode_adaptive(path, lambda rest: -rest.degree).nodes.tolist()
    [0, 2, 4]
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must lie in (0, 1], got {fraction}.")
    graph.require_undirected("an independent set")
    free = np.arange(graph.num_nodes)
    taken: list[int] = []
    while len(free):
        rest = graph.subgraph(free)
        scores = check_scores(score_function(rest), rest.num_nodes)
        blocked = np.zeros(rest.num_nodes, dtype=bool)
        budget = ceil(fraction * rest.num_nodes)
        for node in np.argsort(-scores, kind="stable").tolist():
            if budget == 0:
                break
            if not blocked[node]:
                blocked[node] = True
                blocked[rest.neighbours(node)] = True
                taken.append(int(free[node]))
                budget -= 1
        free = free[~blocked]
    return checked_result(graph, np.array(taken, dtype=np.int64))


def greedy(graph: Graph) -> IndependentSet:
    """Dynamic minimum-degree greedy: take the node with fewest free neighbours, drop it and them, repeat.

    Ties go to the smallest index. This is the reference that learned scores rarely beat (Angelini and
    Ricci-Tersenghi, "Modern graph neural networks do worse than classical greedy algorithms", 2022).

    Raises
    ------
    ValueError
        For a directed graph.

    Examples
    --------
    >>> path = Graph.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    >>> greedy(path).size
    3
    """
    graph.require_undirected("an independent set")
    neighbours = graph.neighbour_lists()
    degree = graph.degree.tolist()
    gone = bytearray(graph.num_nodes)
    # Entries whose degree is out of date are skipped when they come up; the current one is in the heap too.
    heap = list(zip(degree, range(graph.num_nodes)))
    heapq.heapify(heap)
    taken = []
    while heap:
        key, node = heapq.heappop(heap)
        if gone[node] or key != degree[node]:
            continue
        taken.append(node)
        gone[node] = 1
        dropped = [other for other in neighbours[node] if not gone[other]]
        for other in dropped:
            gone[other] = 1
        for other in dropped:
            for second in neighbours[other]:
                if not gone[second]:
                    degree[second] -= 1
                    heapq.heappush(heap, (degree[second], second))
    return checked_result(graph, np.array(taken, dtype=np.int64))


def _members(graph: Graph, nodes: IntArray) -> npt.NDArray[np.bool_]:
    inside = np.zeros(graph.num_nodes, dtype=bool)
    inside[nodes] = True
    return inside
