"""Independent cascades: sampled worlds of live edges, explored many worlds at a time.

An arc u -> v fires once, with its own probability, when u becomes active. Drawing all arcs beforehand gives the same
distribution (a *world*): v is active if a live path from a seed leads to it (Kempe, Kleinberg and Tardos, 2003).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from manifoldnorm.gnn.checks import FloatArray, IntArray
from manifoldnorm.gnn.graphs import Graph

# Nodes and arcs explored at once: enough to amortise numpy's calls, a few hundred megabytes at worst.
CELLS_AT_ONCE = 2_000_000
SCRATCH_CELLS = 30_000_000

# 2^20 worlds take a second and 21 bytes a node each.
EXACT_COINS = 20


@dataclass(frozen=True, eq=False)
class Spread:
    """Seeds and the number of nodes they activate on average.

    Parameters
    ----------
    nodes
        The seeds in the order they were given or picked, int64.
    value
        Estimated expected number of active nodes, seeds included.
    standard_error
        Standard error of ``value``; 0 where it is exact.
    samples
        Number of samples behind ``value``; 0 where it is exact.
    bound
        Upper bound on the expected spread of any seed set of the same size, or None where none was computed.
    """

    nodes: IntArray
    value: float
    standard_error: float
    samples: int
    bound: float | None = None

    @classmethod
    def from_counts(cls, nodes: IntArray, counts: IntArray) -> Spread:
        """Average the active nodes of at least two independent samples."""
        return cls(nodes, float(counts.mean()), float(counts.std(ddof=1) / sqrt(len(counts))), len(counts))


def probabilities_of(graph: Graph) -> FloatArray:
    """Return the arc probabilities, or raise a ValueError that says how to set them."""
    if graph.probabilities is None:
        hint = " (its weights are not probabilities)" if graph.weights is not None else ""
        raise ValueError(
            f"the graph has no activation probabilities{hint}; set them with influence.uniform, "
            "influence.weighted_cascade, influence.trivalency or graph.with_probabilities."
        )
    return graph.probabilities


def spread_by_cascade(graph: Graph, seeds: IntArray, samples: int, generator: np.random.Generator) -> IntArray:
    """Return the number of nodes active at the end in each of ``samples`` runs."""
    counts = np.zeros(samples, dtype=np.int64)

    def same_seeds(worlds: int) -> IntArray:
        return np.repeat(np.arange(worlds), len(seeds)) * graph.num_nodes + np.tile(seeds, worlds)

    if len(seeds):
        for first, last, active in run_cascades(graph, same_seeds, samples, generator):
            counts[first:last] = np.bincount(active // graph.num_nodes, minlength=last - first)
    return counts


def run_cascades(
    graph: Graph,
    seeds_of: Callable[[int], IntArray],
    samples: int,
    generator: np.random.Generator,
) -> Iterator[tuple[int, int, IntArray]]:
    """Run ``samples`` cascades, as many at a time as memory allows.

    Parameters
    ----------
    graph
        A graph with probabilities and at least one node.
    seeds_of
        Gives the seeds of so many worlds, distinct, as ``world * num_nodes + node``.
    samples
        Number of cascades.
    generator
        A numpy generator.

    Yields
    ------
    Numbers of the first and one past the last cascade, and their active nodes coded like the seeds.
    """
    n = graph.num_nodes
    most = max(1, SCRATCH_CELLS // n)
    visited = np.zeros(0, dtype=bool)
    first, worlds, cost = 0, 1, 0
    while first < samples:
        last = min(first + worlds, samples)
        if len(visited) < (last - first) * n:
            visited = np.zeros((last - first) * n, dtype=bool)
        active = explore(graph, seeds_of(last - first), visited, generator)
        yield first, last, active
        first = last
        # Cascades differ by orders of magnitude between graphs; the next chunk goes by what they took so far.
        cost += len(active) + int(graph.degree[active % n].sum())
        worlds = min(2 * worlds, most, max(1, CELLS_AT_ONCE * last // cost))


def explore(graph: Graph, starts: IntArray, visited: npt.NDArray[np.bool_], generator: np.random.Generator) -> IntArray:
    """Run cascades in many worlds at once, each arc's coin tossed when its tail becomes active.

    Parameters
    ----------
    graph
        A graph with probabilities.
    starts
        The seeds, distinct, as ``world * num_nodes + node``.
    visited
        Scratch memory, all False, one cell a world and node; all False again at the end.

    Returns
    -------
    The active nodes of all worlds, seeds included, coded like ``starts``, in no particular order.
    """
    probabilities = probabilities_of(graph)
    frontier = starts
    visited[frontier] = True
    reached = [frontier]
    while len(frontier):
        node = frontier % graph.num_nodes
        first = graph.indptr[node]
        count = graph.indptr[node + 1] - first
        ends = np.cumsum(count)
        arcs = np.repeat(first - ends + count, count) + np.arange(ends[-1])
        live = generator.random(len(arcs)) < probabilities[arcs]
        frontier = np.repeat(frontier - node, count)[live] + graph.indices[arcs[live]]
        frontier = np.unique(frontier[~visited[frontier]])
        visited[frontier] = True
        reached.append(frontier)
    active = np.concatenate(reached)
    visited[active] = False
    return active


def spread_by_enumeration(graph: Graph, seeds: IntArray) -> float:
    """Return the exact expected number of active nodes, summed over all 2^coins worlds."""
    probabilities = probabilities_of(graph)
    tails, heads = graph.tails, graph.indices
    coin = np.arange(graph.num_arcs)
    if graph.has_symmetric_probabilities:
        # One coin serves both directions of an edge: at most one of them is ever tossed first.
        edges = np.minimum(tails, heads) * graph.num_nodes + np.maximum(tails, heads)
        _, kept, coin = np.unique(edges, return_index=True, return_inverse=True)
        probabilities = probabilities[kept]
    coins = len(probabilities)
    if coins > EXACT_COINS:
        raise ValueError(
            f"exact enumeration takes at most {EXACT_COINS} random edges, got {coins}; use influence.spread."
        )
    worlds = np.arange(2**coins)
    live = (worlds[:, None] >> np.arange(coins)) & 1 == 1
    weight = np.where(live, probabilities, 1 - probabilities).prod(axis=1)
    active = np.zeros((len(worlds), graph.num_nodes), dtype=bool)
    active[:, seeds] = True
    before = -1
    while (now := int(active.sum())) != before:
        before = now
        for tail, head, toss in zip(tails.tolist(), heads.tolist(), coin.tolist()):
            active[:, head] |= active[:, tail] & live[:, toss]
    return float(weight @ active.sum(axis=1))
