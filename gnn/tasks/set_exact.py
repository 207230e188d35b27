"""Largest independent sets with proof: reductions, then an integer programme solved by HiGHS."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import floor

import numpy as np
import scipy.optimize
import scipy.sparse

from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.tasks.set_decoding import IndependentSet, checked_result
from manifoldnorm.gnn.tasks.set_search import extend_to_maximal, local_search

Adjacency = dict[int, set[int]]


def exact(graph: Graph, *, time_limit: float = 60.0) -> IndependentSet:
    """Find a largest independent set, or the best one and an upper bound when the time runs out.

    Nodes of degree 0, 1 and 2 go first, which solves trees, cycles and most sparse random graphs. Each connected
    component of the rest becomes ``max sum x, sum over a clique <= 1, x binary`` (scipy's HiGHS), unless local search
    already meets a clique-partition bound.

    Parameters
    ----------
    graph
        An undirected graph.
    time_limit
        Seconds of wall time for the integer programmes together.

    Returns
    -------
    The set with an upper ``bound``; ``optimal`` is True only where the bound equals the size.

    Raises
    ------
    ValueError
        For a directed graph or a time limit that is not positive.

    Examples
    --------
    >>> import networkx
    >>> result = exact(Graph.from_networkx(networkx.petersen_graph()))
    >>> result.size, result.bound, result.optimal
    (4, 4, True)
    """
    graph.require_undirected("an independent set")
    if not time_limit > 0:
        raise ValueError(f"time_limit must be positive seconds, got {time_limit}.")
    deadline = time.monotonic() + time_limit
    kernel = _Kernel({node: set(row) for node, row in enumerate(graph.neighbour_lists())})
    kernel.reduce()
    chosen: set[int] = set()
    bound = len(kernel.steps)
    # Small components first: what is left of the time then goes to the hard ones.
    for component in sorted(_components(kernel.adjacency), key=len):
        part, part_bound = _solve_component(kernel.adjacency, component, deadline)
        chosen |= part
        bound += part_bound
    return checked_result(graph, np.array(sorted(kernel.expand(chosen)), dtype=np.int64), bound=bound)


@dataclass
class _Fold:
    """Degree-2 node ``centre`` and its unjoined neighbours became ``merged``: in the set, it means both of them."""

    merged: int
    centre: int
    ends: tuple[int, int]


@dataclass
class _Kernel:
    """What the reductions leave of a graph, and how a set of it becomes one of the graph.

    Each step adds exactly one node to the size: a taken node, or a fold (Chen, Kanj and Jia 2001).
    """

    adjacency: Adjacency
    steps: list[int | _Fold] = field(default_factory=list)

    def reduce(self) -> None:
        next_node = len(self.adjacency)
        queue = list(self.adjacency)
        while queue:
            node = queue.pop()
            around = self.adjacency.get(node)
            if around is None or len(around) > 2:
                continue
            if len(around) == 2:
                first, second = sorted(around)
                if second not in self.adjacency[first]:
                    queue += self.fold(node, (first, second), next_node)
                    next_node += 1
                    continue
            self.steps.append(node)
            queue += self.drop({node, *around})

    def drop(self, nodes: set[int]) -> set[int]:
        """Remove nodes; return those that lost a neighbour."""
        touched: set[int] = set()
        for node in nodes:
            for other in self.adjacency.pop(node):
                if other not in nodes:
                    self.adjacency[other].discard(node)
                    touched.add(other)
        return touched

    def fold(self, centre: int, ends: tuple[int, int], merged: int) -> set[int]:
        around = (self.adjacency[ends[0]] | self.adjacency[ends[1]]) - {centre}
        self.drop({centre, *ends})
        self.adjacency[merged] = around
        for other in around:
            self.adjacency[other].add(merged)
        self.steps.append(_Fold(merged, centre, ends))
        return around | {merged}

    def expand(self, chosen: set[int]) -> set[int]:
        chosen = set(chosen)
        for step in reversed(self.steps):
            if isinstance(step, int):
                chosen.add(step)
            elif step.merged in chosen:
                chosen.remove(step.merged)
                chosen.update(step.ends)
            else:
                chosen.add(step.centre)
        return chosen


def _components(adjacency: Adjacency) -> list[list[int]]:
    seen: set[int] = set()
    components = []
    for root in adjacency:
        if root in seen:
            continue
        seen.add(root)
        component = [root]
        for node in component:
            fresh = adjacency[node] - seen
            seen |= fresh
            component += sorted(fresh)
        components.append(sorted(component))
    return components


def _solve_component(adjacency: Adjacency, component: list[int], deadline: float) -> tuple[set[int], int]:
    """Return an independent set of a connected component and an upper bound, in local search's or HiGHS's way."""
    position = {node: i for i, node in enumerate(component)}
    edges = [(position[u], position[v]) for u in component for v in adjacency[u] if u < v]
    graph = Graph.from_edges(len(component), edges)
    best = local_search(graph, generator=0, iterations=200).nodes
    bound = _clique_partition_size(graph)
    seconds = deadline - time.monotonic()
    if len(best) < bound and seconds > 0:
        found, dual_bound = _solve_integer_programme(graph, seconds)
        bound = min(bound, dual_bound)
        if found is not None:
            found = extend_to_maximal(graph, found)
            best = found if len(found) > len(best) else best
    return {component[i] for i in best.tolist()}, bound


def _solve_integer_programme(graph: Graph, seconds: float) -> tuple[np.ndarray | None, int]:
    """Return HiGHS's best set, or None if it found none in time, and its proven upper bound."""
    cliques = _edge_clique_cover(graph)
    rows = np.repeat(np.arange(len(cliques)), [len(clique) for clique in cliques])
    columns = np.concatenate(cliques)
    matrix = scipy.sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(cliques), graph.num_nodes))
    result = scipy.optimize.milp(
        -np.ones(graph.num_nodes),
        integrality=np.ones(graph.num_nodes),
        bounds=scipy.optimize.Bounds(0, 1),
        constraints=scipy.optimize.LinearConstraint(matrix, -np.inf, 1),
        # HiGHS's default relative gap of 1e-4 would let a set one node short of 10,000 pass for optimal.
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    found = None if result.x is None else np.flatnonzero(result.x > 0.5)
    dual = result.mip_dual_bound
    bound = graph.num_nodes if dual is None or not np.isfinite(dual) else floor(-dual + 1e-6)
    return found, bound


def _edge_clique_cover(graph: Graph) -> list[list[int]]:
    """Cliques that together contain each edge, each grown from an edge not yet covered, by smallest index."""
    neighbour_sets = [set(row) for row in graph.neighbour_lists()]
    covered: set[tuple[int, int]] = set()
    cliques = []
    for u, v in graph.edges.tolist():
        if (u, v) in covered:
            continue
        clique = [u, v]
        common = neighbour_sets[u] & neighbour_sets[v]
        while common:
            node = min(common)
            clique.append(node)
            common &= neighbour_sets[node]
        clique.sort()
        covered.update((a, b) for i, a in enumerate(clique) for b in clique[i + 1 :])
        cliques.append(clique)
    return cliques


def _clique_partition_size(graph: Graph) -> int:
    """Count the cliques of a greedy partition of the nodes: no independent set is larger."""
    neighbour_sets = [set(row) for row in graph.neighbour_lists()]
    free = set(range(graph.num_nodes))
    count = 0
    # Nodes with few neighbours first: they have the fewest cliques to go into.
    for node in np.argsort(graph.degree, kind="stable").tolist():
        if node not in free:
            continue
        count += 1
        common = neighbour_sets[node] & free
        free.discard(node)
        while common:
            other = max(common, key=lambda candidate: (len(neighbour_sets[candidate] & common), -candidate))
            free.discard(other)
            common &= neighbour_sets[other]
    return count
