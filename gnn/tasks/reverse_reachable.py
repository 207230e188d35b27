"""Reverse-reachable sets: a sketch of influence for any probabilities, and a stop rule with a guarantee."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, e, lgamma, log, log2, sqrt

import numpy as np
import numpy.typing as npt
import torch

from manifoldnorm.gnn.checks import IntArray, check_budget, check_nodes
from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.tasks.cascades import Spread, probabilities_of, run_cascades


@dataclass(frozen=True, eq=False)
class ReverseReachableSets:
    """Sets of the nodes that would have activated a random root, one sampled world each (Borgs et al. 2014).

    The expected spread of a seed set is num_nodes times the probability that it hits such a set.

    Parameters
    ----------
    num_nodes
        Nodes of the graph.
    members
        The nodes of all sets one after the other, int64.
    starts
        Where each set begins in ``members``; int64, shape (sets + 1,).
    """

    num_nodes: int
    members: IntArray
    starts: IntArray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __add__(self, other: ReverseReachableSets) -> ReverseReachableSets:
        return ReverseReachableSets(
            self.num_nodes,
            np.r_[self.members, other.members],
            np.r_[self.starts, other.starts[1:] + self.starts[-1]],
        )

    def hits(self, nodes: IntArray) -> int:
        """Return how many sets contain at least one of the nodes."""
        chosen = np.zeros(self.num_nodes, dtype=bool)
        chosen[nodes] = True
        owner = np.repeat(np.arange(len(self)), np.diff(self.starts))
        return len(np.unique(owner[chosen[self.members]]))

    def spread(self, nodes: npt.ArrayLike | torch.Tensor) -> Spread:
        """Estimate the spread as num_nodes times the share q of sets hit; error num_nodes sqrt(q (1 - q) / sets)."""
        seeds = check_nodes(nodes, self.num_nodes, name="nodes")
        share = self.hits(seeds) / len(self)
        error = self.num_nodes * sqrt(share * (1 - share) / len(self))
        return Spread(seeds, self.num_nodes * share, error, len(self))

    def greedy(self, k: int) -> Spread:
        """Pick k nodes that hit most sets, one after the other, ties by smallest index.

        The value is that on these sets, which the choice fits: measure the nodes on others.

        Raises
        ------
        ValueError
            For k outside 1..n.

        Examples
        --------
        >>> star = Graph.from_edges(4, [(2, 0), (2, 1), (2, 3)], directed=True).with_probabilities(0.5)
        >>> sample_reverse_reachable_sets(star, 1000, generator=0).greedy(1).nodes.tolist()
        [2]
        """
        return self.spread(self.cover(k)[0])

    def cover(self, k: int) -> tuple[IntArray, int]:
        """Pick k nodes as :meth:`greedy` does, and bound what any k nodes could hit.

        Returns
        -------
        The nodes in the order picked, and an upper bound on the number of sets that any k nodes hit: the least, over
        the picks, of the sets hit so far plus the k largest gains then.
        """
        check_budget(k, self.num_nodes)
        by_node = np.argsort(self.members, kind="stable")
        owner = np.repeat(np.arange(len(self)), np.diff(self.starts))[by_node]
        node_starts = np.r_[0, np.cumsum(np.bincount(self.members, minlength=self.num_nodes))]
        gains = np.diff(node_starts)
        hit = np.zeros(len(self), dtype=bool)
        chosen: list[int] = []
        covered, bound = 0, len(self)
        for _ in range(k):
            bound = min(bound, covered + _sum_of_largest(gains, k))
            # A chosen node's gain is 0 and it must not be picked again when all gains are.
            gains[chosen] = -1
            node = int(np.argmax(gains))
            gains[chosen] = 0
            chosen.append(node)
            fresh = owner[node_starts[node] : node_starts[node + 1]]
            fresh = fresh[~hit[fresh]]
            hit[fresh] = True
            covered += len(fresh)
            gains -= np.bincount(self._members_of(fresh), minlength=self.num_nodes)
        bound = min(bound, covered + _sum_of_largest(gains, k))
        return np.array(chosen, dtype=np.int64), bound

    def _members_of(self, sets: IntArray) -> IntArray:
        first = self.starts[sets]
        count = self.starts[sets + 1] - first
        ends = np.cumsum(count)
        total = int(ends[-1]) if len(ends) else 0
        return self.members[np.repeat(first - ends + count, count) + np.arange(total)]


def sample_reverse_reachable_sets(
    graph: Graph, sets: int, *, generator: np.random.Generator | int
) -> ReverseReachableSets:
    """Draw a root at random and the nodes that would activate it, ``sets`` times.

    Parameters
    ----------
    graph
        A graph with probabilities, directed or not.
    sets
        Number of sets, at least 1. Memory grows with their total size, not with nodes times sets.
    generator
        A numpy generator, or a seed.

    Raises
    ------
    ValueError
        If the graph has no probabilities or no nodes.

    Examples
    --------
    >>> path = Graph.from_edges(3, [(0, 1), (1, 2)], directed=True).with_probabilities(1.0)
    >>> sample_reverse_reachable_sets(path, 100, generator=0).spread([0]).value
    3.0
    """
    probabilities_of(graph)
    if graph.num_nodes == 0:
        raise ValueError("the graph has no nodes to draw a root from.")
    if sets < 1:
        raise ValueError(f"sets must be at least 1, got {sets}.")
    generator = np.random.default_rng(generator)
    n = graph.num_nodes

    def random_roots(worlds: int) -> IntArray:
        return np.arange(worlds) * n + generator.integers(n, size=worlds)

    members, sizes = [np.empty(0, dtype=np.int64)], [np.zeros(1, dtype=np.int64)]
    for first, last, active in run_cascades(graph.reverse(), random_roots, sets, generator):
        active.sort()
        members.append(active % n)
        sizes.append(np.bincount(active // n, minlength=last - first))
    return ReverseReachableSets(n, np.concatenate(members), np.cumsum(np.concatenate(sizes)))


@dataclass(frozen=True, eq=False)
class GuaranteedSeeds:
    """Seeds with, except with probability delta: spread >= lower, best spread of any k nodes <= upper."""

    nodes: IntArray
    lower: float
    upper: float
    sets: int


def pick_with_guarantee(
    graph: Graph, k: int, *, epsilon: float, delta: float, generator: np.random.Generator
) -> GuaranteedSeeds:
    """Double the reverse-reachable sets until lower/upper reaches 1 - 1/e - epsilon (OPIM-C).

    Tang, Tang, Xiao and Yuan, "Online processing algorithms for influence maximization", SIGMOD 2018: seeds are
    picked on one half of the sets, where the optimum is bounded from above, and their spread is bounded from below on
    the other, independent half.
    """
    n = graph.num_nodes
    ratio = 1 - 1 / e
    log_choices = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
    confidence = log(6 / delta)
    most = 2 * n * (ratio * sqrt(confidence) + sqrt(ratio * (log_choices + confidence))) ** 2 / (epsilon**2 * k)
    count = max(1, ceil(most * epsilon**2 * k / n))
    rounds = max(1, ceil(log2(most / count)))
    a = log(3 * rounds / delta)
    pick = sample_reverse_reachable_sets(graph, count, generator=generator)
    check = sample_reverse_reachable_sets(graph, count, generator=generator)
    for step in range(rounds):
        nodes, most_hit = pick.cover(k)
        hit = check.hits(nodes)
        lower = ((sqrt(hit + 2 * a / 9) - sqrt(a / 2)) ** 2 - a / 18) * n / len(check)
        upper = (sqrt(most_hit + a / 2) + sqrt(a / 2)) ** 2 * n / len(pick)
        if lower / upper >= ratio - epsilon or step == rounds - 1:
            break
        pick += sample_reverse_reachable_sets(graph, len(pick), generator=generator)
        check += sample_reverse_reachable_sets(graph, len(check), generator=generator)
    # k seeds activate at least themselves, and nothing activates more than all nodes.
    return GuaranteedSeeds(nodes, max(lower, float(k)), min(upper, float(n)), len(pick) + len(check))


def _sum_of_largest(gains: IntArray, k: int) -> int:
    return int(gains.sum()) if k >= len(gains) else int(np.partition(gains, -k)[-k:].sum())
