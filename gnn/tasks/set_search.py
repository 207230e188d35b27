"""Local search for large independent sets by (1, 2)-swaps (Andrade, Resende, Werneck 2012)."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

from manifoldnorm.gnn.checks import IntArray
from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.tasks.set_decoding import IndependentSet, check_independent, checked_result, greedy


def local_search(
    graph: Graph,
    *,
    generator: np.random.Generator | int,
    iterations: int = 2000,
    start: npt.ArrayLike | None = None,
) -> IndependentSet:
    """Improve an independent set: swap one node for two where possible, otherwise perturb and try again.

    Iterated local search of Andrade, Resende and Werneck, "Fast local search for the maximum independent set
    problem", J. Heuristics 18 (2012): a perturbation forces one node (rarely more) into the set, (1, 2)-swaps follow
    until there is none left, and a worse set is kept with probability 1/(1 + lost * behind the best).

    Parameters
    ----------
    graph
        An undirected graph.
    generator
        A numpy generator, or a seed.
    iterations
        Number of perturbations; 0 only descends from the start.
    start
        An independent set to start from; the minimum-degree greedy's where None.

    Returns
    -------
    The best set found, never smaller than the start; without a bound.

    Raises
    ------
    ValueError
        For a directed graph, a start that is not independent, or negative iterations.

    Examples
    --------
    >>> import networkx
    >>> karate = Graph.from_networkx(networkx.karate_club_graph())
    >>> local_search(karate, generator=0, iterations=50).size
    20
    """
    graph.require_undirected("an independent set")
    if iterations < 0:
        raise ValueError(f"iterations must be at least 0, got {iterations}.")
    first = greedy(graph).nodes if start is None else extend_to_maximal(graph, start)
    # Python's own generator draws single integers ten times faster than numpy's.
    draw = random.Random(int(np.random.default_rng(generator).integers(2**62)))
    state = _SwapState(graph, first.tolist())
    state.swap_until_stuck(list(first.tolist()))
    best, best_size = state.nodes(), state.size
    for step in range(iterations):
        if not state.outside:
            break
        before = state.size
        state.start_journal()
        state.swap_until_stuck(state.perturb(draw, step))
        if state.size > best_size:
            best, best_size = state.nodes(), state.size
        lost, behind = before - state.size, best_size - state.size
        if lost > 0 and draw.random() > 1 / (1 + lost * behind):
            state.undo()
    return checked_result(graph, best)


class _SwapState:
    """An independent set with the number of set neighbours (tightness) of each node, and a journal for undo."""

    def __init__(self, graph: Graph, nodes: list[int]) -> None:
        self.neighbours = graph.neighbour_lists()
        self.neighbour_sets = [set(row) for row in self.neighbours]
        self.member = bytearray(graph.num_nodes)
        self.tightness = [0] * graph.num_nodes
        self.left_at = [-1] * graph.num_nodes
        # The nodes outside, in any order, and where each is: so that one can be drawn in constant time.
        self.outside = list(range(graph.num_nodes))
        self.position = list(range(graph.num_nodes))
        self.size = 0
        self.journal: list[int] = []
        for node in nodes:
            self.insert(node)

    def nodes(self) -> IntArray:
        return np.flatnonzero(np.frombuffer(bytes(self.member), dtype=np.uint8)).astype(np.int64)

    def insert(self, node: int) -> None:
        self.member[node] = 1
        self.size += 1
        last, gap = self.outside.pop(), self.position[node]
        if last != node:
            self.outside[gap] = last
            self.position[last] = gap
        self.journal.append(node)
        tightness = self.tightness
        for other in self.neighbours[node]:
            tightness[other] += 1

    def remove(self, node: int) -> None:
        self.member[node] = 0
        self.size -= 1
        self.position[node] = len(self.outside)
        self.outside.append(node)
        self.journal.append(node)
        tightness = self.tightness
        for other in self.neighbours[node]:
            tightness[other] -= 1

    def start_journal(self) -> None:
        self.journal = []

    def undo(self) -> None:
        for node in reversed(self.journal):
            if self.member[node]:
                self.remove(node)
            else:
                self.insert(node)
        self.journal = []

    def force(self, node: int, step: int) -> list[int]:
        """Put a node into the set and its neighbours out of it; return the set nodes to look at again."""
        touched = [node]
        for other in self.neighbours[node]:
            if self.member[other]:
                self.remove(other)
                self.left_at[other] = step
                touched += self.after_removal(other, keep_out=node)
        self.insert(node)
        return touched

    def after_removal(self, removed: int, *, keep_out: int = -1) -> list[int]:
        """Fill up round a removed node; return the nodes that entered and those that gained a swap partner."""
        touched = []
        barred = self.neighbour_sets[keep_out] if keep_out >= 0 else set()
        for other in self.neighbours[removed]:
            if self.member[other] or other == keep_out:
                continue
            if self.tightness[other] == 0 and other not in barred:
                self.insert(other)
                touched.append(other)
            elif self.tightness[other] == 1:
                touched += [node for node in self.neighbours[other] if self.member[node]]
        return touched

    def perturb(self, draw: random.Random, step: int) -> list[int]:
        """Force in one node, with probability 1/(2 size) several; of four drawn the one out of the set longest."""
        count = 1
        if draw.random() * 2 * self.size < 1:
            count = 2
            while draw.random() < 0.5:
                count += 1
        touched: list[int] = []
        for _ in range(count):
            drawn = [self.outside[draw.randrange(len(self.outside))] for _ in range(4)]
            touched += self.force(min(drawn, key=self.left_at.__getitem__), step)
        return touched

    def swap_until_stuck(self, candidates: list[int]) -> None:
        """Apply (1, 2)-swaps until no candidate has one; swaps make new candidates."""
        while candidates:
            node = candidates.pop()
            if not self.member[node]:
                continue
            pair = self.find_swap(node)
            if pair is not None:
                self.remove(node)
                self.insert(pair[0])
                self.insert(pair[1])
                candidates += [*pair, *self.after_removal(node)]

    def find_swap(self, node: int) -> tuple[int, int] | None:
        """Two unjoined nodes whose only set neighbour is ``node``, or None."""
        loose = {other for other in self.neighbours[node] if self.tightness[other] == 1}
        if len(loose) < 2:
            return None
        for first in sorted(loose):
            rest = loose - self.neighbour_sets[first]
            rest.discard(first)
            if rest:
                return first, min(rest)
        return None


def extend_to_maximal(graph: Graph, start: npt.ArrayLike) -> IntArray:
    """Check that a set is independent and add nodes, by index, until it is maximal."""
    chosen = check_independent(graph, start)
    blocked = np.zeros(graph.num_nodes, dtype=bool)
    blocked[chosen] = True
    blocked[graph.indices[blocked[graph.tails]]] = True
    added = []
    for node in np.flatnonzero(~blocked).tolist():
        if not blocked[node]:
            added.append(node)
            blocked[graph.neighbours(node)] = True
    return np.sort(np.r_[chosen, np.array(added, dtype=np.int64)])
