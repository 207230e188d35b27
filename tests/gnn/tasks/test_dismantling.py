import json
import time
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.tasks import dismantling
from tests.conftest import GOLDEN
from tests.gnn.graph_strategies import graphs, named_graph, random_graph

CASES: dict[str, dict[str, Any]] = json.loads((GOLDEN / "gnn_dismantle.json").read_text())
EDGES: dict[str, list[list[int]]] = json.loads((GOLDEN / "gnn_edges.json").read_text())
ADAPTIVE = {
    "hda": dismantling.adaptive_highest_degree,
    "corehd": dismantling.core_highest_degree,
    "ci2": dismantling.collective_influence,
}


def golden_graph(name: str) -> Graph:
    case = CASES[name]
    graph = Graph.from_edges(case["n"], EDGES[name]) if name in EDGES else named_graph(name)
    assert (graph.num_nodes, graph.num_edges) == (case["n"], case["m"])
    return graph


@pytest.mark.parametrize("name", CASES)
def test_golden_values(name: str) -> None:
    graph, case = golden_graph(name), CASES[name]
    static = dismantling.curve(graph, dismantling.highest_degree(graph))
    assert static.order.tolist() == case["order_degree"]
    assert static.largest_component.tolist() == case["lcc_degree"]
    assert static.robustness() == pytest.approx(case["R_degree"], abs=1e-14)
    for key, method in ADAPTIVE.items():
        measured = dismantling.curve(graph, method(graph))
        assert measured.value == pytest.approx(case[f"R_{key}"], abs=1e-14), key
        if f"order_{key}" in case:
            assert measured.order.tolist() == case[f"order_{key}"], key


def largest_component(graph: nx.Graph) -> int:
    return max(map(len, nx.connected_components(graph)), default=0)


@given(graphs(), st.permutations(range(12)))
def test_curve_equals_networkx_after_each_removal(graph: Graph, permutation: list[int]) -> None:
    order = [node for node in permutation if node < graph.num_nodes]
    left = graph.to_networkx()
    sizes = [largest_component(left)]
    for node in order:
        left.remove_node(node)
        sizes.append(largest_component(left))
    measured = dismantling.curve(graph, torch.tensor(order, dtype=torch.long))
    assert measured.largest_component.tolist() == sizes
    if order:
        assert measured.robustness() == pytest.approx(sum(sizes[1:]) / len(order) ** 2)
        for target in (0.0, 0.2, 0.29, 1.0):
            first = next(q for q, size in enumerate(sizes) if size * 100 <= round(target * 100) * len(order))
            assert measured.critical_fraction(target) == first / len(order)


def next_of_adaptive_degree(left: nx.Graph) -> int:
    return min(left, key=lambda v: (-left.degree[v], v))


def next_of_core_degree(left: nx.Graph) -> int:
    core = nx.k_core(left, 2)
    return next_of_adaptive_degree(core if len(core) else left)


def next_of_collective_influence(radius: int) -> Any:
    def influence(left: nx.Graph, v: int) -> int:
        distance = nx.single_source_shortest_path_length(left, v, cutoff=radius)
        return (left.degree[v] - 1) * sum(left.degree[w] - 1 for w, d in distance.items() if d == radius)

    return lambda left: min(left, key=lambda v: (-influence(left, v), -left.degree[v], v))


@given(graphs(max_nodes=11), st.integers(1, 3))
def test_adaptive_orders_equal_recomputing_everything_after_each_removal(graph: Graph, radius: int) -> None:
    for order, next_node in (
        (dismantling.adaptive_highest_degree(graph), next_of_adaptive_degree),
        (dismantling.core_highest_degree(graph), next_of_core_degree),
        (dismantling.collective_influence(graph, radius=radius), next_of_collective_influence(radius)),
    ):
        left, expected = graph.to_networkx(), []
        while len(left):
            expected.append(next_node(left))
            left.remove_node(expected[-1])
        assert order.tolist() == expected


@given(graphs())
def test_rescoring_by_degree_one_at_a_time_is_adaptive_highest_degree(graph: Graph) -> None:
    rescored = dismantling.order_by_rescoring(graph, lambda rest: rest.degree, fraction=1e-9)
    assert rescored.tolist() == dismantling.adaptive_highest_degree(graph).tolist()
    once = dismantling.order_by_rescoring(graph, lambda rest: rest.degree, fraction=1)
    assert once.tolist() == dismantling.highest_degree(graph).tolist()


@given(graphs(), st.permutations(range(12)), st.sampled_from([0.0, 0.1, 0.25, 0.5]))
def test_reinsertion_is_greedy_and_keeps_the_target(graph: Graph, permutation: list[int], target: float) -> None:
    order = [node for node in permutation if node < graph.num_nodes]
    before = dismantling.curve(graph, order)
    improved = dismantling.reinsert(graph, order, target=target)
    after = dismantling.curve(graph, improved)
    assert sorted(improved.tolist()) == list(range(graph.num_nodes))
    assert after.critical_fraction(target) <= before.critical_fraction(target)
    # By definition: among the removed, the one that joins the smallest component goes back, while that is allowed.
    removed = order[: before.critical_size(target)]
    whole = graph.to_networkx()
    while removed:
        present = set(whole) - set(removed)
        size, node = min((len(nx.node_connected_component(whole.subgraph(present | {v}), v)), v) for v in removed)
        if size > target * graph.num_nodes + 1e-9:
            break
        removed.remove(node)
    assert improved[: len(removed)].tolist() == removed


def test_accumulated_connectivity_weighs_by_cost() -> None:
    graph = Graph.from_edges(4, [(0, 1), (0, 2), (0, 3)])
    measured = dismantling.curve(graph, [1, 0, 2, 3])
    assert measured.largest_component.tolist() == [4, 3, 1, 1, 0]
    assert measured.accumulated_normalised_connectivity() == pytest.approx(measured.robustness())
    # Costs belong to nodes, not to positions: (3/4 * 2 + 1/4 * 5 + 1/4 * 1 + 0 * 2) / 10.
    assert measured.accumulated_normalised_connectivity([5, 2, 1, 2]) == pytest.approx(0.3)
    for costs in ([1, 1, 1], [1, 1, 0, 1], [1, 1, np.inf, 1]):
        with pytest.raises(ValueError, match="costs must be 4 positive"):
            measured.accumulated_normalised_connectivity(costs)


def test_static_scores_break_ties_by_index() -> None:
    graph = Graph.from_edges(4, [(0, 1)])
    assert dismantling.order_by_score(graph, torch.tensor([1.0, 2.0, 1.0, 2.0])).tolist() == [1, 3, 0, 2]


def test_empty_and_edgeless_graphs() -> None:
    nothing, lonely = Graph.from_edges(0, []), Graph.from_edges(3, [])
    for method in (*ADAPTIVE.values(), dismantling.highest_degree):
        assert method(nothing).tolist() == []
        assert method(lonely).tolist() == [0, 1, 2]
    empty = dismantling.curve(nothing, [])
    assert empty.largest_component.tolist() == [0]
    assert (empty.value, empty.critical_fraction(), empty.accumulated_normalised_connectivity()) == (0, 0, 0)
    assert dismantling.curve(lonely, [2, 0, 1]).largest_component.tolist() == [1, 1, 1, 0]
    assert dismantling.reinsert(nothing, []).tolist() == []


def test_clear_errors() -> None:
    path = Graph.from_edges(3, [(0, 1), (1, 2)])
    directed = Graph.from_edges(3, [(0, 1), (1, 2)], directed=True)
    for call in (
        lambda: dismantling.curve(directed, [0, 1, 2]),
        lambda: dismantling.reinsert(directed, [0, 1, 2]),
        lambda: dismantling.order_by_rescoring(directed, lambda rest: rest.degree),
        *(lambda method=method: method(directed) for method in (*ADAPTIVE.values(), dismantling.highest_degree)),
    ):
        with pytest.raises(ValueError, match="dismantling is defined on undirected graphs"):
            call()
    with pytest.raises(ValueError, match="permutation of all 3 nodes, got 2"):
        dismantling.curve(path, [0, 1])
    with pytest.raises(ValueError, match="order must be distinct, but node 1"):
        dismantling.curve(path, [0, 1, 1])
    with pytest.raises(ValueError, match="target must lie"):
        dismantling.curve(path, [0, 1, 2]).critical_fraction(1.5)
    with pytest.raises(ValueError, match="fraction must lie"):
        dismantling.order_by_rescoring(path, lambda rest: rest.degree, fraction=0)
    with pytest.raises(ValueError, match="radius must be at least 1"):
        dismantling.collective_influence(path, radius=0)


@pytest.mark.slow
def test_curve_of_a_million_nodes_takes_less_than_ten_seconds() -> None:
    graph = random_graph(1_000_000, 3_000_000, 0)
    start = time.process_time()
    measured = dismantling.curve(graph, dismantling.highest_degree(graph))
    assert time.process_time() - start < 10
    assert 0.3 < measured.robustness() < 0.4
