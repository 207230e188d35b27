"""Independent cascades: sampled worlds of live edges, explored many worlds at a time.

An arc u -> v fires once, with its own probability, when u becomes active. Drawing all arcs beforehand gives the same
distribution (a *world*): v is active if a live path from a seed leads to it (Kempe, Kleinberg and Tardos, 2003).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import scipy.sparse
from manifoldnorm.gnn.checks import FloatArray, IntArray
from manifoldnorm.gnn.graphs import Graph
from scipy.sparse.csgraph import connected_components

# Nodes plus arcs of the worlds held at once: a few hundred megabytes at worst, large enough to amortise numpy calls.
CELLS_AT_ONCE = 4_000_000

EXACT_COINS = 20


def probabilities_of(graph: Graph) -> FloatArray:
    """Return the arc probabilities, or raise a ValueError that says how to set them."""
    if graph.probabilities is None:
        hint = " (its weights are not probabilities)" if graph.weights is not None else ""
        raise ValueError(
            f"the graph has no activation probabilities{hint}; set them with influence.uniform, "
            "influence.weighted_cascade, influence.trivalency or graph.with_probabilities."
        )
    return graph.probabilities


def world_chunks(graph: Graph, samples: int) -> Iterator[tuple[int, int]]:
    """Cut ``samples`` worlds into ranges (first, last + 1) that fit in memory together."""
    step = max(1, min(samples, CELLS_AT_ONCE // max(graph.num_nodes + graph.num_arcs, 1)))
    for first in range(0, samples, step):
        yield first, min(first + step, samples)


def percolate(graph: Graph, worlds: int, generator: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Draw worlds of a graph with symmetric probabilities and find their connected components.

    With one coin an edge, the nodes that a seed activates are its component: bond percolation.

    Returns
    -------
    Component numbers, shape (worlds, nodes), distinct between worlds; and the size of each component.
    """
    n = graph.num_nodes
    forward = graph.tails < graph.indices
    tails, heads = graph.tails[forward], graph.indices[forward]
    live = generator.random((worlds, len(tails))) < probabilities_of(graph)[forward]
    world, edge = np.nonzero(live)
    rows = world * n + tails[edge]
    indptr = np.r_[0, np.cumsum(np.bincount(rows, minlength=worlds * n))]
    union = scipy.sparse.csr_array(
        (np.ones(len(rows)), world * n + heads[edge], indptr), shape=(worlds * n, worlds * n)
    )
    labels = connected_components(union, directed=False)[1].astype(np.int64)
    return labels.reshape(worlds, n), np.bincount(labels)


def spread_by_percolation(
    graph: Graph, seeds: IntArray, samples: int, generator: np.random.Generator
) -> IntArray:
    """Return the number of nodes active at the end in each of ``samples`` worlds; symmetric probabilities."""
    counts = np.zeros(samples, dtype=np.int64)
    for first, last in world_chunks(graph, samples):
        labels, sizes = percolate(graph, last - first, generator)
        touched, position = np.unique(labels[:, seeds], return_index=True)
        world = first + position // max(len(seeds), 1)
        np.add.at(counts, world, sizes[touched])
    return counts


def spread_by_cascade(
    graph: Graph, seeds: IntArray, samples: int, generator: np.random.Generator
) -> IntArray:
    """Return the number of nodes active at the end in each of ``samples`` runs; any probabilities."""
    counts = np.zeros(samples, dtype=np.int64)
    for first, last in world_chunks(graph, samples):
        worlds = last - first
        starts = np.repeat(np.arange(worlds), len(seeds)) * graph.num_nodes + np.tile(seeds, worlds)
        visited = np.zeros(worlds * graph.num_nodes, dtype=bool)
        active = explore(graph, starts, visited, generator)
        counts[first:last] = np.bincount(active // max(graph.num_nodes, 1), minlength=worlds)
    return counts


def explore(
    graph: Graph, starts: IntArray, visited: npt.NDArray[np.bool_], generator: np.random.Generator
) -> IntArray:
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
