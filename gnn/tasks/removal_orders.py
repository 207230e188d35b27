"""Adaptive removal orders from the literature, and the reinsertion that improves any order."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from manifoldnorm.gnn.checks import IntArray
from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.tasks.removal_curve import curve, target_size


def adaptive_highest_degree(graph: Graph) -> IntArray:
    """Remove the node of highest degree in what is left, ties by smallest index, until none is left (HDA).

    Parameters
    ----------
    graph
        An undirected graph.

    Returns
    -------
    A permutation of the nodes, int64, the first removed first.

    Raises
    ------
    ValueError
        For a directed graph.

    Examples
    --------
    >>> path = Graph.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    >>> adaptive_highest_degree(path).tolist()
    [1, 3, 0, 2, 4]
    """
    graph.require_undirected("dismantling")
    order: list[int] = []
    _remove_by_degree(graph.neighbour_lists(), bytearray(graph.num_nodes), order)
    return np.array(order, dtype=np.int64)


def core_highest_degree(graph: Graph) -> IntArray:
    """Remove the node of highest degree inside the 2-core until the core is gone, then go by degree (CoreHD).

    Zdeborová, Zhang and Zhou, "Fast and simple decycling and dismantling of networks", Sci. Rep. 6 (2016); ties by
    smallest index. The forest that is left is removed by adaptive highest degree. Takes, returns and raises what
    :func:`adaptive_highest_degree` does.

    Examples
    --------
    >>> triangle_with_tail = Graph.from_edges(5, [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)])
    >>> core_highest_degree(triangle_with_tail).tolist()
    [0, 2, 3, 1, 4]
    """
    graph.require_undirected("dismantling")
    neighbours = graph.neighbour_lists()
    degree = graph.degree.tolist()
    out_of_core = bytearray(graph.num_nodes)

    def take_out(stack: list[int]) -> None:
        """Take nodes out of the core and with them all whose degree in it falls below 2."""
        for node in stack:
            out_of_core[node] = 1
        while stack:
            for other in neighbours[stack.pop()]:
                if not out_of_core[other]:
                    degree[other] -= 1
                    if degree[other] < 2:
                        out_of_core[other] = 1
                        stack.append(other)

    take_out([node for node in range(graph.num_nodes) if degree[node] < 2])
    heap = [(-degree[node], node) for node in range(graph.num_nodes) if not out_of_core[node]]
    heapq.heapify(heap)
    order: list[int] = []
    removed = bytearray(graph.num_nodes)
    while heap:
        key, node = heapq.heappop(heap)
        if out_of_core[node]:
            continue
        if -key != degree[node]:
            heapq.heappush(heap, (-degree[node], node))
            continue
        order.append(node)
        removed[node] = 1
        take_out([node])
    _remove_by_degree(neighbours, removed, order)
    return np.array(order, dtype=np.int64)


def collective_influence(graph: Graph, *, radius: int = 2) -> IntArray:
    """Remove the node of highest collective influence in what is left, until none is left (CI).

    CI_l(i) = (k_i - 1) * sum of (k_j - 1) over the nodes j at distance exactly l from i, with the degrees k of what
    is left (Morone and Makse, Nature 524, 2015). Ties go to the higher degree, then to the smallest index.

    Parameters
    ----------
    graph
        An undirected graph.
    radius
        The distance l, at least 1.

    Returns
    -------
    A permutation of the nodes, int64, the first removed first.

    Raises
    ------
    ValueError
        For a directed graph or a radius below 1.

    Examples
    --------
    >>> path = Graph.from_edges(6, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)])
    >>> collective_influence(path).tolist()
    [1, 3, 4, 0, 2, 5]
    """
    graph.require_undirected("dismantling")
    if radius < 1:
        raise ValueError(f"radius must be at least 1, got {radius}.")
    around = [set(row) for row in graph.neighbour_lists()]

    def key(node: int) -> tuple[int, int, int]:
        own = len(around[node]) - 1
        shell = _shells(around, node, radius)[radius] if own > 0 else ()
        return -own * sum(len(around[other]) - 1 for other in shell), -own, node

    current = [key(node) for node in range(graph.num_nodes)]
    heap = list(current)
    heapq.heapify(heap)
    removed = bytearray(graph.num_nodes)
    order: list[int] = []
    while heap:
        entry = heapq.heappop(heap)
        node = entry[2]
        if removed[node] or entry != current[node]:
            continue
        order.append(node)
        removed[node] = 1
        # A removal changes paths that start within the radius and degrees one step further.
        affected = [other for shell in _shells(around, node, radius + 1)[1:] for other in shell]
        for other in around[node]:
            around[other].discard(node)
        around[node] = set()
        for other in affected:
            fresh = key(other)
            if fresh != current[other]:
                current[other] = fresh
                heapq.heappush(heap, fresh)
    return np.array(order, dtype=np.int64)


def reinsert(graph: Graph, order: npt.ArrayLike, *, target: float = 0.01) -> IntArray:
    """Put back removed nodes that a dismantling below ``target`` doesn't need, cheapest first.

    The first nodes of ``order`` that bring the largest component to target * n or below are the attack. Among them
    the one that joins the smallest component when put back goes back, ties by smallest index, while that component
    stays within target * n (Braunstein et al., PNAS 2016).

    Parameters
    ----------
    graph
        An undirected graph.
    order
        A permutation of the nodes, the first removed first.
    target
        Share of the nodes that the largest component may have, in [0, 1].

    Returns
    -------
    A permutation, int64: what stays of the attack in its old order, then the nodes put back, the last put back
    first, then the rest of ``order``. Its critical fraction at ``target`` is never larger than that of ``order``.

    Raises
    ------
    ValueError
        For a directed graph, an order that is no permutation, or a target out of range.

    Examples
    --------
    >>> path = Graph.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    >>> reinsert(path, [0, 1, 3, 2, 4], target=0.4).tolist()
    [1, 3, 0, 2, 4]
    """
    measured = curve(graph, order)
    attack_size = measured.critical_size(target)
    allowed = target_size(target, graph.num_nodes)
    attack = measured.order[:attack_size].tolist()
    neighbours = graph.neighbour_lists()
    components = _Components(neighbours, measured.order[attack_size:].tolist())
    heap = [(components.size_with(node), node) for node in attack]
    heapq.heapify(heap)
    back: list[int] = []
    while heap:
        size, node = heapq.heappop(heap)
        now = components.size_with(node)
        # Sizes only grow, so an entry that is still true is the smallest.
        if now != size:
            heapq.heappush(heap, (now, node))
        elif size > allowed:
            break
        else:
            components.add(node)
            back.append(node)
    returned = set(back)
    kept = [node for node in attack if node not in returned]
    return np.array(kept + back[::-1] + measured.order[attack_size:].tolist(), dtype=np.int64)


class _Components:
    """The components of the nodes present, by union-find; nodes can be added."""

    def __init__(self, neighbours: list[list[int]], present: list[int]) -> None:
        self.neighbours = neighbours
        self.parent = list(range(len(neighbours)))
        self.size = [0] * len(neighbours)
        for node in present:
            self.add(node)

    def find(self, node: int) -> int:
        parent = self.parent
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    def roots_around(self, node: int) -> set[int]:
        return {self.find(other) for other in self.neighbours[node] if self.size[self.find(other)]}

    def size_with(self, node: int) -> int:
        """Return the size of the component that an absent node would be in."""
        return 1 + sum(self.size[root] for root in self.roots_around(node))

    def add(self, node: int) -> None:
        roots = self.roots_around(node)
        total = 1 + sum(self.size[root] for root in roots)
        largest = max(roots, key=self.size.__getitem__, default=node)
        for root in roots:
            self.parent[root] = largest
        self.parent[node] = largest
        self.size[largest] = total


def _remove_by_degree(neighbours: list[list[int]], removed: bytearray, order: list[int]) -> None:
    """Append the nodes not yet removed to ``order``, highest remaining degree first."""
    degree = [sum(not removed[other] for other in row) for row in neighbours]
    heap = [(-degree[node], node) for node in range(len(neighbours)) if not removed[node]]
    heapq.heapify(heap)
    while heap:
        key, node = heap[0]
        # Degrees only fall, so an entry that is still true is the best; others are corrected when they come up.
        if -key != degree[node]:
            heapq.heapreplace(heap, (-degree[node], node))
            continue
        heapq.heappop(heap)
        removed[node] = 1
        order.append(node)
        for other in neighbours[node]:
            degree[other] -= 1


def _shells(around: list[set[int]], node: int, radius: int) -> list[set[int]]:
    """Find the nodes at distance 0, 1, ..., radius from a node."""
    seen = {node}
    shells = [{node}]
    for _ in range(radius):
        shell = set().union(*(around[other] for other in shells[-1])) - seen
        seen |= shell
        shells.append(shell)
    return shells
