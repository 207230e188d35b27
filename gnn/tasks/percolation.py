"""A sketch of the influence of all seed sets on a graph with symmetric probabilities: sampled components."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from manifoldnorm.gnn.checks import IntArray, check_budget
from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.tasks.cascades import percolate, world_chunks


@dataclass(frozen=True, eq=False)
class PercolationSketch:
    """The connected components of sampled worlds; a seed activates its component in each of them.

    Parameters
    ----------
    labels
        Component of each node in each world, int32, shape (nodes, worlds); numbers differ between worlds.
    sizes
        Nodes in each component, int64, shape (components,).
    """

    labels: npt.NDArray[np.int32]
    sizes: IntArray

    @classmethod
    def draw(
        cls,
        graph: Graph,
        *,
        samples: int,
        generator: np.random.Generator | int,
        memory_limit: int = 2 << 30,
    ) -> PercolationSketch:
        """Sample ``samples`` worlds.

        Parameters
        ----------
        graph
            An undirected graph with symmetric probabilities.
        samples
            Number of worlds.
        generator
            A numpy generator, or a seed.
        memory_limit
            Most bytes that the labels may take: 4 * nodes * samples.

        Raises
        ------
        ValueError
            If the probabilities are not symmetric, or the labels don't fit.
        """
        if not graph.has_symmetric_probabilities:
            raise ValueError(
                "a percolation sketch needs an undirected graph with symmetric probabilities; "
                "use ReverseReachableSets."
            )
        needed = 4 * graph.num_nodes * samples
        if needed > memory_limit:
            raise ValueError(
                f"{samples} worlds of {graph.num_nodes} nodes take {needed} bytes, memory_limit is "
                f"{memory_limit}; take fewer samples, or influence.greedy_with_guarantee."
            )
        generator = np.random.default_rng(generator)
        labels = np.empty((graph.num_nodes, samples), dtype=np.int32)
        sizes: list[IntArray] = []
        used = 0
        for first, last in world_chunks(graph, samples):
            chunk, chunk_sizes = percolate(graph, last - first, generator)
            labels[:, first:last] = (chunk + used).T
            sizes.append(chunk_sizes)
            used += len(chunk_sizes)
        return cls(labels, np.concatenate(sizes) if sizes else np.empty(0, dtype=np.int64))

    def spread(self, nodes: IntArray) -> float:
        """Return the mean number of active nodes over the sketch's worlds."""
        return float(self.sizes[np.unique(self.labels[nodes])].sum() / self.labels.shape[1])

    def greedy(self, k: int) -> IntArray:
        """Pick k nodes one after the other, each with the largest gain in spread, ties by smallest index.

        Gains only fall as nodes are picked, so an old gain is an upper bound and few are computed again (CELF,
        Leskovec et al. 2007).
        """
        check_budget(k, len(self.labels))
        worth = self.sizes.copy()
        heap = [(-int(worth[row].sum()), node) for node, row in enumerate(self.labels)]
        heapq.heapify(heap)
        chosen: list[int] = []
        up_to_date = set(range(len(heap)))
        while len(chosen) < k:
            gain, node = heapq.heappop(heap)
            if node in up_to_date:
                chosen.append(node)
                worth[self.labels[node]] = 0
                up_to_date = set()
            else:
                heapq.heappush(heap, (-int(worth[self.labels[node]].sum()), node))
                up_to_date.add(node)
        return np.array(chosen, dtype=np.int64)
