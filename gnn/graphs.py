"""A simple graph as an immutable value: what the tasks, the readers and the generators exchange.

Every task is defined on a *simple* graph, so self-loops and repeated edges are errors here and not
further down, where they would change a result without a word. ``checks.simple_edge_rows`` drops them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import networkx
import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch

from manifoldnorm.gnn.checks import (
    FloatArray,
    IntArray,
    as_pairs,
    check_nodes,
    check_simple,
    self_loop_message,
    simple_edge_rows,
)

__all__ = ["Graph"]


@dataclass(frozen=True, eq=False)
class Graph:
    """A simple graph in compressed sparse rows.

    Build one with :meth:`from_edges`, :meth:`from_edge_index`, :meth:`from_networkx` or :meth:`from_data`;
    the readers and generators of this package return one too. An undirected graph holds both directions.

    Parameters
    ----------
    num_nodes
        Number of nodes; they are 0..num_nodes-1.
    indptr
        Row starts, int64, shape (num_nodes + 1,).
    indices
        Out-neighbours of node ``v`` at ``indices[indptr[v]:indptr[v + 1]]``, ascending; int64, shape (arcs,).
    directed
        Whether arcs have a direction.
    weights
        One finite weight an arc, float64, shape (arcs,), or None. Carried along; no task reads it.
    probabilities
        One activation probability an arc, float64, shape (arcs,), or None. In an undirected graph the two
        directions may differ (weighted cascade).
    labels
        The user's names of the nodes, or None.

    Raises
    ------
    ValueError
        If an array has a wrong shape or range, the graph is not simple, or is undirected but not symmetric.

    Examples
    --------
    >>> graph = Graph.from_edges(4, [(0, 1), (1, 2)])
    >>> graph
    Graph(num_nodes=4, num_edges=2, directed=False)
    >>> graph.neighbours(1).tolist(), graph.degree.tolist()
    ([0, 2], [1, 2, 1, 0])
    """

    num_nodes: int
    indptr: IntArray
    indices: IntArray
    directed: bool = False
    weights: FloatArray | None = None
    probabilities: FloatArray | None = None
    labels: tuple[Hashable, ...] | None = None

    def __post_init__(self) -> None:
        if self.num_nodes < 0:
            raise ValueError(f"num_nodes must be at least 0, got {self.num_nodes}.")
        for name, dtype in (
            ("indptr", np.int64),
            ("indices", np.int64),
            ("weights", np.float64),
            ("probabilities", np.float64),
        ):
            value = getattr(self, name)
            if value is not None:
                array = np.array(value, dtype=dtype)  # a copy: nobody else may change it
                array.flags.writeable = False
                object.__setattr__(self, name, array)
        self._check_structure()
        self._check_values()

    def _check_structure(self) -> None:
        n, arcs = self.num_nodes, len(self.indices)
        if self.indptr.shape != (n + 1,) or self.indptr[0] != 0 or self.indptr[-1] != arcs:
            raise ValueError(
                f"indptr must have shape ({n + 1},), start at 0 and end at {arcs} (= len(indices)); "
                f"got shape {self.indptr.shape}."
            )
        if np.any(np.diff(self.indptr) < 0):
            raise ValueError("indptr must not decrease.")
        if arcs == 0:
            return
        low, high = int(self.indices.min()), int(self.indices.max())
        if low < 0 or high >= n:
            raise ValueError(f"indices must lie in 0..{n - 1}, got values from {low} to {high}.")
        tails = self.tails
        loops = np.flatnonzero(tails == self.indices)
        if len(loops):
            raise ValueError(self_loop_message(int(tails[loops[0]])))
        unsorted = np.flatnonzero((np.diff(self.indices) <= 0) & (tails[1:] == tails[:-1]))
        if len(unsorted):
            node = int(tails[unsorted[0]])
            raise ValueError(f"the neighbours of node {node} must be ascending and distinct.")
        if not self.directed:
            mirrored = self._transposed_positions()
            if not (np.array_equal(self.indices[mirrored], tails) and np.array_equal(tails[mirrored], self.indices)):
                raise ValueError(
                    "an undirected graph must hold each edge in both directions; "
                    "pass directed=True, or build it with Graph.from_edges."
                )

    def _check_values(self) -> None:
        arcs = len(self.indices)
        for name, value in (("weights", self.weights), ("probabilities", self.probabilities)):
            if value is None:
                continue
            if value.shape != (arcs,):
                raise ValueError(f"{name} must have shape ({arcs},), one an arc; got {value.shape}.")
            if not np.all(np.isfinite(value)):
                raise ValueError(f"{name} must be finite; arc {int(np.argmin(np.isfinite(value)))} is not.")
        if self.probabilities is not None and np.any((self.probabilities < 0) | (self.probabilities > 1)):
            raise ValueError(
                f"probabilities must lie in [0, 1], got values from {self.probabilities.min()} "
                f"to {self.probabilities.max()}."
            )
        if self.labels is not None:
            if len(self.labels) != self.num_nodes:
                raise ValueError(f"labels must have {self.num_nodes} entries, got {len(self.labels)}.")
            if len(set(self.labels)) != self.num_nodes:
                raise ValueError("labels must be distinct.")

    def __repr__(self) -> str:
        parts = [f"num_nodes={self.num_nodes}", f"num_edges={self.num_edges}", f"directed={self.directed}"]
        optional = {"weights": self.weights, "probabilities": self.probabilities, "labels": self.labels}
        parts += [f"{name}=..." for name, value in optional.items() if value is not None]
        return f"Graph({', '.join(parts)})"

    @classmethod
    def from_edges(
        cls,
        num_nodes: int,
        edges: npt.ArrayLike,
        *,
        directed: bool = False,
        weights: npt.ArrayLike | None = None,
        probabilities: npt.ArrayLike | None = None,
        labels: Sequence[Hashable] | None = None,
    ) -> Graph:
        """Build a graph from a list of edges, each undirected edge given once.

        Parameters
        ----------
        num_nodes
            Number of nodes.
        edges
            Integers, shape (edges, 2).
        directed
            Whether a row (u, v) is an arc from u to v.
        weights, probabilities
            One number a row of ``edges``, or None.
        labels
            The names of the nodes, or None.

        Raises
        ------
        ValueError
            For a node outside 0..num_nodes-1, a self-loop, a repeated edge, or values of the wrong length.

        Examples
        --------
        >>> Graph.from_edges(3, [(0, 1), (1, 0)], directed=True).num_edges
        2
        """
        pairs = as_pairs(edges)
        check_simple(num_nodes, pairs, directed)
        tails, heads = pairs[:, 0], pairs[:, 1]
        rows = np.arange(len(pairs))
        if not directed:
            tails, heads, rows = np.r_[tails, heads], np.r_[heads, tails], np.r_[rows, rows]
        by_tail = np.argsort(tails * num_nodes + heads)
        indptr = np.r_[0, np.cumsum(np.bincount(tails, minlength=num_nodes))]

        def per_arc(name: str, values: npt.ArrayLike | None) -> FloatArray | None:
            if values is None:
                return None
            array = np.asarray(values, dtype=np.float64)
            if array.shape != (len(pairs),):
                raise ValueError(f"{name} must have shape ({len(pairs)},), one an edge; got {array.shape}.")
            return array[rows[by_tail]]

        return cls(
            num_nodes,
            indptr.astype(np.int64),
            heads[by_tail],
            directed,
            per_arc("weights", weights),
            per_arc("probabilities", probabilities),
            None if labels is None else tuple(labels),
        )

    @classmethod
    def from_edge_index(cls, edge_index: torch.Tensor, num_nodes: int, *, directed: bool = False) -> Graph:
        """Build a graph from a torch-geometric ``edge_index``.

        Parameters
        ----------
        edge_index
            Integers, shape (2, arcs), row 0 the sources; an undirected graph lists both directions.
        num_nodes
            Number of nodes (isolated ones are not in ``edge_index``).
        directed
            Whether arcs have a direction.

        Raises
        ------
        ValueError
            As :meth:`from_edges`, and when ``directed=False`` and an arc has no mirror arc.

        Examples
        --------
        >>> Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 3)
        Graph(num_nodes=3, num_edges=1, directed=False)
        """
        if edge_index.ndim != 2 or edge_index.shape[0] != 2:
            raise ValueError(f"edge_index must have shape (2, arcs), got {tuple(edge_index.shape)}.")
        graph = cls.from_edges(num_nodes, edge_index.detach().cpu().numpy().T, directed=True)
        return graph if directed else replace(graph, directed=False)

    @classmethod
    def from_networkx(
        cls,
        graph: networkx.Graph,
        *,
        weight: str | None = None,
        probability: str | None = None,
    ) -> Graph:
        """Build a graph from a networkx one; nodes are numbered in its insertion order and kept as labels.

        Parameters
        ----------
        graph
            A ``networkx.Graph`` or ``DiGraph``.
        weight, probability
            Names of the edge attributes to keep as weights and probabilities, or None.

        Raises
        ------
        ValueError
            For a multigraph, a self-loop, or an edge that lacks the named attribute.

        Examples
        --------
        >>> Graph.from_networkx(networkx.karate_club_graph())
        Graph(num_nodes=34, num_edges=78, directed=False, labels=...)
        """
        if graph.is_multigraph():
            raise ValueError(
                "graph is a multigraph; pass networkx.Graph(graph) or networkx.DiGraph(graph) to merge its "
                "parallel edges."
            )
        position = {node: i for i, node in enumerate(graph.nodes)}
        edges = np.array([(position[u], position[v]) for u, v in graph.edges], dtype=np.int64).reshape(-1, 2)

        def attribute(name: str | None) -> list[float] | None:
            if name is None:
                return None
            values = []
            for u, v, value in graph.edges(data=name):
                if value is None:
                    raise ValueError(f"edge ({u!r}, {v!r}) has no attribute {name!r}.")
                values.append(float(value))
            return values

        return cls.from_edges(
            graph.number_of_nodes(),
            edges,
            directed=graph.is_directed(),
            weights=attribute(weight),
            probabilities=attribute(probability),
            labels=tuple(graph.nodes),
        )

    @classmethod
    def from_data(cls, data: Any, *, directed: bool = False) -> Graph:
        """Build a graph from a torch-geometric ``Data``: its ``edge_index`` and ``num_nodes``.

        Raises
        ------
        ValueError
            If there is no ``edge_index``, or as :meth:`from_edge_index`.

        Examples
        --------
        >>> from torch_geometric.data import Data
        >>> Graph.from_data(Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)).num_edges
        1
        """
        if getattr(data, "edge_index", None) is None or data.num_nodes is None:
            raise ValueError("data must have edge_index and num_nodes.")
        return cls.from_edge_index(data.edge_index, int(data.num_nodes), directed=directed)

    @property
    def num_arcs(self) -> int:
        """Number of stored arcs: twice the edges of an undirected graph."""
        return len(self.indices)

    @property
    def num_edges(self) -> int:
        """Number of edges (of arcs, in a directed graph)."""
        return self.num_arcs if self.directed else self.num_arcs // 2

    @cached_property
    def tails(self) -> IntArray:
        """The tail of each arc, int64, shape (arcs,); its head is ``indices``."""
        return np.repeat(np.arange(self.num_nodes, dtype=np.int64), np.diff(self.indptr))

    @property
    def edges(self) -> IntArray:
        """The edges, int64, shape (edges, 2), ascending; ``u < v`` in an undirected graph."""
        arcs = np.stack([self.tails, self.indices], axis=1)
        return arcs if self.directed else arcs[arcs[:, 0] < arcs[:, 1]]

    @property
    def edge_index(self) -> torch.Tensor:
        """The arcs as torch-geometric wants them, int64, shape (2, arcs)."""
        return torch.from_numpy(np.stack([self.tails, self.indices]))

    @property
    def degree(self) -> IntArray:
        """Number of out-neighbours of each node, int64, shape (nodes,)."""
        return np.diff(self.indptr)

    @property
    def in_degree(self) -> IntArray:
        """Number of in-neighbours of each node, int64, shape (nodes,)."""
        return np.bincount(self.indices, minlength=self.num_nodes).astype(np.int64)

    def neighbours(self, node: int) -> IntArray:
        """Return the out-neighbours of a node, ascending."""
        return self.indices[self.indptr[node] : self.indptr[node + 1]]

    def neighbour_lists(self) -> list[list[int]]:
        """Return all out-neighbours as lists of Python integers, which Python loops read fastest."""
        heads, starts = self.indices.tolist(), self.indptr.tolist()
        return [heads[a:b] for a, b in pairwise(starts)]

    def label_of(self, node: int) -> Hashable:
        """Return the user's name of a node: its label, or its number where the graph has no labels."""
        return node if self.labels is None else self.labels[node]

    @cached_property
    def has_symmetric_probabilities(self) -> bool:
        """Whether the graph is undirected and an edge has one probability for both directions."""
        if self.directed or self.probabilities is None:
            return False
        return bool(np.array_equal(self.probabilities, self.probabilities[self._transposed_positions()]))

    def require_undirected(self, purpose: str) -> None:
        """Raise a ValueError that names ``purpose`` if the graph is directed."""
        if self.directed:
            raise ValueError(
                f"{purpose} is defined on undirected graphs, got a directed one; "
                "call graph.to_undirected() if the directions don't matter."
            )

    def with_probabilities(self, probabilities: npt.ArrayLike) -> Graph:
        """Return the same graph with these activation probabilities, one an arc (or one number for all)."""
        values = np.broadcast_to(np.asarray(probabilities, dtype=np.float64), (self.num_arcs,))
        return replace(self, probabilities=values)

    def without_labels(self) -> Graph:
        """Return the same graph with its nodes called 0..n-1."""
        return replace(self, labels=None)

    def to_undirected(self) -> Graph:
        """Forget the directions. Weights and probabilities go too: the two directions may disagree."""
        pairs = np.stack([self.tails, self.indices], axis=1)
        rows = simple_edge_rows(pairs)
        return Graph.from_edges(self.num_nodes, pairs[rows], labels=self.labels)

    def reverse(self) -> Graph:
        """Turn every arc round; weights and probabilities go with their arcs."""
        order = self._transposed_positions()
        return replace(
            self,
            indptr=np.r_[0, np.cumsum(self.in_degree)],
            indices=self.tails[order],
            weights=None if self.weights is None else self.weights[order],
            probabilities=None if self.probabilities is None else self.probabilities[order],
        )

    def subgraph(self, nodes: npt.ArrayLike) -> Graph:
        """Return the induced subgraph; its node ``i`` is ``nodes[i]`` of this graph.

        Examples
        --------
        >>> Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)]).subgraph([3, 2, 0]).edges.tolist()
        [[0, 1]]
        """
        chosen = check_nodes(nodes, self.num_nodes, name="nodes")
        position = np.full(self.num_nodes, -1, dtype=np.int64)
        position[chosen] = np.arange(len(chosen))
        tails, heads = position[self.tails], position[self.indices]
        kept = np.flatnonzero((tails >= 0) & (heads >= 0))
        kept = kept[np.argsort(tails[kept] * max(len(chosen), 1) + heads[kept])]
        return replace(
            self,
            num_nodes=len(chosen),
            indptr=np.r_[0, np.cumsum(np.bincount(tails[kept], minlength=len(chosen)))],
            indices=heads[kept],
            weights=None if self.weights is None else self.weights[kept],
            probabilities=None if self.probabilities is None else self.probabilities[kept],
            labels=None if self.labels is None else tuple(self.labels[i] for i in chosen.tolist()),
        )

    def to_networkx(self) -> networkx.Graph:
        """Return a networkx graph on the labels (or 0..n-1) with ``weight``, ``probability`` attributes."""
        if self.probabilities is not None and not self.directed and not self.has_symmetric_probabilities:
            raise ValueError(
                "an edge's two directions have different probabilities, which a networkx.Graph can't hold; "
                "drop them with dataclasses.replace(graph, probabilities=None)."
            )
        result = networkx.DiGraph() if self.directed else networkx.Graph()
        names = list(range(self.num_nodes)) if self.labels is None else list(self.labels)
        result.add_nodes_from(names)
        keep = np.ones(self.num_arcs, dtype=bool) if self.directed else self.tails < self.indices
        attributes = {
            name: values[keep].tolist()
            for name, values in (("weight", self.weights), ("probability", self.probabilities))
            if values is not None
        }
        for i, (u, v) in enumerate(self.edges.tolist()):
            result.add_edge(names[u], names[v], **{name: values[i] for name, values in attributes.items()})
        return result

    def to_data(self) -> Any:
        """Return a torch-geometric ``Data``; weights, if there are any, become its ``edge_weight``."""
        from torch_geometric.data import Data

        data = Data(edge_index=self.edge_index, num_nodes=self.num_nodes)
        if self.weights is not None:
            data.edge_weight = torch.tensor(self.weights)
        return data

    def adjacency(self) -> scipy.sparse.csr_array:
        """Return the 0/1 adjacency matrix, a scipy sparse array of shape (nodes, nodes)."""
        return scipy.sparse.csr_array(
            (np.ones(self.num_arcs, dtype=np.int8), self.indices, self.indptr),
            shape=(self.num_nodes, self.num_nodes),
        )

    def _transposed_positions(self) -> IntArray:
        """Positions that list the arcs by (head, tail): the arcs of the reversed graph in its own order."""
        # A sparse transpose sorts by head, stably, in linear time.
        positions = scipy.sparse.csr_array(
            (np.arange(self.num_arcs), self.indices, self.indptr), shape=(self.num_nodes, self.num_nodes)
        ).tocsc()
        return np.asarray(positions.data, dtype=np.int64)
