"""Seeded random graphs, among them one family whose largest independent set is known.

The growing and rewiring models are networkx's. Its draws may change between its versions: store the edges of a graph
that must stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import networkx
import numpy as np

from manifoldnorm.gnn.checks import IntArray, simple_edge_rows
from manifoldnorm.gnn.graphs import Graph

__all__ = [
    "RBInstance",
    "barabasi_albert",
    "erdos_renyi",
    "powerlaw_cluster",
    "rb_model",
    "watts_strogatz",
]

Random = np.random.Generator | int


def erdos_renyi(num_nodes: int, probability: float, *, generator: Random) -> Graph:
    """Join each pair of nodes with the same probability: G(n, p).

    Parameters
    ----------
    num_nodes
        Number of nodes, at least 0.
    probability
        Probability of an edge, in [0, 1].
    generator
        A numpy generator, or a seed.

    Raises
    ------
    ValueError
        For parameters out of range.

    Examples
    --------
    >>> erdos_renyi(10, 1.0, generator=0).num_edges
    45
    """
    _check_nodes_wanted(num_nodes, least=0)
    _check_probability("probability", probability)
    if probability == 1:
        return Graph.from_edges(num_nodes, np.stack(np.triu_indices(num_nodes, 1), axis=1))
    drawn = networkx.fast_gnp_random_graph(num_nodes, probability, seed=_seed(generator))
    return _from_networkx(drawn, num_nodes)


def barabasi_albert(num_nodes: int, edges_per_node: int, *, generator: Random) -> Graph:
    """Add nodes one after the other, each joined to ``edges_per_node`` others in proportion to their degree.

    Parameters
    ----------
    num_nodes
        Number of nodes, more than ``edges_per_node``.
    edges_per_node
        Edges that each new node brings, at least 1.
    generator
        A numpy generator, or a seed.

    Raises
    ------
    ValueError
        For parameters out of range.

    Examples
    --------
    >>> barabasi_albert(50, 2, generator=0).num_edges
    96
    """
    _check_nodes_wanted(num_nodes, least=2)
    _check_range("edges_per_node", edges_per_node, 1, num_nodes - 1)
    drawn = networkx.barabasi_albert_graph(num_nodes, edges_per_node, seed=_seed(generator))
    return _from_networkx(drawn, num_nodes)


def powerlaw_cluster(num_nodes: int, edges_per_node: int, probability: float, *, generator: Random) -> Graph:
    """Grow as :func:`barabasi_albert`, and close a triangle after an edge with this probability (Holme and Kim 2002).

    Parameters
    ----------
    num_nodes
        Number of nodes, at least ``edges_per_node``.
    edges_per_node
        Edges that each new node brings, at least 1.
    probability
        Probability of a triangle, in [0, 1].
    generator
        A numpy generator, or a seed.

    Raises
    ------
    ValueError
        For parameters out of range.

    Examples
    --------
    >>> powerlaw_cluster(50, 2, 0.3, generator=0).num_nodes
    50
    """
    _check_nodes_wanted(num_nodes, least=1)
    _check_range("edges_per_node", edges_per_node, 1, num_nodes)
    _check_probability("probability", probability)
    drawn = networkx.powerlaw_cluster_graph(num_nodes, edges_per_node, probability, seed=_seed(generator))
    return _from_networkx(drawn, num_nodes)


def watts_strogatz(num_nodes: int, neighbours: int, probability: float, *, generator: Random) -> Graph:
    """Join each node of a ring to its nearest ``neighbours`` and rewire each edge with this probability.

    Parameters
    ----------
    num_nodes
        Number of nodes, more than ``neighbours``.
    neighbours
        Even number of nearest nodes to join, at least 2.
    probability
        Probability of rewiring, in [0, 1].
    generator
        A numpy generator, or a seed.

    Raises
    ------
    ValueError
        For parameters out of range; for an odd ``neighbours``, which networkx would round down without a word.

    Examples
    --------
    >>> watts_strogatz(20, 4, 0.1, generator=0).num_edges
    40
    """
    _check_nodes_wanted(num_nodes, least=3)
    _check_range("neighbours", neighbours, 2, num_nodes - 1)
    if neighbours % 2:
        raise ValueError(f"neighbours must be even, got {neighbours}.")
    _check_probability("probability", probability)
    drawn = networkx.watts_strogatz_graph(num_nodes, neighbours, probability, seed=_seed(generator))
    return _from_networkx(drawn, num_nodes)


@dataclass(frozen=True, eq=False)
class RBInstance:
    """A graph of the RB model and the largest independent set that was hidden in it.

    Parameters
    ----------
    graph
        The graph.
    hidden
        The hidden nodes, one a clique, int64; no independent set is larger.
    """

    graph: Graph
    hidden: IntArray


def rb_model(
    cliques: int,
    *,
    alpha: float = 0.8,
    density: float = 0.8 / log(4 / 3),
    tightness: float = 0.25,
    generator: Random,
) -> RBInstance:
    """Draw a forced satisfiable graph of the RB model, the usual hard test for independent sets.

    ``cliques`` disjoint cliques of k = round(cliques^alpha) nodes each hide one node each. Then round(density * cliques
    * ln cliques) times, round(tightness * k^2) random edges join two random cliques, none of them between two hidden
    nodes (Xu, Boussemart, Hemery, Lecoutre, AIJ 171, 2007). The hidden nodes are independent and a set has at most one
    node of a clique, so the independence number is ``cliques``.

    Parameters
    ----------
    cliques
        Number of cliques, at least 2.
    alpha
        Exponent of the clique size, positive.
    density
        Constraints a clique, over its logarithm; not negative. The default is at the satisfiability threshold.
    tightness
        Share of the pairs between two cliques that a constraint joins, in [0, 1].
    generator
        A numpy generator, or a seed.

    Raises
    ------
    ValueError
        For parameters out of range, or a tightness that leaves too few pairs.

    Examples
    --------
    >>> instance = rb_model(6, generator=0)
    >>> instance.graph.num_nodes, len(instance.hidden)
    (24, 6)
    """
    _check_nodes_wanted(cliques, least=2, name="cliques")
    if not alpha > 0 or not density >= 0:
        raise ValueError(f"alpha must be positive and density at least 0, got {alpha} and {density}.")
    _check_probability("tightness", tightness)
    size = round(cliques**alpha)
    joined = round(tightness * size**2)
    if joined > size**2 - 1:
        raise ValueError(f"tightness {tightness} joins {joined} pairs, but only {size**2 - 1} are not both hidden.")
    random = np.random.default_rng(generator)
    first = np.arange(cliques) * size
    hidden = first + random.integers(size, size=cliques)
    inside = np.stack(np.triu_indices(size, 1), axis=1)
    edges = [(first[:, None, None] + inside).reshape(-1, 2)]
    for _ in range(round(density * cliques * log(cliques))):
        a, b = random.choice(cliques, size=2, replace=False)
        pairs = np.stack(np.divmod(np.arange(size**2), size), axis=1) + (first[a], first[b])
        allowed = pairs[np.any(pairs != (hidden[a], hidden[b]), axis=1)]
        edges.append(random.choice(allowed, size=joined, replace=False))
    # Two constraints may choose the same pair of cliques, and then the same edge.
    together = np.concatenate(edges)
    return RBInstance(Graph.from_edges(cliques * size, together[simple_edge_rows(together)]), hidden)


def _from_networkx(drawn: networkx.Graph, num_nodes: int) -> Graph:
    return Graph.from_edges(num_nodes, np.array(drawn.edges, dtype=np.int64).reshape(-1, 2))


def _seed(generator: Random) -> int:
    """Draw a seed for networkx: its own way with numpy generators is slow."""
    return int(np.random.default_rng(generator).integers(2**32))


def _check_nodes_wanted(count: int, *, least: int, name: str = "num_nodes") -> None:
    if count < least:
        raise ValueError(f"{name} must be at least {least}, got {count}.")


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must lie in {low}..{high}, got {value}.")


def _check_probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must lie in [0, 1], got {value}.")
