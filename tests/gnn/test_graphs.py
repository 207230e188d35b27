import pickle
from copy import deepcopy

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from manifoldnorm.gnn.checks import check_budget, check_nodes, check_scores, simple_edge_rows
from manifoldnorm.gnn.graphs import Graph
from tests.gnn.graph_strategies import graphs


def same(a: Graph, b: Graph) -> bool:
    arrays = zip((a.indptr, a.indices, a.weights, a.probabilities), (b.indptr, b.indices, b.weights, b.probabilities))
    return (a.num_nodes, a.directed, a.labels) == (b.num_nodes, b.directed, b.labels) and all(
        (x is None and y is None) or np.array_equal(x, y) for x, y in arrays
    )


def test_edges_in_any_order_and_direction_give_one_graph() -> None:
    first = Graph.from_edges(4, [(2, 0), (3, 1), (0, 1)], weights=[1, 2, 3])
    second = Graph.from_edges(4, [(1, 0), (0, 2), (1, 3)], weights=[3, 1, 2])
    assert same(first, second)
    assert first.edges.tolist() == [[0, 1], [0, 2], [1, 3]]
    assert first.weights is not None
    assert first.weights.tolist() == [3, 1, 3, 2, 1, 2]


@given(graphs(directed=True))
def test_directed_degrees_reverse_and_arcs_agree_with_networkx(graph: Graph) -> None:
    reference = graph.to_networkx()
    assert graph.degree.tolist() == [d for _, d in reference.out_degree]
    assert graph.in_degree.tolist() == [d for _, d in reference.in_degree]
    assert same(graph.reverse(), Graph.from_networkx(reference.reverse()).without_labels())
    assert same(graph.reverse().reverse(), graph)


@given(graphs())
def test_networkx_and_torch_geometric_round_trips(graph: Graph) -> None:
    assert same(Graph.from_networkx(graph.to_networkx()).without_labels(), graph)
    assert same(Graph.from_data(graph.to_data()), graph)
    assert same(Graph.from_edge_index(graph.edge_index, graph.num_nodes), graph)
    assert same(pickle.loads(pickle.dumps(graph)), graph)
    assert same(deepcopy(graph), graph)


@given(graphs(), st.randoms())
def test_subgraph_is_the_induced_one(graph: Graph, random: object) -> None:
    nodes = np.random.default_rng(random.randrange(2**32)).permutation(graph.num_nodes)[: graph.num_nodes // 2]  # type: ignore[attr-defined]
    reference = nx.relabel_nodes(
        graph.to_networkx().subgraph(nodes.tolist()), {old: new for new, old in enumerate(nodes.tolist())}
    )
    assert {frozenset(e) for e in reference.edges} == {frozenset(e) for e in graph.subgraph(nodes).edges.tolist()}
    assert graph.subgraph(nodes).num_nodes == len(nodes)


def test_values_follow_their_arcs() -> None:
    graph = Graph.from_edges(3, [(0, 1), (1, 2), (2, 0)], directed=True, probabilities=[0.1, 0.2, 0.3])
    back = graph.reverse()
    assert {(*e, p) for e, p in zip(map(tuple, back.edges.tolist()), back.probabilities.tolist())} == {  # type: ignore[union-attr]
        (1, 0, 0.1),
        (2, 1, 0.2),
        (0, 2, 0.3),
    }
    part = graph.subgraph([2, 0])
    assert part.edges.tolist() == [[0, 1]]
    assert part.probabilities is not None
    assert part.probabilities.tolist() == [0.3]
    labelled = Graph.from_networkx(nx.Graph([("a", "b"), ("b", "c")]))
    assert labelled.subgraph([2, 1]).labels == ("c", "b")


def test_networkx_attributes_become_weights_and_probabilities() -> None:
    drawn = nx.Graph()
    drawn.add_edge("x", "y", capacity=2.0, p=0.5)
    drawn.add_edge("z", "y", capacity=3.0, p=0.25)
    graph = Graph.from_networkx(drawn, weight="capacity", probability="p")
    assert graph.labels == ("x", "y", "z")
    assert nx.utils.graphs_equal(
        graph.to_networkx(),
        nx.Graph([("x", "y", {"weight": 2.0, "probability": 0.5}), ("y", "z", {"weight": 3.0, "probability": 0.25})]),
    )
    with pytest.raises(ValueError, match="no attribute 'cost'"):
        Graph.from_networkx(drawn, weight="cost")


def test_weights_reach_torch_geometric() -> None:
    data = Graph.from_edges(3, [(0, 2), (0, 1)], weights=[5, 7]).to_data()
    assert data.edge_index.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]
    assert data.edge_weight.tolist() == [7, 5, 7, 5]


def test_arrays_are_read_only_and_not_shared() -> None:
    heads = np.array([1, 0])
    graph = Graph(2, np.array([0, 1, 2]), heads)
    heads[0] = 0
    assert graph.edges.tolist() == [[0, 1]]
    with pytest.raises(ValueError, match="read-only"):
        graph.indices[0] = 0


def test_empty_and_edgeless_graphs() -> None:
    assert Graph.from_edges(0, []).edges.shape == (0, 2)
    lonely = Graph.from_edges(3, [])
    assert lonely.degree.tolist() == [0, 0, 0]
    assert lonely.edge_index.shape == (2, 0)
    assert lonely.subgraph([]).num_nodes == 0
    assert Graph.from_edge_index(torch.empty(2, 0, dtype=torch.long), 3).num_edges == 0


@pytest.mark.parametrize(
    ("edges", "directed", "message"),
    [
        ([(0, 1), (1, 1)], False, "node 1 has a self-loop"),
        ([(0, 1), (1, 2), (1, 0)], False, r"row 2 \(1, 0\) repeats row 0"),
        ([(0, 1), (1, 0), (0, 1)], True, "row 2 .* repeats row 0"),
        ([(0, 3)], False, r"nodes 0\.\.2, got \(0, 3\) in row 0"),
        ([(0, -1)], False, "row 0"),
        ([(0.0, 1.0)], False, "integers of shape"),
        ([(0, 1, 2)], False, "integers of shape"),
    ],
)
def test_bad_edges_are_named(edges: list[tuple[int, ...]], directed: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Graph.from_edges(3, edges, directed=directed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": [1.0]}, "weights must have shape"),
        ({"weights": [1.0, np.nan]}, "weights must be finite"),
        ({"probabilities": [0.5, 1.5]}, r"probabilities must lie in \[0, 1\]"),
        ({"labels": ["a", "b"]}, "labels must have 3 entries"),
        ({"labels": ["a", "b", "a"]}, "labels must be distinct"),
    ],
)
def test_bad_values_are_named(arguments: dict[str, list[object]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Graph.from_edges(3, [(0, 1), (1, 2)], **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([0, 1], [0, 1], "indptr must have shape"),
        ([0, 2, 1, 2], [1, 0], "must not decrease"),
        ([0, 1, 2, 2], [1, 3], r"indices must lie in 0\.\.2"),
        ([0, 2, 3, 4], [2, 1, 0, 0], "neighbours of node 0 must be ascending"),
        ([0, 1, 1, 1], [1], "both directions"),
        ([0, 1, 2, 3], [1, 2, 0], "both directions"),
        ([0, 1, 1, 1], [0], "self-loop"),
    ],
)
def test_bad_sparse_rows_are_named(indptr: list[int], indices: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Graph(3, np.array(indptr), np.array(indices))


def test_conversions_refuse_what_they_cannot_hold() -> None:
    with pytest.raises(ValueError, match="multigraph"):
        Graph.from_networkx(nx.MultiGraph([(0, 1), (0, 1)]))
    with pytest.raises(ValueError, match="both directions"):
        Graph.from_edge_index(torch.tensor([[0], [1]]), 2)
    with pytest.raises(ValueError, match="edge_index must have shape"):
        Graph.from_edge_index(torch.zeros(3, 2, dtype=torch.long), 2)
    with pytest.raises(ValueError, match="edge_index and num_nodes"):
        Graph.from_data(Data())
    with pytest.raises(ValueError, match="different probabilities"):
        Graph.from_edges(2, [(0, 1)]).with_probabilities([0.1, 0.2]).to_networkx()
    with pytest.raises(ValueError, match="undirected graphs, got a directed one"):
        Graph.from_edges(2, [(0, 1)], directed=True).require_undirected("a test")


def test_forgetting_directions_merges_arcs() -> None:
    graph = Graph.from_edges(3, [(0, 1), (1, 0), (2, 1)], directed=True, weights=[1, 2, 3])
    assert graph.to_undirected().edges.tolist() == [[0, 1], [1, 2]]
    assert graph.to_undirected().weights is None


def test_symmetric_probabilities_are_recognised() -> None:
    path = Graph.from_edges(3, [(0, 1), (1, 2)])
    assert not path.has_symmetric_probabilities
    assert path.with_probabilities(0.3).has_symmetric_probabilities
    assert not path.with_probabilities([0.1, 0.2, 0.1, 0.1]).has_symmetric_probabilities
    assert not Graph.from_edges(2, [(0, 1)], directed=True, probabilities=[1]).has_symmetric_probabilities


def test_simple_edge_rows_keeps_first_occurrences() -> None:
    edges = [(3, 3), (5, 2), (2, 5), (5, 2), (1, 0)]
    assert simple_edge_rows(edges).tolist() == [1, 4]
    assert simple_edge_rows(edges, directed=True).tolist() == [1, 2, 4]
    assert simple_edge_rows([]).tolist() == []


def test_node_sets_scores_and_budgets_are_checked() -> None:
    assert check_nodes(torch.tensor([2, 0]), 3, name="seeds").tolist() == [2, 0]
    for wrong, message in (([3], "seeds must lie in"), ([1, 1], "node 1 is repeated"), ([[0]], "one-dimensional"),
                           ([0.5], "node numbers")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            check_nodes(wrong, 3, name="seeds")
    assert check_scores(torch.ones(3, 1, requires_grad=True), 3).tolist() == [1, 1, 1]
    for scores, message in (([1, 2], "one a node"), ([1, np.nan, 2], "score of node 1"), (np.ones((3, 2)), "shape")):
        with pytest.raises(ValueError, match=message):
            check_scores(scores, 3)
    for budget in (0, 4, 1.0, True):
        with pytest.raises(ValueError, match="k must"):
            check_budget(budget, 3)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_graph_of_three_million_edges_builds_in_seconds() -> None:
    edges = np.random.default_rng(0).integers(1_000_000, size=(3_000_000, 2))
    graph = Graph.from_edges(1_000_000, edges[simple_edge_rows(edges)])
    assert graph.num_edges > 2_999_000
