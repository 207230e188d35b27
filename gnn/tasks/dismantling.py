"""Network dismantling: in which order to remove nodes so that the largest component shrinks soonest.

`curve` measures an order. Static orders (`order_by_score`, `highest_degree`) rank the nodes once; adaptive ones
(`order_by_rescoring`, `adaptive_highest_degree`, `core_highest_degree`, `collective_influence`) look at what is left
after each removal. `reinsert` improves any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import numpy as np
import numpy.typing as npt
import torch

from manifoldnorm.gnn.checks import IntArray, check_scores
from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.tasks.removal_curve import DismantlingCurve, curve
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
