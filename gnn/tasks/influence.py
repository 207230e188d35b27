"""Influence maximization under the independent cascade model: k seeds with the largest expected spread.

Set the probabilities with `uniform`, `weighted_cascade` or `trivalency`; `spread` estimates the value of given seeds
with its standard error, `exact_spread` computes it on tiny graphs; `greedy` and `greedy_with_guarantee` are the
references, `highest_degree` the heuristic, `top_scores` turns a score into seeds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from manifoldnorm.gnn.checks import IntArray, check_budget, check_nodes, check_scores
from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.tasks.cascades import (
    Spread,
    probabilities_of,
    spread_by_cascade,
    spread_by_enumeration,
)
from manifoldnorm.gnn.tasks.live_edge_worlds import LiveEdgeWorlds, sample_worlds
from manifoldnorm.gnn.tasks.reverse_reachable import (
    ReverseReachableSets,
    pick_with_guarantee,
    sample_reverse_reachable_sets,
)

__all__ = [
    "LiveEdgeWorlds",
    "ReverseReachableSets",
    "Spread",
    "exact_spread",
    "greedy",
    "greedy_with_guarantee",
    "highest_degree",
    "sample_reverse_reachable_sets",
    "sample_worlds",
    "spread",
    "top_scores",
    "trivalency",
    "uniform",
    "weighted_cascade",
]


def uniform(graph: Graph, probability: float) -> Graph:
    """Return the graph with one activation probability for all arcs.

    Examples
    --------
    >>> uniform(Graph.from_edges(2, [(0, 1)]), 0.1).probabilities.tolist()
    [0.1, 0.1]
    """
    return graph.with_probabilities(probability)


def weighted_cascade(graph: Graph) -> Graph:
    """Return the graph with p(u, v) = 1 / in-degree of v: each node is activated by one neighbour on average.

    Examples
    --------
    >>> weighted_cascade(Graph.from_edges(3, [(0, 1), (1, 2)])).probabilities.tolist()
    [0.5, 1.0, 1.0, 0.5]
    """
    return graph.with_probabilities(1.0 / graph.in_degree[graph.indices])


def trivalency(
    graph: Graph,
    *,
    generator: np.random.Generator | int,
    values: tuple[float, ...] = (0.1, 0.01, 0.001),
) -> Graph:
    """Return the graph with a probability drawn from ``values`` for each edge, the same in both directions.

    Examples
    --------
    >>> path = Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)])
    >>> trivalency(path, generator=0).has_symmetric_probabilities
    True
    """
    drawn = np.random.default_rng(generator).choice(np.array(values), size=graph.num_edges)
    if graph.directed:
        return graph.with_probabilities(drawn)
    return Graph.from_edges(
        graph.num_nodes,
        graph.edges,
        probabilities=drawn,
        weights=None if graph.weights is None else graph.weights[graph.tails < graph.indices],
        labels=graph.labels,
    )


def spread(
    graph: Graph,
    nodes: npt.ArrayLike | torch.Tensor,
    *,
    samples: int = 1000,
    generator: np.random.Generator | int,
) -> Spread:
    """Estimate the expected number of nodes that the seeds activate.

    Cascades are simulated from the seeds, many at a time, in chunks: memory doesn't grow with ``samples``. To compare
    many seed sets of one graph, measure them on the same :func:`sample_worlds`.

    Parameters
    ----------
    graph
        A graph with probabilities.
    nodes
        The seeds.
    samples
        Number of cascades, at least 2.
    generator
        A numpy generator, or a seed.

    Returns
    -------
    The mean over the cascades and its standard error.

    Raises
    ------
    ValueError
        If the graph has no probabilities, or the seeds are repeated or not its nodes.

    Examples
    --------
    >>> path = uniform(Graph.from_edges(3, [(0, 1), (1, 2)]), 0.5)
    >>> estimate = spread(path, [0], samples=20_000, generator=0)
    >>> abs(estimate.value - 1.75) < 4 * estimate.standard_error
    True
    """
    probabilities_of(graph)
    seeds = check_nodes(nodes, graph.num_nodes, name="nodes")
    if samples < 2:
        raise ValueError(f"samples must be at least 2, got {samples}.")
    counts = spread_by_cascade(graph, seeds, samples, np.random.default_rng(generator))
    return Spread.from_counts(seeds, counts)


def exact_spread(graph: Graph, nodes: npt.ArrayLike | torch.Tensor) -> Spread:
    """Compute the expected spread exactly, over all worlds of a graph with at most 20 random edges.

    Raises
    ------
    ValueError
        As :func:`spread`, and for too many edges.

    Examples
    --------
    >>> path = uniform(Graph.from_edges(3, [(0, 1), (1, 2)]), 0.5)
    >>> exact_spread(path, [0]).value
    1.75
    """
    seeds = check_nodes(nodes, graph.num_nodes, name="nodes")
    return Spread(seeds, spread_by_enumeration(graph, seeds), 0.0, 0)


def highest_degree(graph: Graph, k: int) -> IntArray:
    """Return the k nodes of highest (out-)degree, ties by smallest index.

    Examples
    --------
    >>> highest_degree(Graph.from_edges(4, [(0, 1), (1, 2), (1, 3)]), 2).tolist()
    [1, 0]
    """
    return top_scores(graph, graph.degree, k)


def top_scores(graph: Graph, scores: npt.ArrayLike | torch.Tensor, k: int) -> IntArray:
    """Return the k nodes of highest score, highest first, ties by smallest index.

    Raises
    ------
    ValueError
        For scores of the wrong shape or NaN, or k outside 1..n.
    """
    check_budget(k, graph.num_nodes)
    return np.argsort(-check_scores(scores, graph.num_nodes), kind="stable")[:k].astype(np.int64)


def greedy(
    graph: Graph,
    k: int,
    *,
    samples: int | None = None,
    evaluation_samples: int = 1000,
    generator: np.random.Generator | int,
) -> Spread:
    """Pick k seeds greedily on a sketch of sampled worlds, and estimate their spread on fresh ones.

    Symmetric probabilities: a :func:`sample_worlds`. Others: :func:`sample_reverse_reachable_sets`.

    Parameters
    ----------
    graph
        A graph with probabilities.
    k
        Number of seeds.
    samples
        Size of the sketch: worlds (1000 where None), or reverse-reachable sets (10 a node, at least 20,000, where
        None).
    evaluation_samples
        Number of worlds, independent of the sketch, for the estimate.
    generator
        A numpy generator, or a seed.

    Returns
    -------
    The seeds in the order picked, with the estimate.

    Raises
    ------
    ValueError
        If the graph has no probabilities, k is outside 1..n, or the sketch doesn't fit in memory.

    Examples
    --------
    >>> star = uniform(Graph.from_edges(5, [(2, 0), (2, 1), (2, 3), (2, 4)]), 0.3)
    >>> greedy(star, 1, generator=0).nodes.tolist()
    [2]
    """
    probabilities_of(graph)
    check_budget(k, graph.num_nodes)
    generator = np.random.default_rng(generator)
    if graph.has_symmetric_probabilities:
        nodes = sample_worlds(graph, 1000 if samples is None else samples, generator=generator).greedy(k).nodes
    else:
        sets = max(20_000, 10 * graph.num_nodes) if samples is None else samples
        nodes = sample_reverse_reachable_sets(graph, sets, generator=generator).greedy(k).nodes
    return spread(graph, nodes, samples=evaluation_samples, generator=generator)


def greedy_with_guarantee(
    graph: Graph,
    k: int,
    *,
    epsilon: float,
    delta: float,
    evaluation_samples: int = 1000,
    generator: np.random.Generator | int,
) -> Spread:
    """Pick k seeds whose spread is, with probability 1 - delta, at least (1 - 1/e - epsilon) of the best.

    Reverse-reachable sets are doubled until they prove it (OPIM-C, Tang et al. 2018).

    Parameters
    ----------
    graph
        A graph with probabilities.
    k
        Number of seeds.
    epsilon
        Slack, in (0, 1 - 1/e).
    delta
        Probability of failure, in (0, 1).
    evaluation_samples
        Number of independent worlds for the estimate.
    generator
        A numpy generator, or a seed.

    Returns
    -------
    The seeds with the estimate and ``bound``, an upper bound on the spread of any k seeds.

    Raises
    ------
    ValueError
        If the graph has no probabilities, or k, epsilon or delta is out of range.

    Examples
    --------
    >>> star = uniform(Graph.from_edges(5, [(2, 0), (2, 1), (2, 3), (2, 4)]), 0.3)
    >>> greedy_with_guarantee(star, 1, epsilon=0.2, delta=0.1, generator=0).nodes.tolist()
    [2]
    """
    probabilities_of(graph)
    check_budget(k, graph.num_nodes)
    if not 0 < epsilon < 1 - 1 / np.e:
        raise ValueError(f"epsilon must lie in (0, 1 - 1/e), got {epsilon}.")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}.")
    generator = np.random.default_rng(generator)
    seeds = pick_with_guarantee(graph, k, epsilon=epsilon, delta=delta, generator=generator)
    measured = spread(graph, seeds.nodes, samples=evaluation_samples, generator=generator)
    return Spread(measured.nodes, measured.value, measured.standard_error, measured.samples, seeds.upper)
