"""Sampled live-edge worlds of a graph with symmetric probabilities: a sketch of the influence of all seed sets."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch
from scipy.sparse.csgraph import connected_components

from manifoldnorm.gnn.checks import IntArray, check_budget, check_nodes
from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.tasks.cascades import CELLS_AT_ONCE, Spread, probabilities_of

ALONE = 0


@dataclass(frozen=True, eq=False)
class LiveEdgeWorlds:
    """The connected components of sampled worlds; a seed activates its component in each of them.

    Made by :func:`sample_worlds`. Seed sets measured on the same worlds compare without the noise of the draw.

    Parameters
    ----------
    labels
        Component of each node in each world, int32, shape (nodes, worlds). Numbers differ between worlds; a node
        that is a component of its own has number 0.
    sizes
        Nodes in each component, int64, shape (components,); ``sizes[0]`` is 1.
    """

    labels: npt.NDArray[np.int32]
    sizes: IntArray

    @property
    def num_worlds(self) -> int:
        """Number of worlds."""
        return self.labels.shape[1]

    def spread(self, nodes: npt.ArrayLike | torch.Tensor) -> Spread:
        """Average the number of active nodes over the worlds.

        Examples
        --------
        >>> star = Graph.from_edges(3, [(0, 1), (0, 2)]).with_probabilities(1.0)
        >>> sample_worlds(star, 10, generator=0).spread([1]).value
        3.0
        """
        seeds = check_nodes(nodes, len(self.labels), name="nodes")
        labels = self.labels[seeds]
        counts = np.count_nonzero(labels == ALONE, axis=0)
        touched, position = np.unique(labels, return_index=True)
        joined = touched != ALONE
        np.add.at(counts, position[joined] % self.num_worlds, self.sizes[touched[joined]])
        return Spread.from_counts(seeds, counts)

    def greedy(self, k: int) -> Spread:
        """Pick k nodes one after the other, each with the largest gain in spread, ties by smallest index.

        Gains only fall as nodes are picked, so an old gain is an upper bound and few are computed again (CELF,
        Leskovec et al. 2007). The value is that on these worlds, which the choice fits: measure the nodes on others.

        Raises
        ------
        ValueError
            For k outside 1..n.

        Examples
        --------
        >>> star = Graph.from_edges(4, [(2, 0), (2, 1), (2, 3)]).with_probabilities(0.5)
        >>> sample_worlds(star, 100, generator=0).greedy(1).nodes.tolist()
        [2]
        """
        check_budget(k, len(self.labels))
        worth = self.sizes.copy()
        heap = [(-int(worth[row].sum()), node) for node, row in enumerate(self.labels)]
        heapq.heapify(heap)
        up_to_date = set(range(len(heap)))
        chosen: list[int] = []
        while len(chosen) < k:
            _, node = heapq.heappop(heap)
            if node in up_to_date:
                chosen.append(node)
                worth[self.labels[node]] = 0
                worth[ALONE] = 1
                up_to_date = set()
            else:
                heapq.heappush(heap, (-int(worth[self.labels[node]].sum()), node))
                up_to_date.add(node)
        return self.spread(chosen)


def sample_worlds(
    graph: Graph,
    worlds: int = 1000,
    *,
    generator: np.random.Generator | int,
    memory_limit: int = 2 << 30,
) -> LiveEdgeWorlds:
    """Keep each edge with its probability, ``worlds`` times, and find the components.

    Where the two directions of an edge have one probability, one coin can serve both, and the nodes that a seed
    activates are its component: bond percolation.

    Parameters
    ----------
    graph
        An undirected graph with symmetric probabilities.
    worlds
        Number of worlds, at least 2.
    generator
        A numpy generator, or a seed.
    memory_limit
        Most bytes that the result may take, about 4 * nodes * worlds. The work beside it is done in chunks.

    Raises
    ------
    ValueError
        If the probabilities are missing or not symmetric, or the result doesn't fit.

    Examples
    --------
    >>> path = Graph.from_edges(3, [(0, 1), (1, 2)]).with_probabilities(0.5)
    >>> sample_worlds(path, 100, generator=0).labels.shape
    (3, 100)
    """
    probabilities_of(graph)
    if not graph.has_symmetric_probabilities:
        raise ValueError(
            "live-edge worlds need an undirected graph with one probability an edge; "
            "use influence.sample_reverse_reachable_sets."
        )
    if worlds < 2:
        raise ValueError(f"worlds must be at least 2, got {worlds}.")
    needed = 4 * graph.num_nodes * worlds
    if needed > memory_limit:
        raise ValueError(
            f"{worlds} worlds of {graph.num_nodes} nodes take {needed} bytes, memory_limit is {memory_limit}; "
            "take fewer worlds, or influence.greedy_with_guarantee."
        )
    generator = np.random.default_rng(generator)
    labels = np.empty((graph.num_nodes, worlds), dtype=np.int32)
    sizes = [np.ones(1, dtype=np.int64)]
    used = 1
    step = max(1, CELLS_AT_ONCE // max(graph.num_nodes + graph.num_arcs, 1))
    for first in range(0, worlds, step):
        last = min(first + step, worlds)
        chunk, chunk_sizes = _percolate(graph, last - first, generator)
        labels[:, first:last] = np.where(chunk == ALONE, ALONE, chunk + (used - 1)).T
        sizes.append(chunk_sizes)
        used += len(chunk_sizes)
    return LiveEdgeWorlds(labels, np.concatenate(sizes))


def _percolate(graph: Graph, worlds: int, generator: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Draw worlds; return component numbers, shape (worlds, nodes), from 1 on or ALONE, and sizes from 1 on."""
    n = graph.num_nodes
    forward = graph.tails < graph.indices
    tails, heads = graph.tails[forward], graph.indices[forward]
    live = generator.random((worlds, len(tails))) < probabilities_of(graph)[forward]
    world, edge = np.nonzero(live)
    rows = world * n + tails[edge]
    indptr = np.r_[0, np.cumsum(np.bincount(rows, minlength=worlds * n))]
    # All worlds at once, side by side as one graph.
    union = scipy.sparse.csr_array(
        (np.ones(len(rows)), world * n + heads[edge], indptr), shape=(worlds * n, worlds * n)
    )
    labels = connected_components(union, directed=False)[1]
    sizes = np.bincount(labels)
    joined = sizes > 1
    renumbered = np.where(joined, np.cumsum(joined), ALONE)
    return renumbered[labels].reshape(worlds, n), sizes[joined]
